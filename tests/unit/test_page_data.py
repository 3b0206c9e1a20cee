"""The live page's data: only new data, and no figure of too few requests."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.core.servable import (
    END,
    LOADING,
    UNLOADING,
    GateVerdict,
    Health,
    LoadStage,
    Routing,
    ServableId,
)
from serving.data_plane.request_statistics import HistoryPoint, LatencyFigures
from serving.data_plane.servables import AcceleratedSignature
from serving.monitoring.page_data import (
    LISTED_SWAP_COUNT_MAX,
    WAITING_MODEL_COUNT_MAX,
    PageData,
    PageQuestion,
    route_json,
)
from serving.monitoring.page_points import points_json
from serving.monitoring.swap_record import SwapResult
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.log_store import used_log
from tests.unit.fakes.memory import ARENA_STATISTICS
from tests.unit.fakes.monitored import FakeParts
from tests.unit.fakes.page import FakeMethod, busy_scene, latencies, status, swap
from tests.unit.fakes.servables import BUSY_RUNS, CHOSEN_SIDES, busy_batching

SECOND = NS_PER_SECOND


def make_page(scene: FakeParts, clock: FakeClock | None = None) -> PageData:
    return PageData(scene.parts(clock))


# Points


def test_points_turn_monotonic_times_into_unix_times() -> None:
    columns, _ = points_json([HistoryPoint(5 * SECOND, count=7)], 4 * SECOND, 100 * SECOND)
    assert columns["at"] == [105.0]
    assert columns["per_second"] == [7.0]


def test_points_without_requests_have_no_latency() -> None:
    columns, _ = points_json([HistoryPoint(SECOND)], 0, 0)
    assert (columns["p50_us"], columns["p999_us"], columns["window_count"]) == ([None], [None], [0])


def test_points_carry_request_count_of_p999() -> None:
    point = HistoryPoint(SECOND, latency=LatencyFigures(count=12, p999_ns=4_200_499))
    columns, _ = points_json([point], 0, 0)
    assert (columns["p999_us"], columns["window_count"]) == ([4_200], [12])


def test_short_second_makes_no_spike() -> None:
    cut = HistoryPoint(11 * SECOND + SECOND // 100, count=30, failed_count=2)
    rest = HistoryPoint(12 * SECOND, count=70, failed_count=1)
    columns, _ = points_json([HistoryPoint(11 * SECOND, count=100), cut, rest], 10 * SECOND, 0)
    assert columns["per_second"] == [100.0, 100.0]
    assert columns["failed_per_second"] == [0.0, 3.0]


def test_points_keep_short_last_second_for_next_poll() -> None:
    whole = HistoryPoint(11 * SECOND, count=100)
    cut = HistoryPoint(11 * SECOND + SECOND // 10, count=9)
    columns, cursor_ns = points_json([whole, cut], 10 * SECOND, 0)
    assert (columns["at"], cursor_ns) == ([11.0], 11 * SECOND)


def test_points_after_a_pause_are_of_their_own_second() -> None:
    history = [HistoryPoint(11 * SECOND, count=5), HistoryPoint(500 * SECOND, count=5)]
    columns, _ = points_json(history, 10 * SECOND, 0)
    assert columns["per_second"] == [5.0, 5.0]


@given(
    gaps_ms=st.lists(st.integers(1, 1_000), min_size=1, max_size=40),
    polls=st.sets(st.integers(1, 39)),
)
def test_points_lose_no_request_at_any_poll_rate(gaps_ms: list[int], polls: set[int]) -> None:
    ends_ms = [10_000 + sum(gaps_ms[: i + 1]) for i in range(len(gaps_ms))]
    # One more request, so long that nothing is kept back at the end.
    history = [HistoryPoint(ms * 1_000_000, count=500) for ms in [*ends_ms, ends_ms[-1] + 1_000]]
    requests, since_ns = 0.0, 10 * SECOND
    for length in sorted({*polls, len(history)}):
        known = [point for point in history[:length] if point.at_ns > since_ns]
        columns, cursor_ns = points_json(known, since_ns, 0)
        began = [since_ns / SECOND, *columns["at"]]
        seconds = [end - begin for begin, end in zip(began, columns["at"])]
        requests += sum(rate * each for rate, each in zip(columns["per_second"], seconds))
        since_ns = cursor_ns
    assert since_ns == history[-1].at_ns
    # Times are rounded to a hundredth of a second.
    assert requests == pytest.approx(500 * len(history), rel=0.05)


# Models without a version


def test_page_lists_models_without_version() -> None:
    statuses = [status("ctr", 1), status("other", 1, LOADING)]
    scene = FakeParts(statuses=statuses, configured=["ctr", "empty", "other"])
    answer = make_page(scene).answer(PageQuestion())
    assert answer["models"] == ["ctr", "empty", "other"]
    assert answer["waiting_count"] == 2
    assert answer["waiting"][0] == {
        "model": "empty",
        "reason": "no version has been found in its base path",
        "base_path": "/models/empty",
    }
    of_one = make_page(scene).answer(PageQuestion(model="other"))
    assert [item["model"] for item in of_one["waiting"]] == ["other"]


def test_page_names_models_whose_base_path_hangs() -> None:
    scene = FakeParts(statuses=[status("ctr", 1)])
    assert make_page(scene).answer(PageQuestion())["stuck"] == []
    scene.pollers.stuck = {"z", "ctr"}
    assert make_page(scene).answer(PageQuestion())["stuck"] == ["ctr", "z"]


def test_page_of_thousands_of_hanging_paths_is_bounded() -> None:
    scene = FakeParts(stuck_sources={f"m{number:04}" for number in range(3_000)})
    assert len(make_page(scene).answer(PageQuestion())["stuck"]) == WAITING_MODEL_COUNT_MAX


def test_page_of_thousands_of_wrong_paths_is_bounded() -> None:
    scene = FakeParts(configured=[f"m{number:04}" for number in range(3_000)])
    answer = make_page(scene).answer(PageQuestion())
    assert (answer["waiting_count"], len(answer["waiting"])) == (3_000, WAITING_MODEL_COUNT_MAX)


# Polls


def test_page_polls_give_all_then_new_points() -> None:
    clock, scene = FakeClock(), FakeParts()
    scene.statistics.points[None] = [
        HistoryPoint(second * SECOND, 1) for second in (998, 999, 1_000)
    ]
    page = make_page(scene, clock)
    first = page.answer(PageQuestion())
    clock.advance(1)
    scene.statistics.points[None].append(HistoryPoint(1_001 * SECOND, 1))
    second = page.answer(PageQuestion(cursor=first["cursor"]))
    assert (len(first["points"]["at"]), first["is_continued"]) == (3, False)
    assert (len(second["points"]["at"]), second["is_continued"]) == (1, True)


@pytest.mark.parametrize("cursor", ["", "5", "abc.5", "x.y", "٣.٣", "." + "9" * 5_000])
def test_page_cursor_of_another_process_begins_anew(cursor: str) -> None:
    scene = FakeParts()
    answer = make_page(scene).answer(PageQuestion(cursor=cursor))
    assert not answer["is_continued"]
    assert scene.statistics.questions == [(None, 0)]


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 5_000, "-5", "1.5", "٣"])
def test_page_cursor_that_cannot_be_begins_anew(digits: str) -> None:
    scene = FakeParts()
    page = make_page(scene)
    started = page.answer(PageQuestion())["cursor"].partition(".")[0]
    assert not page.answer(PageQuestion(cursor=f"{started}.{digits}"))["is_continued"]


def test_page_without_anything_new_keeps_its_cursor() -> None:
    clock, scene = FakeClock(), FakeParts()
    scene.statistics.points[None] = [HistoryPoint(1_000 * SECOND, 1)]
    page = make_page(scene, clock)
    cursor = page.answer(PageQuestion())["cursor"]
    assert page.answer(PageQuestion(cursor=cursor))["cursor"] == cursor


def test_page_of_one_model_has_nothing_of_another() -> None:
    answer = make_page(busy_scene(FakeClock())).answer(PageQuestion(model="ranker"))
    assert {version["model"] for version in answer["versions"]} == {"ranker"}
    assert {item["model"] for item in answer["swaps"]} == {"ranker"}
    assert answer["codes"] == {"OK": 811_020, "INVALID_ARGUMENT": 5}
    assert len(answer["models"]) == 5


def test_page_of_a_model_that_is_gone_is_empty() -> None:
    answer = make_page(busy_scene(FakeClock())).answer(PageQuestion(model="gone"))
    assert (answer["versions"], answer["swaps"], answer["codes"]) == ([], [], {})


def test_page_of_an_empty_server_is_json() -> None:
    answer = make_page(FakeParts()).answer(PageQuestion())
    assert json.loads(json.dumps(answer)) == answer
    assert (answer["models"], answer["versions"], answer["swaps"]) == ([], [], [])


def test_page_counts_requests_by_code_over_models() -> None:
    scene = FakeParts()
    scene.statistics.by_model = [
        FakeMethod("a", count_by_code={0: 5}),
        FakeMethod("b", count_by_code={0: 2, 4: 1}),
        FakeMethod("", count_by_code={5: 3, 99: 1}),
        FakeMethod("", method="GetModelStatus", count_by_code={0: 100}),
    ]
    assert make_page(scene).answer(PageQuestion())["codes"] == {
        "OK": 7,
        "DEADLINE_EXCEEDED": 1,
        "NOT_FOUND": 3,
        "CODE_99": 1,
    }


# Swaps


def test_page_swaps_are_sent_once_until_one_changes() -> None:
    scene = FakeParts(swaps=[swap("ctr", 7, 10 * SECOND, result=None, ended_at_ns=None)])
    page = make_page(scene)
    first = page.answer(PageQuestion())
    again = page.answer(PageQuestion(swaps_tag=first["swaps_tag"]))
    scene.swaps.shown[0] = swap("ctr", 7, 10 * SECOND)
    changed = page.answer(PageQuestion(swaps_tag=first["swaps_tag"]))
    assert ("swaps" in first, "swaps" in again, "swaps" in changed) == (True, False, True)


@pytest.mark.parametrize(
    "change",
    [
        {"after": None},
        {"during": None},
        {"stages": ()},
        {"reason": "why"},
        {"ended_at_ns": None},
        {"result": SwapResult.ROLLED_BACK},
    ],
)
def test_page_swaps_are_sent_again_after_any_change(change: dict[str, object]) -> None:
    scene = FakeParts(swaps=[swap("ctr", 7, 10 * SECOND)])
    page = make_page(scene)
    tag = page.answer(PageQuestion())["swaps_tag"]
    scene.swaps.shown[0] = swap("ctr", 7, 10 * SECOND, **change)
    assert page.answer(PageQuestion(swaps_tag=tag))["swaps_tag"] != tag


def test_page_lists_newest_swaps_and_marks_visible() -> None:
    clock = FakeClock()
    clock.advance(10_000)
    scene = FakeParts(
        swaps=[swap("ctr", 200 - i, clock.now_ns() - 10 * i * SECOND) for i in range(200)]
    )
    answer = make_page(scene, clock).answer(PageQuestion())
    assert [item["version"] for item in answer["swaps"]][:2] == [200, 199]
    assert len(answer["swaps"]) == LISTED_SWAP_COUNT_MAX
    assert len(answer["marks"]) == 96


def test_page_marks_no_version_that_only_went() -> None:
    clock = FakeClock()
    swaps = [
        swap("ctr", version, clock.now_ns() - SECOND, result=result)
        for version, result in ((1, SwapResult.UNLOADED), (2, SwapResult.PUBLISHED))
    ]
    answer = make_page(FakeParts(swaps=swaps), clock).answer(PageQuestion())
    assert [mark["version"] for mark in answer["marks"]] == [2]
    assert [item["version"] for item in answer["swaps"]] == [1, 2]


def test_page_marks_load_from_its_start() -> None:
    clock = FakeClock()
    began_at_ns = clock.now_ns() - 5 * SECOND
    scene = FakeParts(swaps=[swap("ctr", 7, began_at_ns, wall_offset_ns=100 * SECOND)])
    [mark] = make_page(scene, clock).answer(PageQuestion())["marks"]
    assert mark["began_at"] == began_at_ns / SECOND + 1 + 100


# Versions


def test_failed_version_has_error() -> None:
    health = Health(StatusCode.DATA_LOSS, "crc32c does not match")
    verdict = GateVerdict(gate="golden", mode="enforce", is_passed=False, reason="Δ 0.3")
    passed = GateVerdict(gate="signatures", mode="enforce", is_passed=True)
    failed = status("ctr", 7, END, health=health, verdicts=(passed, verdict))
    [version] = make_page(FakeParts(statuses=[failed])).answer(PageQuestion())["versions"]
    assert version["state"] == "END"
    assert version["health"] == {"code": "DATA_LOSS", "message": "crc32c does not match"}
    assert version["failed_gates"] == [{"gate": "golden", "mode": "enforce", "reason": "Δ 0.3"}]
    assert (version["in_flight_count"], version["latency"]) == (None, None)
    assert version["arena_allocated_bytes"] is None


def test_unavailable_version_has_no_arena_query() -> None:
    scene = FakeParts(statuses=[status("ctr", 7, UNLOADING)])
    scene.streams.arenas[ServableId("ctr", 7)] = replace(
        ARENA_STATISTICS, slab_resident_bytes=4_096
    )
    [version] = make_page(scene).answer(PageQuestion())["versions"]
    assert version["arena_allocated_bytes"] is None


def test_loading_version_has_stage() -> None:
    scene = FakeParts(statuses=[status("ctr", 7, LOADING, stage=LoadStage.RESTORE)])
    [version] = make_page(scene).answer(PageQuestion())["versions"]
    assert (version["state"], version["stage"], version["is_default"]) == (
        "LOADING",
        "restore",
        False,
    )


def test_version_has_quantiles_of_busiest_method() -> None:
    scene = FakeParts(statuses=[status("ctr", 7)])
    scene.statistics.by_version = [
        FakeMethod("ctr", 7, "Predict", 4, latency_10s=latencies(2_000, 1_000, 2_000, 3_000)),
        FakeMethod("ctr", 7, "Classify", 4, latency_10s=latencies(2, 9_000, 9_000, 9_000)),
    ]
    [version] = make_page(scene).answer(PageQuestion())["versions"]
    assert version["in_flight_count"] == 4
    assert version["latency"] == {
        "method": "Predict",
        "count": 2_000,
        "p50_us": 1,
        "p99_us": 2,
        "p999_us": 3,
    }


def test_version_excludes_its_earlier_life() -> None:
    scene = FakeParts(statuses=[status("ctr", 7, LOADING)])
    scene.statistics.by_version = [
        FakeMethod("ctr", 7, is_ended=True, latency_10s=latencies(9, 1, 1, 1))
    ]
    [version] = make_page(scene).answer(PageQuestion())["versions"]
    assert version["latency"] is None


def test_version_has_the_bytes_of_its_arena() -> None:
    scene = FakeParts(statuses=[status("ctr", 7)])
    scene.streams.arenas[ServableId("ctr", 7)] = replace(
        ARENA_STATISTICS, slab_resident_bytes=4_096
    )
    [version] = make_page(scene).answer(PageQuestion())["versions"]
    assert (version["arena_allocated_bytes"], version["arena_resident_bytes"]) == (1_000, 4_096)


def test_versions_are_grouped_by_model_newest_first() -> None:
    scene = FakeParts(statuses=[status("b", 1), status("a", 1), status("a", 2)])
    versions = make_page(scene).answer(PageQuestion())["versions"]
    assert [(item["model"], item["version"]) for item in versions] == [("a", 2), ("a", 1), ("b", 1)]


def test_route_default_answers_unversioned_requests() -> None:
    assert route_json(status("m", 2), Routing(), 2)["is_default"]
    assert not route_json(status("m", 1), Routing(), 2)["is_default"]
    assert not route_json(status("m", 1), Routing(), None)["is_default"]


def test_route_names_labels_and_the_share_of_a_canary() -> None:
    routing = Routing(
        default_version=1, labels={"stable": 1, "a": 1}, canary_version=2, canary_weight=0.05
    )
    assert route_json(status("m", 1), routing, 1)["labels"] == ["a", "stable"]
    assert route_json(status("m", 1), routing, 1)["canary_ratio"] is None
    assert route_json(status("m", 2), routing, 1)["canary_ratio"] == 0.05
    progress = "142 of 1,000 requests"
    assert route_json(status("m", 2), routing, 1, progress)["canary_progress"] == progress
    assert route_json(status("m", 1), routing, 1, progress)["canary_progress"] == ""


def test_route_to_unavailable_canary_is_zero() -> None:
    routing = Routing(default_version=1, canary_version=3, canary_weight=0.05)
    assert route_json(status("m", 3, LOADING), routing, 1)["canary_ratio"] is None


# Batches and phases


def version_of(scene: FakeParts) -> dict[str, object]:
    (version,) = make_page(scene).answer(PageQuestion(model="m"))["versions"]
    assert isinstance(version, dict)
    return version


def test_version_has_mean_phases_of_its_busiest_method() -> None:
    busy = FakeMethod(
        "m",
        1,
        latency_10s=LatencyFigures(count=9),
        phase_us={"queue": 30, "batch": 200, "run": 900},
    )
    other = FakeMethod("m", 1, "Classify", latency_10s=LatencyFigures(count=8), phase_us={"run": 5})
    scene = FakeParts(statuses=[status("m", 1)])
    scene.statistics.by_version = [other, busy]
    assert version_of(scene)["phases"] == {"queue": 30.0, "batch": 200.0, "run": 900.0}


def test_version_without_requests_has_no_phases() -> None:
    scene = FakeParts(statuses=[status("m", 1)])
    scene.statistics.by_version = [FakeMethod("m", 1, phase_us={"run": 5})]
    version = version_of(scene)
    assert (version["phases"], version["latency"]) == ({}, None)


def test_version_shows_batched_and_refused_signatures() -> None:
    scene = FakeParts(statuses=[status("m", 1)])
    scene.batching[ServableId("m", 1)] = busy_batching()
    assert version_of(scene)["batching"] == [
        {
            "signature": "serving_default",
            "is_on": True,
            "refusal": "",
            "rows": "independent",
            "rows_reason": "",
            "rows_limit": 64,
            "run_count": 3,
            "request_count": 7,
            "row_count": 9,
            "wait_us": 7_000,
        },
        {
            "signature": "whole",
            "is_on": False,
            "refusal": "its graph mixes rows: output 'y': node 'sum' (Sum) reduces over the rows",
            "rows": "mixes",
            "rows_reason": "output 'y': node 'sum' (Sum) reduces over the rows",
            "rows_limit": 2,
            "run_count": 0,
            "request_count": 0,
            "row_count": 0,
            "wait_us": 0,
        },
    ]


def test_version_shows_its_runs_on_the_accelerator() -> None:
    scene = FakeParts(statuses=[status("m", 1)], runs={ServableId("m", 1): [BUSY_RUNS]})
    assert version_of(scene)["accelerator"] == [
        {
            "signature": "serving_default",
            "device": "",
            "parameter_bytes": 700,
            "run_count": 8,
            "row_count": 36,
            "padding_row_count": 7,
            "run_us": 1_000,
            "cpu_run_count": 3,
            "cpu_part": "",
            "sides": "",
        }
    ]


def test_version_shows_what_runs_on_the_cpu() -> None:
    scene = FakeParts(statuses=[status("m", 1)], runs={ServableId("m", 1): [BUSY_RUNS]})
    scene.streams.accelerated[ServableId("m", 1)] = [
        AcceleratedSignature("parse", (), "it has no product", (), ()),
        AcceleratedSignature("serving_default", (1, 8), "", ("Assert",), ("ids",)),
    ]
    shown = version_of(scene)["accelerator"]
    assert isinstance(shown, list)
    assert [(item["signature"], item["run_count"], item["cpu_part"]) for item in shown] == [
        ("parse", 0, "on the CPU: it has no product"),
        ("serving_default", 8, "on the CPU in part: Assert, ids"),
    ]


def test_version_shows_both_sides_of_a_signature() -> None:
    scene = FakeParts(statuses=[status("m", 1)], runs={ServableId("m", 1): [BUSY_RUNS]})
    scene.streams.accelerated[ServableId("m", 1)] = [replace(CHOSEN_SIDES, untuned_rows=(8,))]
    shown = version_of(scene)["accelerator"]
    assert isinstance(shown, list)
    assert shown[0]["sides"].startswith("1 row on the CPU (0.55 ms; accelerator 0.80 ms), up to 8")
    assert shown[0]["sides"].endswith("; rows not autotuned: 8")


def test_signature_without_a_timed_run_has_no_run_time() -> None:
    runs = replace(BUSY_RUNS, timed_run_count=0, stage_ns=(0, 0, 0, 0))
    scene = FakeParts(statuses=[status("m", 1)], runs={ServableId("m", 1): [runs]})
    shown = version_of(scene)["accelerator"]
    assert isinstance(shown, list)
    assert [runs["run_us"] for runs in shown] == [None]


def test_request_log_is_shown_with_its_last_error() -> None:
    page = make_page(FakeParts(request_logs=used_log()))
    (log,) = page.answer(PageQuestion())["request_logs"]
    assert (log["model"], log["filename_prefix"]) == ("m", "/no/such/directory/m")
    assert (log["written_count"], log["dropped_count"], log["pending_count"]) == (0, 3, 1)
    assert "No such file" in log["last_error"]
    assert page.answer(PageQuestion(model="other"))["request_logs"] == []


def test_version_that_does_not_serve_shows_no_batches() -> None:
    scene = FakeParts(statuses=[status("m", 1, UNLOADING)])
    scene.batching[ServableId("m", 1)] = busy_batching()
    assert version_of(scene)["batching"] == []
