"""Time, passed in: nothing else in Millpond reads a clock or waits on one."""

import threading
import time
from typing import Protocol

NS_PER_SECOND = 1_000_000_000


class Clock(Protocol):
    """What everything that measures or waits is given. Safe to use from any thread."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds since an arbitrary start: for durations and deadlines."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch: only to compare with file times and to show people.

        It can jump; never subtract two of these to get a duration.
        """
        ...

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        """Waits on `condition`, which the caller holds; None waits without limit.

        False where the timeout came first. Like `Condition.wait` it may return early for no reason:
        callers look at their state again.
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


def pause(clock: Clock, seconds: float) -> None:
    """Waits for a time on `clock`, and for nothing that could come sooner."""
    nothing = threading.Condition()
    with nothing:
        clock.wait(nothing, seconds)


def seconds_since(clock: Clock, start_ns: int) -> float:
    """Seconds that have passed on `clock` since its `now_ns()` was `start_ns`."""
    return (clock.now_ns() - start_ns) / NS_PER_SECOND
