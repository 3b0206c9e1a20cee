"""Grafana dashboards as values: rows of panels, and their conversion to JSON.

Writes only the fields that Grafana 10 and 11 read and that our dashboards need. Pure: the same
values give the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 39
"""The schema of Grafana 10.4; later versions migrate it when they read it."""

COLUMN_COUNT = 24
"""The columns of Grafana's grid."""

GREEN, ORANGE, RED = "green", "orange", "red"

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""The data source of the variable, so that one dashboard works with every data source."""

PanelKind = Literal["bargauge", "heatmap", "stat", "state-timeline", "table", "timeseries"]
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One question and its answer.

    `queries` are PromQL expressions by their legend; `is_instant`: as of the end of the time range,
    one value a series. `thresholds` are (from this value on, colour), ascending, green below them.
    `mappings` is what to show for a value: text and colour. `pivot` makes a table of instant
    values: (row label, column label).
    """

    title: str
    description: str
    queries: Mapping[str, str]
    unit: str
    kind: PanelKind = "timeseries"
    width: int = 12
    height: int = 8
    thresholds: Sequence[tuple[float, str]] = ()
    mappings: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    is_instant: bool = False
    is_stacked: bool = False
    pivot: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under a heading, from left to right and then in the next line."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A template variable: values of a label, by Grafana's `label_values(SERIES, LABEL)`."""

    name: str
    label: str
    series: str


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Instants that every panel marks, at which `expr` has a value. `title` has labels in
    braces.
    """

    name: str
    expr: str
    title: str
    color: str


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """One page. `uid` is its name in URLs and must stay."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable]
    annotations: Sequence[Annotation]
    time_from: str = "now-1h"


def dashboard_text(dashboard: Dashboard) -> str:
    """Returns the text of the file that Grafana imports."""
    return json.dumps(_dashboard(dashboard), indent=2, ensure_ascii=False) + "\n"


def _dashboard(dashboard: Dashboard) -> Json:
    panels = list(_laid_out(dashboard.rows))
    return {
        "__inputs": [_input()],
        "__elements": {},
        "__requires": _requirements(panels),
        "annotations": {"list": [_annotation(item) for item in dashboard.annotations]},
        "description": dashboard.description,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,  # one crosshair in all panels: what else happened at that moment?
        "id": None,
        "links": [_link()],
        "panels": panels,
        "refresh": "10s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["millpond"],
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "time": {"from": dashboard.time_from, "to": "now"},
        "timepicker": {},
        "timezone": "",
        "title": dashboard.title,
        "uid": dashboard.uid,
        "version": 1,
        "weekStart": "",
    }


# --- Around the panels ----------------------------------------------------------------------------


def _input() -> Json:
    """Returns the import dialog's input. With provisioning, the variable takes the default."""
    return {
        "name": "DS_PROMETHEUS",
        "label": "Prometheus",
        "description": "The Prometheus that scrapes Millpond",
        "type": "datasource",
        "pluginId": "prometheus",
        "pluginName": "Prometheus",
    }


def _requirements(panels: Sequence[Json]) -> list[Json]:
    kinds = sorted({panel["type"] for panel in panels} - {"row"})
    return [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        *({"type": "panel", "id": kind, "name": kind, "version": ""} for kind in kinds),
    ]


def _link() -> Json:
    """Returns the link to the other dashboards, with the same variables and time."""
    return {
        "type": "dashboards",
        "title": "Millpond",
        "tags": ["millpond"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "expr": annotation.expr,
        "titleFormat": annotation.title,
        "iconColor": annotation.color,
        "step": "10s",
    }


def _datasource() -> Json:
    chosen = "${DS_PROMETHEUS}"
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {"selected": False, "text": chosen, "value": chosen},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }


