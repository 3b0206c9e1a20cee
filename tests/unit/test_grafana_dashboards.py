"""Checks deploy/grafana/*.json: Grafana can read the files, and the server exports all metrics in
them.

tests/integration/test_dashboards.py checks with a real Prometheus that every expression has data.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from fleet.http.metric_families import FLEET_FAMILIES
from serving.monitoring.metric_families import (
    FAMILIES,
    PROCESS_FAMILIES,
    TENSORFLOW_SERVING_FAMILIES,
)

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted((DEPLOY / "grafana").glob("*.json"))
RULES = {path.stem: path.read_text() for path in (DEPLOY / "prometheus").glob("*_rules.yml")}
RECORDING_RULES = RULES["recording_rules"]

COLUMN_COUNT = 24
"""The columns of Grafana's grid."""

# The units of Grafana (packages/grafana-data, valueFormats/categories.ts) that fit these metrics.
UNITS = {
    *("none", "short", "s", "bytes", "percentunit", "reqps", "ops", "cps"),
    *("watt", "celsius"),
}

KINDS = {"bargauge", "heatmap", "row", "stat", "state-timeline", "table", "timeseries"}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text())


def graphs(dashboard: Any) -> list[Any]:
    """Returns the panels that are not headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def cells(panel: Any) -> set[tuple[int, int]]:
    """Returns the cells of the grid that a panel covers."""
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


def thresholds(panel: Any) -> list[float]:
    """Returns the values from which on a panel has another colour than green."""
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [{"value": None}])
    assert steps[0]["value"] is None
    return [step["value"] for step in steps[1:]]


def limit(name: str) -> float:
    """Returns a constant of the recording rules."""
    found = re.search(rf"record: {name}\n +expr: vector\((.*)\)\n", RECORDING_RULES)
    assert found is not None, name
    return float(found[1])


# --- Import ---------------------------------------------------------------------------------------------


def test_dashboard_can_be_imported_and_provisioned(dashboard: Any):
    # Grafana 10.4. Later versions migrate the file when they read it.
    assert dashboard["schemaVersion"] == 39
    assert "id" not in dashboard, "Grafana assigns it"
    assert dashboard["uid"].startswith("millpond-")
    assert [item["name"] for item in dashboard["__inputs"]] == ["DS_PROMETHEUS"]
    required = {item["id"] for item in dashboard["__requires"] if item["type"] == "panel"}
    assert required == {panel["type"] for panel in graphs(dashboard)} <= KINDS


def test_uids_and_titles_differ_between_dashboards():
    documents = [json.loads(path.read_text()) for path in FILES]
    assert len({item["uid"] for item in documents}) == len({item["title"] for item in documents})
    assert len({item["uid"] for item in documents}) == len(documents)


def test_variables_select_source_server_model_version(dashboard: Any):
    variables = {item["name"]: item for item in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", "instance", "model", "version"]
    assert variables["datasource"]["current"]["value"] == "${DS_PROMETHEUS}"
    for name in ("instance", "model", "version"):
        assert variables[name]["query"]["query"].startswith("label_values(")
        assert variables[name]["allValue"] == ".*"


def test_everything_reads_the_chosen_data_source(dashboard: Any):
    readers = [
        *graphs(dashboard),
        *(item for item in dashboard["templating"]["list"] if item["type"] == "query"),
        *dashboard["annotations"]["list"],
    ]
    assert {item["datasource"]["uid"] for item in readers} == {"${datasource}"}
    # A target without a data source has that of its panel.
    targets = [target for panel in graphs(dashboard) for target in panel["targets"]]
    assert not any("datasource" in target for target in targets)


# --- Panels -----------------------------------------------------------------------------------------------


def test_panel_ids_are_unique(dashboard: Any):
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_panels_are_in_the_grid_and_do_not_overlap(dashboard: Any):
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        mine = cells(panel)
        assert mine
        assert all(0 <= column < COLUMN_COUNT for column, _ in mine), panel["title"]
        assert not mine & taken, panel["title"]
        taken |= mine


def test_panels_have_unique_titles_and_descriptions(dashboard: Any):
    titles = [panel["title"] for panel in graphs(dashboard)]
    assert len(set(titles)) == len(titles)
    assert all(panel["description"].endswith(".") for panel in graphs(dashboard))


def test_titles_and_descriptions_are_plain_english(dashboard: Any):
    odd = re.compile(r"^(What|Of|Those|Whether|Who|Which|How)\b|\bwhere\b|\?")
    texts = [text for panel in dashboard["panels"] for text in _texts(panel)]
    assert [text for text in texts if odd.search(text)] == []
    sentences = [part for text in texts for part in re.split(r"[.:] ", text)]
    assert [part for part in sentences if len(part.split()) > 25] == []


def _texts(panel: Any) -> list[str]:
    return [panel["title"], panel.get("description", "")]


def test_every_panel_has_a_unit_of_grafana(dashboard: Any):
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in graphs(dashboard)} <= UNITS


def test_every_target_has_expression_legend_and_letter(dashboard: Any):
    for panel in graphs(dashboard):
        targets = panel["targets"]
        assert targets, panel["title"]
        assert all(target["expr"] and target["legendFormat"] for target in targets), panel["title"]
        assert len({target["refId"] for target in targets}) == len(targets)


def test_thresholds_ascend(dashboard: Any):
    for panel in graphs(dashboard):
        # Without thresholds, Grafana draws its own limit of 80 if a colour depends on the value.
        if panel["fieldConfig"]["defaults"]["color"]["mode"] == "thresholds":
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]
        values = thresholds(panel)
        assert values == sorted(set(values))


def test_panel_unit_is_the_unit_of_its_metric(dashboard: Any):
    """The first metric's name ends in its unit. Ratios and counts have another unit."""
    made_of = re.compile(r"(?:rate|increase|count) ?\(|/")
    for panel in graphs(dashboard):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        expr = panel["targets"][0]["expr"]
        if made_of.search(re.sub(r'"[^"]*"', "", expr)):
            continue
        (metric, *_) = re.findall(r"\b(?:serving|process|fleet)_\w+", expr)
        expected = {"seconds": "s", "bytes": "bytes"}.get(metric.rpartition("_")[2])
        assert expected in (unit, None), panel["title"]


