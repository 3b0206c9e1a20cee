"""PeriodicThread: its turns, its wake and its end, and the effect of a bug in a turn."""

import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from serving.base.clock import Clock, SystemClock
from serving.base.periodic_thread import PeriodicThread
from tests.unit.fakes.clocks import FakeClock


class Turns:
    """A thread with its work in `done`, for a test to read; it ends itself at turn `last`."""

    def __init__(
        self, *, clock: Clock, wait_seconds: Callable[[], float | None] = lambda: 5, last: int = 0
    ) -> None:
        self.done: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.has_turned = threading.Event()
        self._last = last
        self.thread = PeriodicThread(
            "turns",
            self._turn,
            wait_seconds=wait_seconds,
            failure_event="turn_failed",
            at_start=lambda: self._do("start"),
            at_end=lambda: self._do("end"),
            clock=clock,
        )

    def _turn(self) -> None:
        if len(self.done) == self._last:
            self.thread.stop()
        self.has_turned.set()
        self._do("turn")

    def _do(self, work: str) -> None:
        self.done.append(work)
        if work in self.errors:
            raise self.errors[work]


def test_turns_come_each_period_until_stopped():
    clock = FakeClock()
    turns = Turns(clock=clock, last=2)
    turns.thread.start()
    assert turns.thread.join(10)
    assert turns.done == ["start", "turn", "turn", "end"]
    assert clock.waits == [5, 5]


def test_wait_is_computed_before_each_turn():
    clock, left = FakeClock(), [3.0, 7.0]
    turns = Turns(clock=clock, wait_seconds=lambda: left.pop(0))
    assert [turns.thread.wait_for_turn() for _ in range(2)] == [True, True]
    assert clock.waits == [3.0, 7.0]


def test_wake_before_the_start_makes_one_turn_due():
    clock = FakeClock()
    turns = Turns(clock=clock, wait_seconds=lambda: None)
    turns.thread.wake()
    assert turns.thread.wait_for_turn()
    with pytest.raises(AssertionError, match="without a limit"):
        turns.thread.wait_for_turn()


def test_wake_ends_a_wait_and_stop_ends_the_thread():
    turns = Turns(clock=SystemClock(), wait_seconds=lambda: None)
    turns.thread.start()
    turns.thread.wake()
    assert turns.has_turned.wait(10)
    turns.thread.stop()
    assert turns.thread.join(10)
    assert turns.done == ["start", "turn", "end"]
    assert "turns" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("faulty", ["start", "turn", "end"])
def test_work_error_is_logged_and_turns_continue(faulty: str):
    turns = Turns(clock=FakeClock(), last=2)
    turns.errors[faulty] = KeyError("bug")
    with capture_logs() as logs:
        turns.thread.start()
        assert turns.thread.join(10)
    assert turns.done == ["start", "turn", "turn", "end"]
    assert {(log["event"], log["thread"]) for log in logs} == {("turn_failed", "turns")}


def test_join_returns_false_during_turn():
    is_let_go = threading.Event()
    thread = PeriodicThread(
        "stuck",
        lambda: None,
        wait_seconds=lambda: None,
        failure_event="turn_failed",
        at_start=lambda: is_let_go.wait(10),
        clock=SystemClock(),
    )
    thread.start()
    thread.stop()
    assert not thread.join(0.05)
    is_let_go.set()
    assert thread.join(10)


def test_join_before_start_returns_true():
    turns = Turns(clock=FakeClock())
    turns.thread.stop()
    assert turns.thread.join(0)
    assert turns.done == []
