from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from loadtest.measure.server_pages import ServerPages
from loadtest.measure.server_swaps import (
    ServerSwap,
    medians_by_both,
    server_swap,
    swaps_by_both,
    wait_for_swaps,
)
from loadtest.measure.timeline import LogClock, Span
from serving.base.errors import Unavailable
from tests.unit.fakes.clocks import FakeClock
from tests.unit.loadtest_outcomes import MS, outcome_of

CLOCK = LogClock(offset_ns=1_000 * MS)
DURING = {
    "span_seconds": 2.0,
    "request_count": 600,
    "p50_seconds": 0.001,
    "p99_seconds": 0.0021,
    "p999_seconds": 0.0036,
    "max_seconds": 0.004,
}


def record(version: int, during: Mapping[str, float | None] | None = DURING) -> dict[str, Any]:
    latency = {"during": during}
    return {"version": version, "load_started_at": 6.0, "latency": latency, "figures": {"f": 1}}


def swap(version: int, **changes: Any) -> ServerSwap:
    figures = {"p50_ms": 1.0, "p99_ms": 2.1, "p999_ms": 3.6}
    values: dict[str, Any] = {"request_count": 600, "figures_ms": figures, "figures": {"f": 1}}
    values |= changes
    return ServerSwap(version=version, span=Span(5_000 * MS, 7_000 * MS), **values)


class FakePages(ServerPages):
    """Returns one list of records after the other, and repeats the last one."""

    def __init__(self, *answers: Sequence[Mapping[str, Any]]) -> None:
        super().__init__("http://127.0.0.1:1")
        self._answers = list(answers)

    def swaps(self, model: str) -> Sequence[Mapping[str, Any]]:
        assert model == "ctr"
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_a_records_span_is_on_the_clients_clock():
    assert server_swap(record(2), CLOCK) == swap(2)


def test_swaps_are_awaited_until_requests_are_known():
    pages = FakePages([record(1), record(2), record(3, None)], [record(1), record(2), record(3)])
    clock = FakeClock()
    assert wait_for_swaps(pages, "ctr", (2, 3), CLOCK, clock) == (swap(2), swap(3))


def test_a_swap_that_is_not_over_in_time_is_left_out():
    pages = FakePages([record(2), record(3, None)])
    assert wait_for_swaps(pages, "ctr", (2, 3), CLOCK, FakeClock()) == (swap(2),)


def test_a_server_that_is_gone_is_an_error():
    with pytest.raises(Unavailable):
        wait_for_swaps(ServerPages("http://127.0.0.1:1"), "ctr", (2,), CLOCK, FakeClock())


def test_client_figures_cover_span_of_server():
    inside = [(5_000.5 + ms, 5_000.5 + ms, 5_001.5 + ms) for ms in range(1_000)]
    slow_inside = [(4_990, 4_990, 5_001)]
    outside = [(4_000, 4_000, 5_000), (6_999, 6_999, 7_000.5)]
    (both,) = swaps_by_both(outcome_of([*inside, *slow_inside, *outside]), [swap(2)])
    assert both["server"] == {"count": 600, "p50_ms": 1.0, "p99_ms": 2.1, "p999_ms": 3.6}
    assert both["clients"] == {"count": 1_001, "p50_ms": 1.0, "p99_ms": 1.0, "p999_ms": 1.0}
    assert both["in_flight_at_ends"] == 2
    (fewer,) = swaps_by_both(outcome_of([*inside[:900], *slow_inside]), [swap(2)])
    assert fewer["clients"]["p999_ms"] == 11


def test_medians_and_sums_cover_all_swaps():
    swaps = [
        {"server": side(10, 1.0), "clients": side(11, 1.5)},
        {"server": side(10, 3.0), "clients": side(9, 3.5)},
        {"server": side(10, 2.0), "clients": side(10, 2.5)},
    ]
    shown = medians_by_both(swaps)
    assert shown["swap_count"] == 3
    assert shown["server"] == side(30, 2.0)
    assert shown["clients"] == side(30, 2.5)


def test_figures_of_no_swap_or_request_are_none():
    assert medians_by_both([])["server"] == side(0, None)
    (both,) = swaps_by_both(outcome_of([]), [swap(2)])
    assert both["clients"] == side(0, None)


def side(count: int, value: float | None) -> dict[str, Any]:
    return {"count": count, "p50_ms": value, "p99_ms": value, "p999_ms": value}


def test_swap_without_requests_has_no_figures() -> None:
    idle: dict[str, float | None] = {
        **dict.fromkeys(DURING),
        "span_seconds": 2.0,
        "request_count": 0,
    }
    figures = server_swap(record(3, idle), CLOCK).figures_ms
    assert set(figures.values()) == {None}
