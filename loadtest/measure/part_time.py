"""The time that a part of a measurement may take."""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from serving.base.clock import NS_PER_SECOND, Clock

# An `except` that catches the first OutOfTime does not catch all. What a part stops at its end is stopped by then.
_REPEAT_SECONDS = 20.0


class OutOfTime(Exception):
    """The part has taken all of its time. No MillpondError, because calls that are tried again suppress those."""


class PartTime:
    """The time that is left to the part under way, which has no bound unless one is given.

    Belongs to the main thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ns: int | None = None

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        """Raises OutOfTime in the block once it has taken `seconds`, also out of a wait. `inf` is no bound."""
        if seconds == math.inf:
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            del number, frame
            raise OutOfTime(f"stopped after {seconds:.0f} s, the most that it may take")

        self._end_ns = self._clock.now_ns() + round(seconds * NS_PER_SECOND)
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6), _REPEAT_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self._end_ns = None

    def left_seconds(self) -> float:
        """The seconds until OutOfTime; `inf` without a bound."""
        if self._end_ns is None:
            return math.inf
        return (self._end_ns - self._clock.now_ns()) / NS_PER_SECOND
