from dataclasses import replace
from typing import Any

import pytest

from loadtest.measure import millpond_swap_server, scenario
from loadtest.measure.process_memory import Resident
from loadtest.measure.scenario import repeats_of
from loadtest.measure.timeline import Span, SwapSpans
from serving.base.errors import Unavailable
from tests.unit.fakes.clocks import FakeClock
from tests.unit.loadtest_outcomes import MS, SETUP, steady_outcome

SPANS = [SwapSpans(2, Span(20, 29), Span(30, 35))]


def unload(version: int, live_bytes: int | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"event": "version_unloaded", "model": "ctr", "version": version}
    return event if live_bytes is None else event | {"arena_live_bytes": live_bytes}


def load(version: int, model: str = "ctr") -> dict[str, Any]:
    return {"event": "version_available", "model": model, "version": version}


def samples(*sizes: tuple[int, int]) -> list[Resident]:
    return [Resident(at_ns, total, total) for at_ns, total in sizes]


def test_repeats_differ_in_their_seeds_alone():
    first, second = repeats_of(SETUP, 2)
    assert first == SETUP
    assert (second.seed, second.preset) == (SETUP.seed + 1, SETUP.preset)


def test_stages_come_from_swaps_of_swapped_model():
    events = [load(1), load(1, "other"), load(2, "other"), load(2), unload(1), unload(2)]
    stages = millpond_swap_server._stages(events, SETUP)
    assert [(swap.title, swap.version) for swap in stages] == [("load", 2), ("unload", 1)]


def test_memory_covers_moments_and_swap_peak():
    notes = {"before": 1, "one_version": 10, "after_last_unload": 40}
    seen = samples((2, 100), (11, 600), (25, 900), (31, 1_100), (36, 2_000), (41, 650), (52, 120))
    memory = scenario._memory(seen, notes, SPANS, last_unload_ns=50)
    assert {name: sample and sample.total_bytes for name, sample in memory.items()} == {
        "before": 100,
        "one_version": 600,
        "two_versions": 1_100,
        "after_last_unload": 650,
        "all_unloaded": 120,
    }


def test_memory_after_server_end_is_unknown():
    notes = {"before": 1, "one_version": 10, "after_last_unload": 40}
    memory = scenario._memory(samples((2, 100), (41, 650)), notes, SPANS, last_unload_ns=50)
    assert memory["all_unloaded"] is None


def test_moments_that_no_server_reports_are_left_out():
    seen = samples((11, 600), (25, 900), (41, 650))
    notes = {"one_version": 10, "after_last_unload": 40}
    memory = scenario._memory(seen, notes, SPANS, last_unload_ns=None)
    assert {name: sample and sample.total_bytes for name, sample in memory.items()} == {
        "one_version": 600,
        "two_versions": 900,
        "after_last_unload": 650,
    }


def test_arena_live_bytes_are_worst_or_unknown():
    assert millpond_swap_server._arena_live_bytes([unload(1, 0), unload(2, 7), unload(3, 0)]) == 7
    assert millpond_swap_server._arena_live_bytes([unload(1)]) is None


def test_load_ending_before_last_swap_is_refused():
    outcome = steady_outcome(10)
    scenario._check_load_lasted(outcome, [])
    late_swap = SwapSpans(2, Span(1 * MS, 2 * MS), Span(3 * MS, 4 * MS))
    with pytest.raises(Unavailable, match="--swap-interval"):
        scenario._check_load_lasted(outcome, [late_swap])


class NotedSeries:
    """Notes what a series of versions is asked for."""

    def __init__(self, name: str, steps: list[str]) -> None:
        self._name, self._steps = name, steps

    def drop(self, version: int) -> None:
        self._steps.append(f"+{self._name}{version}")

    def remove(self, version: int) -> None:
        self._steps.append(f"-{self._name}{version}")


class NotedServer:
    """A server whose unloads are over at once."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    def wait_for_unload(self, version: int, dropped_ns: int) -> None:
        self._steps.append(f"unloaded {version}")


def test_second_model_is_swapped_at_the_same_moments():
    steps: list[str] = []
    setup = replace(SETUP, swaps=2, reloaded_too=["other"])
    series: Any = {name: NotedSeries(name, steps) for name in setup.model_names}
    server: Any = NotedServer(steps)
    watch: Any = None
    scenario.Running(setup, server, watch, series, FakeClock()).swap_all(0)
    assert steps == [
        *("+ctr2", "+other2", "unloaded 1", "-ctr1"),
        *("+ctr3", "+other3", "unloaded 2", "-ctr2", "-other1"),
    ]
