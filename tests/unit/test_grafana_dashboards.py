"""The dashboards' files as Grafana reads them: current, whole, and in nobody's way.

Whether their expressions have data is asked of a real Prometheus in tests/integration/test_dashboards.py.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import grafana_dashboards
import pytest
from grafana import memory, overview, panels
from grafana.model import COLUMN_COUNT, Panel, Row, _laid_out

from serving.monitoring.metric_families import FAMILIES

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted((DEPLOY / "grafana").glob("*.json"))
RECORDING_RULES = (DEPLOY / "prometheus" / "recording_rules.yml").read_text()

# Of Grafana's list (packages/grafana-data, valueFormats/categories.ts), those that fit what we measure.
UNITS = {"none", "short", "s", "bytes", "percentunit", "reqps", "ops", "cps"}

KINDS = {"bargauge", "heatmap", "row", "stat", "state-timeline", "table", "timeseries"}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text())


def graphs(dashboard: Any) -> list[Any]:
    """Panels that are no headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def cells(panel: Any) -> set[tuple[int, int]]:
    """The places of the grid that a panel takes."""
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


def limit(name: str) -> float:
    """A constant of the recording rules."""
    found = re.search(rf"record: {name}\n +expr: vector\((.*)\)\n", RECORDING_RULES)
    assert found is not None, name
    return float(found[1])


# --- The files ------------------------------------------------------------------------------------------


def test_files_are_what_the_script_writes():
    remedy = "run scripts/grafana_dashboards.py"
    assert grafana_dashboards.stale_files(grafana_dashboards.DIRECTORY) == [], remedy
    assert {path.name for path in FILES} == set(grafana_dashboards.DASHBOARDS)


def test_edited_or_missing_file_is_stale(tmp_path: Path):
    for path in FILES:
        (tmp_path / path.name).write_text(path.read_text())
    assert grafana_dashboards.stale_files(tmp_path) == []
    (tmp_path / "swap.json").write_text("{}")
    (tmp_path / "memory.json").unlink()
    assert grafana_dashboards.stale_files(tmp_path) == ["swap.json", "memory.json"]


def test_check_fails_and_names_the_stale_file(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(grafana_dashboards, "DIRECTORY", tmp_path)
    assert grafana_dashboards.main(["--check"]) == 1
    assert f"{tmp_path / 'swap.json'} is not current" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert grafana_dashboards.main([]) == 0
    assert grafana_dashboards.main(["--check"]) == 0


# --- What Grafana wants of an import --------------------------------------------------------------------


def test_dashboard_can_be_imported_and_provisioned(dashboard: Any):
    assert (
        dashboard["schemaVersion"] >= 36
    )  # Grafana 9; 10 and 11 migrate what is older than they are
    assert dashboard["id"] is None, "Grafana gives it one"
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


def test_all_queries_use_chosen_data_source(dashboard: Any):
    askers = [
        *graphs(dashboard),
        *(target for panel in graphs(dashboard) for target in panel["targets"]),
        *(item for item in dashboard["templating"]["list"] if item["type"] == "query"),
        *dashboard["annotations"]["list"],
    ]
    assert {item["datasource"]["uid"] for item in askers} == {"${datasource}"}


# --- Panels -----------------------------------------------------------------------------------------------


def test_panels_have_numbers_of_their_own(dashboard: Any):
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_panels_fit_grid_without_overlap(dashboard: Any):
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


def test_every_panel_has_a_unit_that_grafana_knows(dashboard: Any):
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in graphs(dashboard)} <= UNITS


def test_targets_have_expression_legend_and_letter(dashboard: Any):
    for panel in graphs(dashboard):
        targets = panel["targets"]
        assert targets, panel["title"]
        assert all(target["expr"] and target["legendFormat"] for target in targets), panel["title"]
        assert len({target["refId"] for target in targets}) == len(targets)


def test_thresholds_ascend(dashboard: Any):
    for panel in graphs(dashboard):
        first, *others = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert first["value"] is None
        values = [step["value"] for step in others]
        assert values == sorted(set(values))


def test_panel_of_seconds_or_bytes_says_so(dashboard: Any):
    """By the unit that the first metric's name ends in, unless a ratio or a count is made of it."""
    made_of = re.compile(r"(?:rate|increase|count) ?\(|/")
    for panel in graphs(dashboard):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        expr = panel["targets"][0]["expr"]
        if made_of.search(re.sub(r'"[^"]*"', "", expr)):
            continue
        (metric, *_) = re.findall(r"\b(?:serving|process)_\w+", expr)
        expected = {"seconds": "s", "bytes": "bytes"}.get(metric.rpartition("_")[2])
        assert expected in (unit, None), panel["title"]


def test_panels_read_only_metrics_that_there_are(dashboard: Any):
    names = {family.name for family in FAMILIES}
    known = {f"{name}{suffix}" for name in names for suffix in ("", "_bucket", "_sum", "_count")}
    text = json.dumps(dashboard)
    assert set(re.findall(r"\b(?:serving|process)_[a-z_]+\b", text)) <= known


def test_panels_wrap_to_next_line_if_full():
    def panel(width: int, height: int) -> Panel:
        return Panel(
            title="t", description="d", queries={"l": "e"}, unit="s", width=width, height=height
        )

    rows = [
        Row(title="first", panels=[panel(12, 4), panel(12, 8), panel(8, 2)]),
        Row(title="second", panels=[panel(24, 1)]),
    ]
    places = [tuple(item["gridPos"][key] for key in "xywh") for item in _laid_out(rows)]
    assert places == [
        (0, 0, 24, 1),
        (0, 1, 12, 4),
        (12, 1, 12, 8),
        (0, 9, 8, 2),
        (0, 11, 24, 1),
        (0, 12, 24, 1),
    ]


# --- Limits ---------------------------------------------------------------------------------------------


def test_panel_lines_match_rule_limits():
    assert limit("slo:serving_request_latency_seconds:p999") == panels.P999_SLO_SECONDS
    assert limit("slo:serving_requests_failed:ratio") == panels.FAILED_RATIO_MAX
    assert limit("guard:serving_swap_p999:ratio") == panels.SWAP_P999_RATIO_MAX
    assert limit("guard:serving_swap_seconds") == panels.SWAP_SECONDS_MAX
    assert limit("guard:serving_memory_available:ratio") == memory.MEMORY_LEFT_RATIO_MIN
    assert f'code=~"{overview.FAILED_BY_SERVER}"' in RECORDING_RULES