def exported_labels() -> dict[str, set[str]]:
    """Returns the labels of each metric, by its name in PromQL. Prometheus adds `instance`."""
    labels: dict[str, set[str]] = {}
    for family in (*FAMILIES, *FLEET_FAMILIES):
        own = {*family.labels, "instance"}
        labels |= {family.name + suffix: own for suffix in ("", "_sum", "_count")}
        labels[f"{family.name}_bucket"] = {*own, "le"}
    return labels


def expressions(dashboard: Any) -> list[tuple[str, str]]:
    """Returns every expression with the legend or title that is made of its labels."""
    return [
        *(
            (target["expr"], target["legendFormat"])
            for panel in graphs(dashboard)
            for target in panel["targets"]
        ),
        *((item["expr"], item["titleFormat"]) for item in dashboard["annotations"]["list"]),
        *(
            (item["definition"], "")
            for item in dashboard["templating"]["list"]
            if item["type"] == "query"
        ),
    ]


def test_panels_read_only_exported_metrics(dashboard: Any):
    for expr, _ in expressions(dashboard):
        metrics = re.findall(r"\b(?:serving|process|fleet)_[a-z0-9_]+\b", expr)
        assert metrics
        assert set(metrics) <= set(exported_labels()), expr


def test_every_own_metric_has_a_panel_or_a_rule():
    read = set(re.findall(r"\b(?:serving|fleet)_[a-z0-9_]+\b", "\n".join(_shown_expressions())))
    of_others = {*PROCESS_FAMILIES, *TENSORFLOW_SERVING_FAMILIES}
    assert [
        family.name
        for family in (*FAMILIES, *FLEET_FAMILIES)
        if family not in of_others
        and not read & {family.name + suffix for suffix in ("", "_bucket", "_count", "_sum")}
    ] == []


def _shown_expressions() -> list[str]:
    """Returns the expressions of all panels and rules, without descriptions and comments."""
    of_panels = [
        target["expr"]
        for path in FILES
        for panel in graphs(json.loads(path.read_text()))
        for target in panel["targets"]
    ]
    groups = [group for text in RULES.values() for group in yaml.safe_load(text)["groups"]]
    return [*of_panels, *(str(rule["expr"]) for group in groups for rule in group["rules"])]


def test_panels_read_only_labels_of_their_metrics(dashboard: Any):
    labels_of = exported_labels()
    for expr, legend in expressions(dashboard):
        selectors = re.findall(r"\b((?:serving|process|fleet)_[a-z0-9_]+)(?:\{([^}]*)\})?", expr)
        for metric, selector in selectors:
            assert set(re.findall(r"(\w+)(?:=|!)", selector)) <= labels_of[metric], expr
        known = set[str]().union(*(labels_of[metric] for metric, _ in selectors))
        grouped = {
            name for names in re.findall(r"by \(([^)]*)\)", expr) for name in names.split(", ")
        }
        assert grouped <= known, expr
        made = set(re.findall(r'label_join\(.*, "(\w+)", "/"', expr))
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= known | made, legend


# --- Limits ---------------------------------------------------------------------------------------------


P999_SLO = "slo:serving_request_latency_seconds:p999"
LIMITS = {
    ("overview", "Highest p999"): limit(P999_SLO),
    ("overview", "p50, p99 and p999 of each model"): limit(P999_SLO),
    ("overview", "p999 and p99 of each version"): limit(P999_SLO),
    ("overview", "Failed by the server"): limit("slo:serving_requests_failed:ratio"),
    ("overview", "Failed requests"): limit("slo:serving_requests_failed:ratio"),
    ("swap", "p999 before, during and after"): limit(P999_SLO),
    ("swap", "p999 and p99 of each version"): limit(P999_SLO),
    ("swap", "p999 during over before"): limit("guard:serving_swap_p999:ratio"),
    ("swap", "Duration"): limit("guard:serving_swap_seconds"),
    ("memory", "Memory in use"): 1 - limit("guard:serving_memory_available:ratio"),
}
"""The limit of the rules that a panel draws in red, by dashboard and title."""


def test_panels_draw_the_limits_of_the_rules():
    drawn = {
        (path.stem, panel["title"]): thresholds(panel)
        for path in FILES
        for panel in graphs(json.loads(path.read_text()))
    }
    assert {key: drawn[key][-1] for key in LIMITS} == LIMITS


def test_failed_by_server_has_the_codes_of_the_rules():
    overview = json.loads((DEPLOY / "grafana" / "overview.json").read_text())
    (panel,) = (panel for panel in graphs(overview) if panel["title"] == "Failed by the server")
    (codes,) = re.findall(r'code=~"[^"]*"', panel["targets"][0]["expr"])
    assert codes in RECORDING_RULES
