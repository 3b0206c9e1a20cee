"""The metrics of a coordinator: events that are counted, and gauges of its status."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from fleet.http.api import FleetApi
from fleet.http.metric_families import FLEET_FAMILIES, LEADS, SERVERS, STATE_WRITES
from fleet.http.metrics import METRICS_PATH, FleetMetrics
from fleet.lead.coordinator import Coordinator
from fleet.rollout.operations import promoted
from fleet.rollout.reports import ModelReport, ServerReport
from fleet.rollout.state import FleetState
from serving.base.errors import Unavailable
from serving.core.blocked_versions import BlockedBy
from serving.http.app import HttpSettings, make_http_app
from serving.monitoring.metric_families import markdown_table
from tests.fleet.fakes.state_stores import MemoryStore
from tests.fleet.worlds.fleet import MODEL, SETTINGS, requests, serving
from tests.fleet.worlds.leads import lead_of
from tests.unit.fakes.clocks import FakeClock

FOUND = frozenset({1, 2})
DOCUMENT = Path(__file__).parents[2] / "docs" / "fleet.md"


class World:
    """Three servers with version 1 and the files of version 2, and a coordinator that decides once."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.metrics = FleetMetrics(self.clock)
        self.coordinator = Coordinator(
            self.store, lambda grants: None, SETTINGS, self.clock, self.metrics
        )
        self.coordinator.set_servers(["a", "b", "c"])
        for name in ("a", "b", "c"):
            self.report(name, serving(1, found=FOUND))
        self.problems: list[str] = []
        lead = lead_of(self.coordinator, problems=self.problems)
        api = FleetApi(lead, SETTINGS, self.clock, self.metrics)
        self.client = TestClient(make_http_app(api.routes, HttpSettings()))
        self.coordinator.step()

    def report(self, name: str, model: ModelReport) -> None:
        self.coordinator.receive(name, ServerReport(models={MODEL: model}))

    def values(self) -> dict[str, float]:
        """Returns each sample, named as in the text format."""
        text = self.client.get(METRICS_PATH).text
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if not line.startswith("#")
        }


@pytest.fixture
def world() -> World:
    return World()


def block(state: FleetState) -> FleetState:
    model = state.models[MODEL].with_block(2, BlockedBy.OPERATOR, "wrong", 0)
    return state.changed({MODEL: model})


def test_exposed_families_are_those_of_the_table(world: World) -> None:
    text = world.client.get(METRICS_PATH).text
    exposed = {
        metric.name: metric
        for metric in text_string_to_metric_families(text)
        if metric.name.startswith("fleet_") and not metric.name.endswith("_created")
    }
    assert exposed.keys() == {family.base_name for family in FLEET_FAMILIES}
    for family in FLEET_FAMILIES:
        metric = exposed[family.base_name]
        assert (metric.type, metric.documentation) == (family.kind, family.help)
        for sample in metric.samples:
            assert sample.labels.keys() - {"le"} == {*family.labels}, sample


def test_process_of_the_coordinator_is_measured(world: World) -> None:
    assert world.values()["process_cpu_seconds_total"] > 0


def test_metrics_of_the_document_are_those_of_the_code() -> None:
    assert markdown_table(FLEET_FAMILIES) in DOCUMENT.read_text()


def test_documented_metrics_of_a_fleet_exist() -> None:
    named = set(re.findall(r"`(fleet_[a-z_]+[a-z])(?:`|\{)", DOCUMENT.read_text()))
    assert named <= {family.name for family in FLEET_FAMILIES}


def test_gauges_show_a_rollout(world: World) -> None:
    values = world.values()
    of = f'model="{MODEL}",version="2"'
    assert values['fleet_servers{state="live"}'] == 3
    assert values['fleet_servers{state="lost"}'] == 0
    assert values[f'fleet_model_servers{{model="{MODEL}",version="1"}}'] == 3
    assert values[f'fleet_stable_version{{model="{MODEL}"}}'] == 1
    assert values[f"fleet_wave{{{of}}}"] == 1
    assert values[f"fleet_wave_serving_servers{{{of}}}"] == 0
    assert values[f"fleet_wave_needed_servers{{{of}}}"] == 1
    assert values[f"fleet_setbacks{{{of}}}"] == 0
    assert values[f"fleet_warned_servers{{{of}}}"] == 0


def test_silence_of_a_server_is_measured(world: World) -> None:
    world.clock.advance(20)
    for name in ("a", "b"):
        world.report(name, serving(1, found=FOUND))
    world.clock.advance(15)
    values = world.values()
    assert values["fleet_report_age_seconds_max"] == 35
    assert (values['fleet_servers{state="lost"}'], values['fleet_servers{state="live"}']) == (1, 2)


def test_problems_are_counted(world: World) -> None:
    assert world.values()["fleet_problems"] == 0
    world.problems += ["servers.json: no space left", "server m-0 does not start"]
    assert world.values()["fleet_problems"] == 2


def test_rollout_without_a_change_is_idle(world: World) -> None:
    name = f'fleet_rollout_idle_seconds{{model="{MODEL}",version="2"}}'
    world.clock.advance(20)
    assert world.values()[name] == 20
    (member,) = world.coordinator.state.models[MODEL].loading
    order = world.coordinator.state.order
    world.report(member, serving(2, found=FOUND, order=order))
    world.coordinator.step()
    assert world.values()[name] == 0


