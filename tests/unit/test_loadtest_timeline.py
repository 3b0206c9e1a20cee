from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.measure.timeline import (
    LATE_NS,
    LogClock,
    Span,
    SwapSpans,
    held_up_by_generator,
    late_stretches,
    swaps_of,
    times_of_swaps,
    under_way_in,
    windows,
)
from serving.base.errors import Unavailable
from tests.unit.loadtest_outcomes import MS, outcome_of

SECOND = 1_000 * MS


def event(name: str, version: int, second: int, model: str = "m") -> dict[str, Any]:
    timestamp = f"1970-01-01T00:00:{second:02d}.000000Z"
    return {"event": name, "model": model, "version": version, "timestamp": timestamp}


def swap_events(old: int, second: int, model: str = "m") -> list[dict[str, Any]]:
    return [
        event("load_started", old + 1, second, model),
        event("version_available", old + 1, second + 2, model),
        event("unload_started", old, second + 3, model),
        event("version_unloaded", old, second + 4, model),
    ]


FIRST_LOAD = [event("load_started", 1, 1), event("version_available", 1, 2)]


def test_log_clock_maps_wall_time_to_monotonic():
    stamped = {"timestamp": "1970-01-01T00:00:05.000123Z"}
    assert LogClock(offset_ns=3 * SECOND).instant_ns(stamped) == 2 * SECOND + 123_000


def test_swaps_pair_load_with_earlier_versions_unload():
    events = [*FIRST_LOAD, {"event": "listening"}, *swap_events(1, 10), *swap_events(2, 20)]
    assert swaps_of(events, "m", LogClock(0)) == (
        SwapSpans(2, Span(10 * SECOND, 12 * SECOND), Span(13 * SECOND, 14 * SECOND)),
        SwapSpans(3, Span(20 * SECOND, 22 * SECOND), Span(23 * SECOND, 24 * SECOND)),
    )


def test_swaps_of_one_model_are_not_those_of_another():
    events = [*FIRST_LOAD, *swap_events(1, 10, "other"), *swap_events(1, 20)]
    assert [swap.load.begin_ns for swap in swaps_of(events, "m", LogClock(0))] == [20 * SECOND]


def test_times_of_swaps_there_and_back():
    back = [
        event("load_started", 1, 20),
        event("version_available", 1, 21),
        event("load_started", 7, 22, "other"),
        event("version_unloaded", 2, 24),
    ]
    assert times_of_swaps([*FIRST_LOAD, *swap_events(1, 10), *back], "m", LogClock(0)) == (
        Span(10 * SECOND, 15 * SECOND),
        Span(20 * SECOND, 25 * SECOND),
    )


def test_time_of_a_swap_that_has_not_ended_is_left_out():
    assert times_of_swaps([*FIRST_LOAD, *swap_events(1, 10)[:3]], "m", LogClock(0)) == ()


def test_swaps_of_first_load_alone_are_none():
    assert swaps_of(FIRST_LOAD, "m", LogClock(0)) == ()


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_swaps_of_log_without_event_names_event(missing: int):
    swap = swap_events(1, 10)
    name = swap.pop(missing)["event"]
    with pytest.raises(Unavailable, match=name):
        swaps_of([*FIRST_LOAD, *swap], "m", LogClock(0))


def test_swap_span_lasts_one_second_past_unload():
    swap = SwapSpans(2, Span(1, 2), Span(3, 4))
    assert swap.swap == Span(1, 4 + SECOND)


def test_late_stretch_is_from_due_to_issued():
    outcome = outcome_of([(0, 1.9, 3), (10, 15, 16), (12, 15.1, 17), (30, 33, 34)])
    assert late_stretches(outcome) == (
        Span(10 * MS, int(15.1 * MS)),
        Span(30 * MS, 33 * MS),
    )


def test_punctual_generator_has_no_late_stretches():
    assert late_stretches(outcome_of([(0, 2, 90), (5, 5, 6)])) == ()


def test_held_up_are_due_or_answered_in_the_stretch():
    stretch = Span(10 * MS, 15 * MS)
    requests = {
        (9, 9, 9.5): False,
        (9, 9, 12): True,
        (9, 9, 15.9): True,  # answered in the stretch, read in the moment after it
        (9, 9, 100): False,  # slow for another reason
        (11, 15, 50): True,
        (17, 17, 18): False,
    }
    held_up = held_up_by_generator(outcome_of(list(requests)), [stretch])
    assert held_up.tolist() == list(requests.values())


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 10)), max_size=50))
def test_only_late_requests_are_held_up(
    dues: list[tuple[int, int]],
):
    requests = [(due, due + late, due + late + 1) for due, late in sorted(dues)]
    outcome = outcome_of(requests)
    held_up = held_up_by_generator(outcome, late_stretches(outcome))
    is_late = outcome.issued_ns - outcome.scheduled_ns > LATE_NS
    assert np.all(held_up[is_late])
    assert is_late.any() or not held_up.any()


@pytest.mark.parametrize(
    ("request_ms", "is_in"),
    [
        ((5, 5, 9), False),
        ((5, 5, 10), True),
        ((12, 12, 13), True),
        ((20, 20, 21), True),
        ((21, 21, 22), False),
        ((5, 5, 30), True),
    ],
    ids=["before", "answered_in", "within", "due_at_end", "after", "around"],
)
def test_under_way_overlaps_the_span(request_ms: tuple[float, float, float], is_in: bool):
    mask = under_way_in(outcome_of([request_ms]), [Span(10 * MS, 20 * MS)])
    assert mask.tolist() == [is_in]


def test_windows_hold_request_in_each_part_it_spans():
    swaps = [
        SwapSpans(2, Span(10 * MS, 20 * MS), Span(21 * MS, 22 * MS)),
        SwapSpans(3, Span(5_010 * MS, 5_020 * MS), Span(5_021 * MS, 5_022 * MS)),
    ]
    requests = [(1, 1, 2), (5, 5, 6), (15, 15, 16), (21, 21, 22), (900, 900, 901)]
    requests += [(3_000, 3_000, 3_001), (5_015, 5_015, 5_016)]
    masks = windows(outcome_of(requests), swaps, steady_from_ns=3 * MS)
    assert {name: np.flatnonzero(mask).tolist() for name, mask in masks.items()} == {
        "steady": [1, 5],
        "load": [2, 6],
        "unload": [3],
        "swap": [2, 3, 4, 6],
        "first_swap": [2, 3, 4],
    }
