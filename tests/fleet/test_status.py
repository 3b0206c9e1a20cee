import json
from dataclasses import replace

from fleet.http.status import fleet_status
from fleet.rollout.comparison import Comparison
from fleet.rollout.ends import WITHOUT_CAUSE
from fleet.rollout.reports import ModelReport, ServerReport, Sighting, VersionReport
from fleet.rollout.state import FleetRollout, FleetState, ModelState
from fleet.rollout.trial import WaveId
from fleet.rollout.watch import ModelWatch
from serving.base.clock import NS_PER_SECOND
from serving.core.servable import AVAILABLE, END
from tests.fleet.worlds.fleet import NO_MEMORY, SETTINGS, requests, serving

FOUND = frozenset({1, 2})
NOW_NS = 100 * NS_PER_SECOND


def status_of(model: ModelState, **reports: ModelReport | None) -> dict[str, object]:
    sightings = {
        name: Sighting(None if report is None else ServerReport(models={"m": report}), NOW_NS)
        for name, report in reports.items()
    }
    status = fleet_status(FleetState(models={"m": model}), {}, sightings, SETTINGS, NOW_NS)
    json.dumps(status)
    return status


def test_status_adds_the_requests_of_all_servers() -> None:
    row = VersionReport(state=AVAILABLE, figures=requests(100, failed=1))
    report = ModelReport(granted=1, default_version=1, found=FOUND, versions={1: row})
    status = status_of(ModelState(stable=1), a=report, b=report)
    (version,) = status["models"]["m"]["versions"]  # type: ignore[index]
    assert (version["server_count"], version["default_count"]) == (2, 2)
    assert (version["request_count"], version["failed_count"]) == (200, 2)
    assert 2.0 <= version["p999_ms"] < 2.3


def test_status_shows_a_rollout() -> None:
    rollout = FleetRollout(version=2, members={"a": 1}, failed_servers=frozenset({"b"}))
    status = status_of(
        ModelState(stable=1, rollout=rollout),
        a=serving(2, found=FOUND),
        b=serving(1, found=FOUND),
        c=serving(1, found=FOUND),
    )
    shown = status["models"]["m"]["rollout"]  # type: ignore[index]
    assert (shown["version"], shown["wave"], shown["wave_count"]) == (2, 1, 3)
    assert (shown["serving_count"], shown["needed_count"]) == (1, 1)
    assert (shown["members"], shown["setbacks"]) == (["a"], ["b"])


def test_status_has_the_cause_of_each_failed_server() -> None:
    rollout = FleetRollout(version=2, members={"a": 1}, failed_servers=frozenset({"b", "c"}))
    failed = VersionReport(state=END, health=NO_MEMORY)
    status = status_of(
        ModelState(stable=1, rollout=rollout),
        a=serving(2, found=FOUND),
        b=replace(serving(1, found=FOUND), versions={2: failed}),
        c=serving(1, found=FOUND),
    )
    shown = status["models"]["m"]["rollout"]  # type: ignore[index]
    assert shown["causes"] == {"b": NO_MEMORY.message, "c": WITHOUT_CAUSE}


def test_status_shows_how_far_a_judgement_is() -> None:
    rollout = FleetRollout(version=2, members={"a": 1})
    model = ModelState(stable=1, rollout=rollout)
    report = ServerReport(models={"m": serving(2, found=FOUND)})
    watch = ModelWatch(
        comparison=Comparison(wave=WaveId(0, 0), full_since_ns=NOW_NS - 3 * NS_PER_SECOND)
    )
    status = fleet_status(
        FleetState(models={"m": model}),
        {"m": watch},
        {"a": Sighting(report, NOW_NS)},
        SETTINGS,
        NOW_NS,
    )
    assert status["models"]["m"]["rollout"]["judgement"] == {
        "request_count": SETTINGS.judgement.request_count,
        "seconds": SETTINGS.judged_seconds,
        "passed_seconds": 3.0,
    }


def test_status_of_a_new_wave_has_no_seconds_of_before() -> None:
    rollout = FleetRollout(version=2, wave_index=1, members={"a": 1})
    watch = ModelWatch(comparison=Comparison(wave=WaveId(0, 0), full_since_ns=0))
    status = fleet_status(
        FleetState(models={"m": ModelState(stable=1, rollout=rollout)}),
        {"m": watch},
        {"a": Sighting(ServerReport(models={"m": serving(2, found=FOUND)}), NOW_NS)},
        SETTINGS,
        NOW_NS,
    )
    assert status["models"]["m"]["rollout"]["judgement"]["passed_seconds"] is None


def test_status_has_the_state_of_each_server() -> None:
    report = ServerReport(models={"m": serving(1, found=FOUND)})
    sightings = {
        "live": Sighting(report, NOW_NS),
        "lost": Sighting(report, 0),
        "unknown": Sighting(None, NOW_NS),
        "draining": Sighting(ServerReport(is_draining=True), NOW_NS),
    }
    status = fleet_status(FleetState(), {}, sightings, SETTINGS, NOW_NS)
    assert {row["name"]: row["state"] for row in status["servers"]} == {
        name: name for name in sightings
    }


def test_servers_are_sorted_by_their_numbers() -> None:
    names = ["s1", "s2", "s10", "s10b", "s11", "server-3", "server-20"]
    report = ServerReport(models={"m": serving(1, found=FOUND)})
    sightings = {name: Sighting(report, NOW_NS) for name in sorted(names)}
    rollout = FleetRollout(version=2, failed_servers=frozenset({"s10", "s2"}))
    state = FleetState(models={"m": ModelState(stable=1, rollout=rollout)})
    status = fleet_status(state, {}, sightings, SETTINGS, NOW_NS)
    assert [row["name"] for row in status["servers"]] == names
    assert status["models"]["m"]["rollout"]["setbacks"] == ["s2", "s10"]


def test_servers_without_the_stable_version_are_named() -> None:
    status = status_of(
        ModelState(stable=1),
        a=serving(2, found=frozenset({2})),
        b=serving(2, found=FOUND),
        c=serving(1, found=frozenset({2})),
        d=None,
    )
    assert status["models"]["m"]["without_files"] == ["a"]  # type: ignore[index]


def test_servers_with_a_later_grant_are_named() -> None:
    status = status_of(
        ModelState(stable=1),
        a=serving(1, found=FOUND, order=0),
        b=serving(1, found=FOUND, order=1),
    )
    assert status["models"]["m"]["ignored_by"] == ["b"]  # type: ignore[index]


def test_status_counts_the_failures_of_the_last_wave() -> None:
    row = VersionReport(state=AVAILABLE, figures=requests(50, failed=7))
    report = replace(serving(2, found=FOUND), versions={2: row})
    rollout = FleetRollout(version=2, wave_index=len(SETTINGS.sizes))
    shown = status_of(ModelState(stable=1, rollout=rollout), a=report)["models"]["m"]["rollout"]  # type: ignore[index]
    assert (shown["request_count"], shown["failed_count"]) == (50, 7)