def test_wave_is_compared_with_its_control(world: World) -> None:
    (member,) = world.coordinator.state.models[MODEL].loading
    order = world.coordinator.state.order
    new = serving(2, found=FOUND, order=order)
    world.report(member, new)
    world.coordinator.step()
    of = f'model="{MODEL}",role="wave",version="2"'
    assert f"fleet_wave_requests{{{of}}}" in world.values()
    assert f"fleet_wave_p999_seconds{{{of}}}" not in world.values()
    world.report(member, with_requests(new, 2, requests(500, failed=3, latency_ns=8_000_000)))
    values = world.values()
    assert values[f"fleet_wave_requests{{{of}}}"] == 500
    assert values[f"fleet_wave_failed_requests{{{of}}}"] == 3
    assert 0.008 <= values[f"fleet_wave_p999_seconds{{{of}}}"] < 0.009
    assert 0.008 <= values[f"fleet_wave_p99_seconds{{{of}}}"] < 0.009
    assert values[f"fleet_wave_requests{{{of.replace('wave', 'control')}}}"] == 0


def with_requests(report: ModelReport, version: int, figures: Any) -> ModelReport:
    row = replace(report.versions[version], figures=figures)
    return replace(report, versions={version: row})


def test_verdicts_and_rollbacks_are_counted(world: World) -> None:
    by_operator = f'fleet_rollbacks_total{{by="operator",model="{MODEL}"}}'
    by_canary = f'fleet_rollbacks_total{{by="canary",model="{MODEL}"}}'
    assert (world.values()[by_operator], world.values()[by_canary]) == (0, 0)
    (member,) = world.coordinator.state.models[MODEL].loading
    new = serving(2, found=FOUND, order=world.coordinator.state.order)
    world.report(member, new)
    world.coordinator.step()
    world.report(member, with_requests(new, 2, requests(2_000, failed=2_000)))
    world.coordinator.step()
    values = world.values()
    assert values[f'fleet_verdicts_total{{gate="wave 1",model="{MODEL}",result="failed"}}'] == 1
    assert (values[by_operator], values[by_canary]) == (0, 1)
    assert values[f'fleet_blocked_versions{{model="{MODEL}"}}'] == 1
    (verdict,) = world.coordinator.state.models[MODEL].verdicts
    assert verdict.figures["version"] == 2
    assert verdict.figures["latency_seconds_p99"] > 0


def test_operators_rollback_is_counted(world: World) -> None:
    world.coordinator.operate(block)
    assert world.values()[f'fleet_rollbacks_total{{by="operator",model="{MODEL}"}}'] == 1


def test_decisions_and_writes_are_counted(world: World) -> None:
    before = world.values()
    world.store.is_full = True
    with pytest.raises(OSError, match="space"):
        world.coordinator.operate(block)
    world.store.is_full = False
    world.coordinator.operate(block)
    world.coordinator.step()
    after = world.values()

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("fleet_state_writes_failed_total") == 1
    assert grown("fleet_state_writes_total") >= 1
    assert grown("fleet_decision_seconds_count") == 1


def test_calls_are_counted_by_kind(world: World) -> None:
    assert world.values()['fleet_calls_failed_total{call="report"}'] == 0
    world.metrics.called("report", is_ok=True)
    world.metrics.called("report", is_ok=False)
    world.metrics.called("grant", is_ok=True)
    values = world.values()
    assert values['fleet_calls_total{call="report"}'] == 2
    assert values['fleet_calls_failed_total{call="report"}'] == 1
    assert values['fleet_calls_total{call="grant"}'] == 1


def test_coordinator_that_does_not_lead_has_no_gauges() -> None:
    metrics = FleetMetrics(FakeClock())

    def status() -> dict[str, object]:
        raise Unavailable("another one leads")

    metrics.show(status)
    page = metrics.page().decode()
    assert f"\n{STATE_WRITES.name} 0.0" in page
    assert f"\n{LEADS.name} 0.0" in page
    assert SERVERS.name not in page


def test_coordinator_that_leads_shows_that(world: World) -> None:
    assert world.values()["fleet_leads"] == 1


def test_write_of_a_takeover_is_counted() -> None:
    clock, store = FakeClock(), MemoryStore()
    metrics = FleetMetrics(clock)
    store.is_full = True
    with pytest.raises(OSError, match="space"):
        Coordinator(store, lambda grants: None, SETTINGS, clock, metrics)
    store.is_full = False
    Coordinator(store, lambda grants: None, SETTINGS, clock, metrics)
    page = metrics.page().decode()
    assert "\nfleet_state_writes_failed_total 1.0" in page
    assert "\nfleet_state_writes_total 1.0" in page


def test_last_wave_has_its_requests_without_a_control(world: World) -> None:
    world.coordinator.operate(lambda state: promoted(state, MODEL, SETTINGS))
    world.coordinator.step()
    for name in ("a", "b", "c"):
        new = serving(2, found=FOUND, order=world.coordinator.state.order)
        world.report(name, with_requests(new, 2, requests(200, failed=4)))
        world.coordinator.step()
    labels = f'model="{MODEL}",role="wave",version="2"'
    values = world.values()
    assert values[f"fleet_wave_failed_requests{{{labels}}}"] == 12
    assert values[f"fleet_wave_requests{{{labels}}}"] == 600
    assert not any("control" in name for name in values)
