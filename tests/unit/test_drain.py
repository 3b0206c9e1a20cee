from typing import Any

import pytest
from structlog.testing import capture_logs

from serving.server.drain import READERS_SECONDS, REPORT_SECONDS_MAX, DrainNotice, drain
from tests.unit.fakes.clocks import EventClock, FakeClock

DRAIN_SECONDS = 10


class FakePart:
    """A part that notes its calls, and whose end takes `takes_seconds` of the clock."""

    def __init__(self, name: str, calls: list[Any], clock: FakeClock) -> None:
        self._name = name
        self._calls = calls
        self._clock = clock
        self.takes_seconds = 0.0
        self.is_over = True
        self.is_http_over = True

    def shutdown(self, seconds: float) -> bool:
        self._calls.append((f"{self._name} shutdown", seconds))
        self._clock.advance(self.takes_seconds)
        return self.is_over

    def shutdown_http(self, seconds: float) -> bool:
        self._calls.append((f"{self._name} shutdown_http", seconds))
        return self.is_http_over

    def stop(self, seconds: float | None = None) -> None:
        self._calls.append((f"{self._name} stop", seconds))


class Draining:
    """The parts of a server that drains, and what was called on them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.calls: list[Any] = []
        self.parts = {
            name: FakePart(name, self.calls, self.clock) for name in ("grpc", "admin", "http")
        }

    def run(self) -> list[str]:
        """Drains, and returns the logged events."""
        parts: Any = self.parts
        with capture_logs() as logs:
            drain(DRAIN_SECONDS, clock=self.clock, **parts)
        return [line["event"] for line in logs]


def test_drain_ends_grpc_before_http():
    draining = Draining()
    assert draining.run() == []
    assert [name for name, _ in draining.calls] == [
        "grpc shutdown",
        "admin stop",
        "grpc shutdown_http",
        "http stop",
    ]


@pytest.mark.parametrize(("takes_seconds", "left_seconds"), [(0, 10), (4, 6), (15, 0)])
def test_http_gets_time_that_grpc_leaves(takes_seconds: float, left_seconds: float):
    draining = Draining()
    draining.parts["grpc"].takes_seconds = takes_seconds
    draining.run()
    assert dict(draining.calls) == {
        "grpc shutdown": DRAIN_SECONDS,
        "admin stop": None,
        "grpc shutdown_http": left_seconds,
        "http stop": None,
    }


@pytest.mark.parametrize(
    ("flag", "event"),
    [("is_over", "requests_cut_short"), ("is_http_over", "http_requests_cut_short")],
)
def test_requests_that_do_not_end_are_logged(flag: str, event: str):
    draining = Draining()
    setattr(draining.parts["grpc"], flag, False)
    assert draining.run() == [event]


def waited_seconds(drain_seconds: float, *, is_asked: bool) -> tuple[float, list[str]]:
    """Waits as a member of a fleet does, and returns how long, and the logged events."""
    clock = EventClock()
    notice = DrainNotice(clock)
    # The fake clock gives an event a second.
    clock.events = [notice.note_report] if is_asked else []
    started_ns = clock.now_ns()
    with capture_logs() as logs:
        notice.wait(drain_seconds)
    return (clock.now_ns() - started_ns) / 1e9, [line["event"] for line in logs]


def test_member_serves_on_after_its_drain_is_reported():
    assert waited_seconds(20, is_asked=True) == (1 + READERS_SECONDS, [])


def test_member_without_a_coordinator_serves_on():
    assert waited_seconds(20, is_asked=False) == (REPORT_SECONDS_MAX, ["drain_not_reported"])


def test_member_without_drain_time_does_not_wait():
    assert waited_seconds(0, is_asked=False) == (0, ["drain_not_reported"])
