"""Every expression of dashboards, rules and alerts, evaluated by a real Prometheus that scrapes a
real server.

The server has been through a load, a swap and a failed load, under requests of which some failed.
Grafana itself is in neither Debian nor PyPI. Its part, replacing variables by values, is done here.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LOADING
from serving.monitoring.metrics_routes import PATHS
from tests.integration.clients import (
    caller_to,
    predict_request,
    refusal,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import REPOSITORY, StartServer
from tests.integration.exports import SMALL_SHARD, ScaleModel, flip_a_byte, write_warm_up
from tests.integration.held import Held
from tests.integration.prometheus import Prometheus, running_prometheus
from tests.integration.steady_clients import SteadyThreads, scale_clients

DEPLOY = Path(REPOSITORY) / "deploy"
RULE_FILES = [DEPLOY / "prometheus" / f"{name}_rules.yml" for name in ("recording", "alert")]

# A p999 needs at least this many requests (recording_rules.yml), before a swap and during it.
REQUEST_COUNT = 1_000

SCENARIO_SECONDS = 900
"""Longer than the scenario takes on a slow machine; a series that it had is looked for in this time."""

EMPTY_WHEN_HEALTHY = {
    'code=~"UNKNOWN|DEADLINE_EXCEEDED': "no request has failed by the server's fault",
    'serving_version_blocked{by="crash"}': "no version has crashed the server",
    "serving_request_log_": "the model logs no requests",
    "serving_accelerator_": "the server has no accelerator",
    "serving_gpu_": "the server has no accelerator",
    "serving_swap_read_bytes": "the model has no tables that versions share",
    "serving_swap_delta_restored_in_full": "the model has no tables that versions share",
}
"""Selectors of rules and panels without a series in the scenario: a part of the selector's text, and
the reason.
"""

FIRING = {"MillpondLoadFailed"}
"""Alerts that the scenario raises."""

MAY_FIRE = {"MillpondGateNotPassed", "MillpondSwapHurtTail"}
"""Alerts that depend on the machine of the test."""


class Case(NamedTuple):
    """One expression as it is in a file, and its place."""

    place: str
    expr: str


OF_A_FLEET = "fleet"
"""The dashboard of a coordinator, which this scenario of one server does not have."""


def dashboards() -> Iterator[tuple[str, Any]]:
    """Returns the dashboards of a server by name."""
    for path in sorted((DEPLOY / "grafana").glob("*.json")):
        if path.stem != OF_A_FLEET:
            yield path.stem, json.loads(path.read_text())


def dashboard_cases() -> list[Case]:
    """Returns the expressions of every target and annotation."""
    return [
        *(
            Case(f"{name}: {panel['title']} {target['refId']}", target["expr"])
            for name, dashboard in dashboards()
            for panel in dashboard["panels"]
            for target in panel.get("targets", ())
        ),
        *(
            Case(f"{name}: {annotation['name']}", annotation["expr"])
            for name, dashboard in dashboards()
            for annotation in dashboard["annotations"]["list"]
        ),
    ]


def variable_cases() -> list[Case]:
    """Returns the series that the values of each variable come from."""
    return [
        Case(f"{name}: ${variable['name']}", found)
        for name, dashboard in dashboards()
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
        for found in re.findall(r"^label_values\((.*), \w+\)$", variable["definition"])
    ]


ALL = {"instance": ".*", "model": ".*", "version": ".*"}


def filled_in(expr: str, variables: dict[str, str]) -> str:
    """Fills in an expression like Grafana: variables by name, and its own intervals for a range of
    an hour.
    """
    intervals = {"__rate_interval": "1m", "__interval": "15s", "__range": "1h"}
    for name, value in {**intervals, **variables}.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr, expr
    return expr


def selectors_of(expr: str) -> list[str]:
    """Returns the series that an expression reads."""
    names = r"(?:serving|process|up|model|slo|guard|instance_model|instance_version)"
    return re.findall(rf"\b({names}(?:[_:][a-z0-9_:]+)?\b(?:\{{[^}}]*\}})?)(?!\()", _bare(expr))


def _bare(expr: str) -> str:
    """The label lists of `by (...)` and `on (...)` hold names too, so they are removed."""
    return re.sub(r"\b(?:by|on|ignoring|without) \([^)]*\)", "", expr)


def is_empty_when_healthy(selector: str) -> bool:
    return any(part in selector for part in EMPTY_WHEN_HEALTHY)


# --- The scenario -----------------------------------------------------------------------------------------


def _fail_a_request(target: str) -> None:
    wrong = predict_request("scale", {"x": np.array([1, 2], np.int32)})
    with caller_to(target) as caller:
        assert refusal(lambda: caller.predict(wrong))[0] is grpc.StatusCode.INVALID_ARGUMENT


class RowsClient(SteadyThreads):
    """A client of the signature whose requests are batched."""

    def __init__(self, target: str) -> None:
        super().__init__(1)
        self._target = target

    def run(self, number: int) -> None:
        del number
        with Client(self._target) as client:
            while not self.is_stopping:
                self.pause()
                client.predict("scale", {"x": np.ones(2, np.float32)}, signature_name="rows")


def _live_through(
    server: ModelServer, prometheus: Prometheus, scale_model: ScaleModel, base_path: Path
) -> None:
    """Runs requests, a swap under load and a broken version, and waits until Prometheus has all of
    it.
    """
    clients, rows = scale_clients(server.target, count=2), RowsClient(server.target)
    with clients.running(), rows.running(), Client(server.target) as client:
        _fail_a_request(server.target)
        clients.wait_for_answers_of(1, REQUEST_COUNT)
        # The swap lasts until it has had enough requests, however fast the machine loads.
        held = Held(base_path.parent)
        scale_model.write(
            base_path,
            2,
            prepare=lambda beside: write_warm_up(beside, "scale", [held.inputs], "held"),
        )
        wait_for_states(client, "scale", {1: AVAILABLE, 2: LOADING})
        clients.wait_for_answers_of(1, REQUEST_COUNT)
        held.release()
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        clients.wait_for_answers_of(2, REQUEST_COUNT)
        after = 'serving_swap_latency_seconds{part="after",quantile="0.999"}'
        prometheus.wait_for(after, len)
        # The next swap replaces these figures.
        prometheus.wait_for("instance_model:serving_swap_p999:ratio", len)
        scale_model.write(
            base_path, 3, prepare=lambda directory: flip_a_byte(directory / SMALL_SHARD, 0)
        )
        wait_for_states(client, "scale", {2: AVAILABLE, 3: END})
        _fail_a_request(server.target)
        failed = 'increase(serving_swaps_total{result="load_failed"}[1m]) > 0'
        prometheus.wait_for(failed, len)


@pytest.fixture(scope="module")
def prometheus(
    start_module_server: StartServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """Returns Prometheus after the scenario."""
    directory = tmp_path_factory.mktemp("prometheus")
    base_path = directory / "base"
    base_path.mkdir()
    scale_model = ScaleModel(directory / "export", has_rows=True, has_held=True)
    scale_model.write(base_path, 1)
    server = start_module_server(
        model_name="scale",
        base_path=base_path,
        model_memory_limit_bytes=2_000_000_000,
        enable_batching=True,
        slow_request_log_seconds=60,  # without tracing there are no spans, and none are dropped
    )
    wait_until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200, "ready")
    metrics_url = f"{server.url}{PATHS[0]}"
    with running_prometheus(directory, metrics_url, rule_files=RULE_FILES) as running:
        running.wait_for('serving_model_ready{model="scale"} == 1', len)
        _live_through(server, running, scale_model, base_path)
        yield running


# --- Dashboards -------------------------------------------------------------------------------------------


def test_every_panel_has_something_to_show(prometheus: Prometheus):
    series_of = {
        case: prometheus.query_range(filled_in(case.expr, ALL), seconds=SCENARIO_SECONDS)
        for case in dashboard_cases()
    }
    empty = {case.expr for case, series in series_of.items() if not series}
    assert [expr for expr in sorted(empty) if not is_empty_when_healthy(expr)] == []


def test_every_panel_filters_by_model_and_version(prometheus: Prometheus):
    instance = prometheus.query("serving_build_info")[0].labels["instance"]
    # Grafana escapes a value for the regular expression, and then for PromQL's string.
    escaped = re.escape(instance).replace("\\", "\\\\")
    chosen = {"instance": escaped, "model": "scale", "version": "(1|2)"}
    for case in dashboard_cases():
        series = prometheus.query_range(filled_in(case.expr, chosen), seconds=SCENARIO_SECONDS)
        assert series or is_empty_when_healthy(case.expr), case
        assert {labels.get("model", "scale") for labels in series} <= {"scale"}, case
        if "build" not in case.expr:
            assert {labels.get("version", "2") for labels in series} <= {"1", "2"}, case


def test_panels_show_only_chosen_series(prometheus: Prometheus):
    none = {"instance": "no such", "model": "no such", "version": "no such"}
    for case in dashboard_cases():
        samples = prometheus.query(filled_in(case.expr, none))
        assert [sample for sample in samples if sample.value] == [], case


def test_every_variable_has_values(prometheus: Prometheus):
    for case in variable_cases():
        assert prometheus.query(filled_in(case.expr, ALL)) != [], case


# --- Rules ------------------------------------------------------------------------------------------------


def test_every_rule_is_evaluated_without_error(prometheus: Prometheus):
    rules = prometheus.rules()
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    assert len(rules) > 20


def test_every_recording_rule_has_recorded(prometheus: Prometheus):
    names = [rule["name"] for rule in prometheus.rules() if rule["type"] == "recording"]
    assert [
        name for name in names if not prometheus.query_range(name, seconds=SCENARIO_SECONDS)
    ] == []


def test_every_rule_reads_existing_series(prometheus: Prometheus):
    for rule in prometheus.rules():
        selectors = selectors_of(rule["query"])
        assert selectors or rule["query"].startswith("vector("), rule
        for selector in selectors:
            has_series = bool(prometheus.query_range(selector, seconds=SCENARIO_SECONDS))
            assert has_series != is_empty_when_healthy(selector), (rule["name"], selector)


def test_only_the_alert_of_the_failed_load_fires(prometheus: Prometheus):
    prometheus.wait_for('ALERTS{alertname="MillpondLoadFailed",alertstate="firing"}', len)
    firing = {item.labels["alertname"] for item in prometheus.query('ALERTS{alertstate="firing"}')}
    assert firing - MAY_FIRE == FIRING