def _variable(variable: Variable) -> Json:
    definition = f"label_values({variable.series}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": definition,
        "query": {"query": definition, "refId": "StandardVariableQuery"},
        # Also series without the label: requests that found no model.
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "includeAll": True,
        "multi": True,
        "options": [],
        "refresh": 2,  # as the time range changes: versions come and go
        "regex": "",
        "skipUrlSync": False,
        "sort": 3,
    }


# --- Panels ---------------------------------------------------------------------------------------


def _laid_out(rows: Sequence[Row]) -> Iterator[Json]:
    """Yields every row and panel with its position and number."""
    identity, top = 1, 0
    for row in rows:
        yield _row(row, identity, top)
        identity, top, left, line_height = identity + 1, top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMN_COUNT:
                top, left, line_height = top + line_height, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            yield {"id": identity, "gridPos": place, **_panel(panel)}
            identity, left = identity + 1, left + panel.width
            line_height = max(line_height, panel.height)
        top += line_height


def _row(row: Row, identity: int, top: int) -> Json:
    return {
        "id": identity,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": {"h": 1, "w": COLUMN_COUNT, "x": 0, "y": top},
        "panels": [],
    }


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": list(_targets(panel)),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
        **({"transformations": _pivoted(*panel.pivot)} if panel.pivot else {}),
    }


def _targets(panel: Panel) -> Iterator[Json]:
    # A table needs labels as columns, a heatmap needs buckets by their edge.
    formats = {"table": "table", "heatmap": "heatmap"}
    for index, (legend, expr) in enumerate(panel.queries.items()):
        yield {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": expr,
            "legendFormat": legend,
            "format": formats.get(panel.kind, "time_series"),
            "instant": panel.is_instant,
            "range": not panel.is_instant,
        }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": GREEN, "value": None}]
    steps += [{"color": color, "value": value} for value, color in panel.thresholds]
    is_graph = panel.kind == "timeseries"
    return {
        "unit": panel.unit,
        **({"min": 0} if panel.kind in ("timeseries", "bargauge") else {}),
        "color": {"mode": "palette-classic" if is_graph else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [_mappings(panel.mappings)] if panel.mappings else [],
        "custom": _custom(panel),
    }


def _mappings(mappings: Mapping[int, tuple[str, str]]) -> Json:
    return {
        "type": "value",
        "options": {
            str(value): {"index": index, "text": text, "color": color}
            for index, (value, (text, color)) in enumerate(mappings.items())
        },
    }


def _custom(panel: Panel) -> Json:
    """Returns the fields that only this kind of panel has."""
    if panel.kind == "timeseries":
        return {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.is_stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
    if panel.kind == "state-timeline":
        return {"fillOpacity": 70, "lineWidth": 0}
    if panel.kind == "table":
        is_colored = bool(panel.thresholds or panel.mappings)
        return {"align": "auto", "cellOptions": {"type": "color-text" if is_colored else "auto"}}
    return {}


def _pivoted(row_label: str, column_label: str) -> list[Json]:
    """Returns transformations to one line per value of `row_label` and one column per
    `column_label`.
    """
    options = {
        "rowField": row_label,
        "columnField": column_label,
        "valueField": "Value",
        "emptyValue": "null",
    }
    return [{"id": "groupingToMatrix", "options": options}]


_LAST_VALUE = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
_OPTIONS: Mapping[PanelKind, Json] = {
    "timeseries": {
        "legend": {**_LEGEND, "displayMode": "table", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": _LAST_VALUE,
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    "bargauge": {
        "reduceOptions": _LAST_VALUE,
        "displayMode": "gradient",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
    },
    "state-timeline": {
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.8,
        "alignValue": "left",
        "legend": {**_LEGEND, "showLegend": False},
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
    "heatmap": {
        "calculate": False,
        "cellGap": 0,
        "color": {"mode": "scheme", "scheme": "Blues", "exponent": 0.5, "steps": 64},
        "yAxis": {"unit": "s", "axisPlacement": "left"},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "rowsFrame": {"layout": "le"},
    },
}
