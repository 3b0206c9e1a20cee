"""Clocks, which are passed in: no other module of Millpond reads a clock or waits on one."""

import threading
import time
from dataclasses import dataclass
from typing import Protocol

NS_PER_SECOND = 1_000_000_000


class Clock(Protocol):
    """The clock that code which measures or waits takes as an argument. Thread-safe."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds since an arbitrary start, for durations and deadlines."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch: only to compare with file times and to display.

        This clock can jump: never subtract two of its values to get a duration.
        """
        ...

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        """Waits on `condition`, which the caller holds; None waits without limit.

        Returns False if the timeout came first. Like `Condition.wait` it may return early without a
        reason, so callers must check their state again.
        """
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ns(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """See `Clock`."""
        return time.time_ns()

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        """See `Clock`."""
        return condition.wait(timeout_seconds)


@dataclass(frozen=True, slots=True)
class Now:
    """The present time, which a pure decision takes: monotonic for durations, and of the wall for people."""

    ns: int
    wall_ns: int = 0

    @classmethod
    def of(cls, clock: Clock) -> "Now":
        """Reads `clock`."""
        return cls(clock.now_ns(), clock.wall_ns())


def pause(clock: Clock, seconds: float) -> None:
    """Waits for `seconds` on `clock`; no event ends the wait earlier."""
    nothing = threading.Condition()
    with nothing:
        clock.wait(nothing, seconds)


def seconds_since(clock: Clock, start_ns: int) -> float:
    """The seconds that have passed on `clock` since its `now_ns()` was `start_ns`."""
    return (clock.now_ns() - start_ns) / NS_PER_SECOND
