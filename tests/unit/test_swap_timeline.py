"""SwapTimeline: the swaps that it derives from the states of versions and from concurrent requests."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    UNLOADING,
    GateVerdict,
    Health,
    LoadStage,
    ServableId,
    ServableStatus,
    UnloadStage,
)
from serving.manager.listener import ROLLED_BACK
from serving.monitoring.swap_record import SwapRecord, SwapResult, trace_document
from serving.monitoring.swap_routes import swap_routes
from serving.monitoring.swap_timeline import RECORD_COUNT_MAX
from tests.unit.worlds.swaps import World


@pytest.fixture
def world() -> World:
    world = World()
    world.load(1)
    world.pass_time(30)
    return world


def test_swap_has_load_and_unload_stages_in_order(world: World) -> None:
    world.swap(1, 2)
    stages = [(stage.task, stage.name, stage.version) for stage in world.newest.stages]
    assert stages == [
        ("source", "settle", 2),
        ("source", "wait", 2),
        ("load", "restore", 2),
        ("load", "publish", 2),
        ("unload", "quiesce", 1),
        ("unload", "destroy", 1),
        ("unload", "return_slab", 1),
    ]
    for earlier, later in zip(world.newest.stages, world.newest.stages[1:]):
        assert earlier.ended_at_ns <= later.began_at_ns


def test_swap_names_both_versions_and_sums_costs(world: World) -> None:
    world.swap(1, 2)
    record = world.newest
    assert (record.version, record.previous_version) == (2, 1)
    assert record.result is SwapResult.PUBLISHED
    assert record.figures["load_cpu_seconds"] == 1.5
    assert record.figures["unload_cpu_seconds"] == 0.125
    assert world.timeline.counts() == {("m", "published"): 2}


def test_parts_of_swap_hold_requests_ended_in_them(world: World) -> None:
    world.requests.answer(1)
    world.pass_time(1)
    world.report(2, START)
    world.report(2, LOADING)
    world.end_stage(2, LoadStage.RESTORE, 2)
    world.requests.answer(7)
    world.end_stage(2, LoadStage.PUBLISH, 0.001)
    world.report(2, AVAILABLE)
    world.unload(1)
    world.requests.answer(9)
    world.pass_time(1)
    world.clock.advance(0.125)
    world.requests.answer(3)
    world.pass_time(11)
    record = world.newest
    assert record.before is not None
    assert (record.before.request_count, record.before.max_seconds) == (1, 0.001)
    assert record.during is not None
    assert (record.during.request_count, record.during.max_seconds) == (2, 0.009)
    assert record.after is not None
    assert (record.after.request_count, record.after.max_seconds) == (1, 0.003)


def test_swap_counts_unmatched_requests_too(world: World) -> None:
    world.report(2, START)
    world.report(2, LOADING)
    world.clock.advance(2)
    world.requests.answer(5, is_failed=True)
    for _ in range(3):
        world.requests.answer(1, model="")
    world.end_stage(2, LoadStage.PUBLISH, 1)
    world.report(2, AVAILABLE)
    world.unload(1)
    world.pass_time(12)
    during, after = world.newest.during, world.newest.after
    assert during is not None
    assert after is not None
    assert (during.request_count, during.failed_count, during.unmatched_count) == (1, 1, 3)
    assert (after.failed_count, after.unmatched_count) == (0, 0)


def test_swap_excludes_requests_of_other_models(world: World) -> None:
    world.load(2)
    world.requests.answer(50, model="other")
    world.unload(1)
    world.pass_time(12)
    assert world.newest.during is not None
    assert world.newest.during.request_count == 0


def test_swap_is_logged_once_after_its_effect(world: World) -> None:
    world.swap(1, 2)
    world.requests.answer(9)
    with capture_logs() as logs:
        world.pass_time(10.75)
        assert not logs
        world.pass_time(20)
    (line,) = logs
    assert (line["event"], line["version"], line["result"]) == ("swap", 2, "published")
    assert line["seconds"] > 0
    assert "latency_seconds_p999_during" in line
    # The logged event with the time, which the log's own configuration adds.
    assert len(line) + 1 <= 10


def test_failed_swap_is_logged_in_ten_keys(world: World) -> None:
    world.report(2, START)
    world.report(2, LOADING)
    refused = GateVerdict(gate="drift", mode="enforce", is_passed=False, reason="NaN")
    world.report(2, END, health=Health(StatusCode.FAILED_PRECONDITION, "NaN"), verdicts=(refused,))
    with capture_logs() as logs:
        world.pass_time(30)
    (line,) = logs
    # The reason is in `load_failed`, and in the record.
    assert (line["result"], "reason" in line) == ("refused", False)
    assert world.newest.reason == "NaN"
    assert len(line) + 1 <= 10


def test_outstanding_slab_keeps_swap_open(world: World) -> None:
    world.slab_pool.is_due = True
    world.swap(1, 2)
    world.pass_time(5)
    assert world.newest.ended_at_ns is None
    world.slab_pool.is_due = False
    world.pass_time(0.25)
    returned = world.newest.stages[-1]
    assert (returned.name, returned.seconds) == ("return_slab", 5.25)
    assert world.newest.ended_at_ns == returned.ended_at_ns


def test_timeline_slab_that_is_due_for_ever_does_not(world: World) -> None:
    world.slab_pool.is_due = True
    world.swap(1, 2)
    world.pass_time(75)
    assert world.newest.after is not None


def test_timeline_failed_load_has_its_reason(world: World) -> None:
    world.report(2, START)
    world.report(2, LOADING)
    world.report(2, END, health=Health(StatusCode.DATA_LOSS, "bad checksum"))
    assert world.newest.result is SwapResult.LOAD_FAILED
    assert world.newest.reason == "bad checksum"
    assert world.newest.published_at_ns is None
    assert world.timeline.counts()["m", "load_failed"] == 1


def test_version_rejected_by_enforced_gate_is_refused(world: World) -> None:
    verdict = GateVerdict(gate="golden", mode="enforce", is_passed=False, reason="NaN")
    world.report(2, START)
    world.report(2, LOADING)
    world.report(
        2, END, verdicts=(verdict,), health=Health(StatusCode.FAILED_PRECONDITION, "golden: NaN")
    )
    assert world.newest.result is SwapResult.REFUSED
    assert world.newest.verdicts == (verdict,)


def test_version_failed_after_warning_is_not_refused(world: World) -> None:
    verdict = GateVerdict(gate="golden", mode="warn", is_passed=False)
    world.report(2, START)
    world.report(2, LOADING)
    world.report(2, END, verdicts=(verdict,), health=Health(StatusCode.INTERNAL, "bug"))
    assert world.newest.result is SwapResult.LOAD_FAILED


def test_version_omitted_during_load_is_cancelled(world: World) -> None:
    world.report(2, START)
    world.report(2, LOADING)
    world.report(2, END, health=Health(StatusCode.CANCELLED, "no longer aspired"))
    assert world.newest.result is SwapResult.CANCELLED


def test_version_omitted_before_any_stage_has_no_swap(world: World) -> None:
    before = world.timeline.records()
    world.report(2, START)
    world.report(2, END, health=Health(StatusCode.CANCELLED, "no longer aspired"))
    assert world.timeline.records() == before


def test_timeline_version_that_just_goes_is_an_unload(world: World) -> None:
    world.unload(1)
    assert (world.newest.version, world.newest.result) == (1, SwapResult.UNLOADED)
    assert [stage.name for stage in world.newest.stages] == ["quiesce", "destroy", "return_slab"]


def test_unload_beside_answering_version_stands_alone(
    world: World,
) -> None:
    world.load(2)
    world.pass_time(20)
    world.unload(1)
    assert (world.newest.result, world.newest.previous_version) == (SwapResult.UNLOADED, None)


def test_old_version_leaving_first_belongs_to_swap(world: World) -> None:
    world.report(2, START)
    world.unload(1)
    world.report(2, LOADING)
    world.end_stage(2, LoadStage.PUBLISH, 1)
    world.report(2, AVAILABLE)
    record = world.newest
    assert (record.version, record.previous_version) == (2, 1)
    assert [stage.version for stage in record.stages if stage.name == "destroy"] == [1]


def test_timeline_rollback_is_a_swap_without_a_load(world: World) -> None:
    world.load(2)
    world.pass_time(20)
    world.timeline.default_version_changed("m", 1, 2, ROLLED_BACK)
    world.unload(2)
    world.pass_time(1)
    record = world.newest
    assert (record.version, record.previous_version) == (1, 2)
    assert record.result is SwapResult.ROLLED_BACK
    assert [stage.version for stage in record.stages] == [2, 2, 2]
    assert record.before is not None


def test_next_load_ends_comparison_of_previous_swap(world: World) -> None:
    world.swap(1, 2)
    world.pass_time(3)
    world.requests.answer(4)
    world.pass_time(0.25)
    world.swap(2, 3)
    world.pass_time(0.25)
    second, first = world.timeline.records()[:2]
    assert first.after is not None
    assert first.after.request_count == 1
    assert first.after.span_seconds < 3.25
    # The comparison does not include the swap before either.
    assert second.before is not None
    assert second.before.span_seconds == first.after.span_seconds


def test_slab_returned_before_load_is_not_counted(world: World) -> None:
    world.report(2, START)
    world.unload(1)
    world.pass_time(0.5)
    world.report(2, LOADING)
    world.end_stage(2, LoadStage.RESTORE, 5)
    world.report(2, AVAILABLE)
    world.pass_time(1)
    (slab,) = [stage for stage in world.newest.stages if stage.name == "return_slab"]
    assert slab.seconds < 0.5
    assert world.newest.ended_at_ns == world.newest.published_at_ns


def test_old_version_leaving_first_counts_as_during(world: World) -> None:
    world.report(2, START)
    world.report(1, UNLOADING)
    world.requests.answer(8)
    world.end_stage(1, UnloadStage.QUIESCE, 3)
    world.requests.answer(9)
    world.report(1, END)
    world.report(2, LOADING)
    world.end_stage(2, LoadStage.RESTORE, 5)
    world.report(2, AVAILABLE)
    world.pass_time(3)
    record = world.newest
    assert record.during is not None
    assert record.during.span_seconds == pytest.approx(9, abs=0.3)
    assert record.during.request_count == 1


def test_version_retaken_during_unload_is_swap(world: World) -> None:
    world.report(2, START)
    world.report(1, UNLOADING)
    world.report(2, END, health=Health(StatusCode.CANCELLED, "no longer aspired"))
    world.pass_time(3)
    world.end_stage(1, UnloadStage.DESTROY, 1)
    world.report(1, END)
    record = world.newest
    assert (record.version, record.result) == (2, SwapResult.CANCELLED)
    assert "destroy" in [stage.name for stage in record.stages]
    assert record.ended_at_ns == world.clock.now_ns()


def test_rollback_ends_comparison_of_previous_swap(world: World) -> None:
    world.swap(1, 2)
    world.pass_time(3)
    world.timeline.default_version_changed("m", 1, 2, ROLLED_BACK)
    world.clock.advance(1)
    world.requests.answer(4)
    rollback, swap = world.timeline.records()[:2]
    assert swap.after is not None
    assert rollback.before is not None
    assert rollback.before.span_seconds == swap.after.span_seconds < 3


def test_parallel_swap_of_model_has_no_comparison(world: World) -> None:
    world.report(2, START)
    world.report(3, START)
    world.report(2, LOADING)
    world.end_stage(2, LoadStage.RESTORE, 2)
    world.report(3, LOADING)
    assert [record.before is None for record in world.timeline.records()[:2]] == [True, False]


def test_later_events_are_not_during_parallel_swap(world: World) -> None:
    world.report(2, START)
    world.report(3, START)
    world.report(2, LOADING)
    world.report(3, LOADING)
    world.end_stage(2, LoadStage.PUBLISH, 1)
    world.report(2, AVAILABLE)
    world.pass_time(5)
    world.requests.answer(4)
    world.report(3, AVAILABLE)
    world.pass_time(20)
    third, second = world.timeline.records()[:2]
    assert (third.version, second.version) == (3, 2)
    assert third.after is not None
    assert second.after is not None
    assert second.after.request_count == 0


def test_running_load_is_shown_with_its_progress(world: World) -> None:
    world.report(2, START)
    world.report(2, LOADING)
    world.end_stage(2, LoadStage.RESTORE, 2)
    record = world.newest
    assert record.result is None
    assert record.stages[-1].name == "restore"


def test_version_aspired_again_much_later_starts_now(world: World) -> None:
    now_ns = world.clock.now_ns()
    status = ServableStatus(
        id=ServableId("m", 2),
        state=START,
        detected_at_ns=now_ns - 700 * NS_PER_SECOND,
        found_at_ns=now_ns - 600 * NS_PER_SECOND,
    )
    world.timeline.on_status(status)
    assert world.newest.began_at_ns == now_ns


def test_timeline_remembers_bounded_number_by_id(world: World) -> None:
    for version in range(2, RECORD_COUNT_MAX + 20):
        world.load(version)
        world.pass_time(15)
    for _ in range(2):
        # Two loads of the same version within one second.
        world.report(1, START)
        world.report(1, LOADING)
        world.report(1, END, health=Health(StatusCode.DATA_LOSS, "bad"))
    records = world.timeline.records()
    assert len(records) == RECORD_COUNT_MAX
    assert len({record.id for record in records}) == RECORD_COUNT_MAX
    assert [item.began_at_ns for item in records] == sorted(
        (item.began_at_ns for item in records), reverse=True
    )


# --- Over HTTP ----------------------------------------------------------------------------------------


@pytest.fixture
def get(world: World) -> Callable[[str], Any]:
    client = TestClient(Starlette(routes=swap_routes(world.timeline)))

    def get(path: str, status: int = 200) -> Any:
        response = client.get(path)
        assert response.status_code == status, response.text
        return json.loads(response.text)

    return get


def test_swaps_are_listed_newest_first_in_unix_time(world: World, get: Any) -> None:
    world.requests.answer(1)
    world.swap(1, 2)
    world.pass_time(15)
    newest, oldest = get("/v1/swaps")["swaps"]
    assert (newest["version"], oldest["version"]) == (2, 1)
    assert oldest["previous_version"] is None
    assert oldest["published_at"] - oldest["load_started_at"] == pytest.approx(2.001)
    assert newest["latency"]["before"]["p999_seconds"] == 0.001
    assert newest["cpu_seconds"] == 1.625
    assert get("/v1/swaps?model=other") == {"swaps": []}
    assert get(f"/v1/swaps/{newest['id']}") == newest


def test_swap_trace_has_each_stage_and_the_publish(world: World, get: Any) -> None:
    world.requests.answer(3)
    world.swap(1, 2)
    world.pass_time(15)
    events = get(f"/v1/swaps/{world.newest.id}/trace")["traceEvents"]
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert spans["restore"]["dur"] == 2_000_000
    assert spans["destroy"]["ts"] >= spans["restore"]["ts"] + 2_000_000
    assert [event["name"] for event in events if event["ph"] == "i"] == ["m/2 published"]
    counters = [event["args"] for event in events if event["ph"] == "C"]
    assert {"p50": 3.0, "p99": 3.0, "p999": 3.0} in counters
    assert trace_document(world.newest)["traceEvents"] == events


def test_swap_trace_accepts_any_model_name(world: World, get: Any) -> None:
    world.report(7, START, name="模型/ä")
    world.report(7, LOADING, name="模型/ä")
    assert get(f"/v1/swaps/{world.newest.id}/trace")["otherData"]["model"] == "模型/ä"


def test_unknown_swap_is_not_found(get: Any) -> None:
    assert "no swap 'm-9-1'" in get("/v1/swaps/m-9-1", 404)["error"]
    assert "no swap" in get("/v1/swaps/m-9-1/trace", 404)["error"]


def test_listener_receives_each_ended_swap_once(world: World) -> None:
    heard: list[SwapRecord] = []
    world.timeline.add_listener(heard.append)
    world.swap(1, 2)
    assert heard == []
    world.pass_time(30)
    assert heard == [world.newest]
    assert heard[0].after is not None


def test_many_first_loads_need_few_cuts() -> None:
    world = World()
    names = [f"model-{number}" for number in range(200)]
    for name in names:
        world.report(1, START, name=name)
    for name in names:
        world.report(1, LOADING, name=name)
        world.report(1, AVAILABLE, name=name)
    # No version has answered a request, so the statistics need no cut.
    assert world.requests.cut_count == 0
    world.pass_time(12)
    assert {record.model for record in world.timeline.records()} == set(names)
    assert all(record.after is not None for record in world.timeline.records())
    assert world.requests.cut_count == 2


def test_second_load_of_a_model_is_cut_from_the_first() -> None:
    world = World()
    world.load(1)
    world.pass_time(12)
    cut_count = world.requests.cut_count
    world.report(2, START)
    world.report(2, LOADING)
    assert world.requests.cut_count == cut_count + 1


def test_unloads_of_stop_open_no_swap_and_cut_nothing() -> None:
    world = World()
    names = [f"model-{number}" for number in range(200)]
    for state in (START, LOADING, AVAILABLE):
        for name in names:
            world.report(1, state, name=name)
    world.pass_time(12)
    before, cut_count = world.timeline.records(), world.requests.cut_count
    world.timeline.begin_stop()
    for state in (UNLOADING, END):
        for name in names:
            world.report(1, state, name=name)
    assert world.timeline.records() == before
    assert world.requests.cut_count == cut_count


def test_stop_logs_just_ended_swaps_with_one_cut() -> None:
    world = World()
    names = [f"model-{number}" for number in range(200)]
    for state in (START, LOADING, AVAILABLE):
        for name in names:
            world.report(1, state, name=name)
    with capture_logs() as logs:
        world.timeline.begin_stop()
    assert {line["model"] for line in logs} == set(names)
    assert world.requests.cut_count == 1
    assert all(record.during is None for record in world.timeline.records())


def test_stop_logs_a_swap_once_its_unload_is_over(world: World) -> None:
    world.load(2)
    world.report(1, UNLOADING)
    with capture_logs() as logs:
        world.timeline.begin_stop()
        world.report(2, UNLOADING)
        assert not logs
        world.end_stage(1, UnloadStage.QUIESCE, 0.5)
        world.report(1, END)
        world.report(2, END)
    (line,) = logs
    assert (line["version"], line["result"]) == (2, "published")
    assert [stage.version for stage in world.newest.stages if stage.name == "quiesce"] == [1]
    assert world.newest.during is not None
