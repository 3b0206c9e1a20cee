"""Clocks that stand still until a test moves them."""

import threading
from collections.abc import Callable
from pathlib import Path

from serving.base.clock import NS_PER_SECOND


class FakeClock:
    """Stands still until it is advanced; waiting for a time advances it by that time."""

    # An ordinary day, so that file times before and after it can be made.
    START_WALL_NS = 1_700_000_000 * NS_PER_SECOND

    def __init__(self) -> None:
        self.ns = 1_000 * NS_PER_SECOND
        self.waits: list[float] = []
        self._wall_ns = self.START_WALL_NS

    def now_ns(self) -> int:
        return self.ns

    def wall_ns(self) -> int:
        return self._wall_ns + self.ns

    def set_wall(self, seconds: float) -> None:
        """Sets the wall clock forward by `seconds`, or back, while monotonic time stands still."""
        self._wall_ns += round(seconds * NS_PER_SECOND)

    def advance(self, seconds: float) -> None:
        self.ns += round(seconds * NS_PER_SECOND)

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        del condition
        if timeout_seconds is None:
            raise AssertionError("waits without a limit, but no other thread can end the wait")
        self.waits.append(timeout_seconds)
        self.advance(timeout_seconds)
        return False


class SetClock:
    """Begins at 0 and stands still until a test sets it; a wait on it fails."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def wall_ns(self) -> int:
        return self.ns

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        raise AssertionError("warm-up waits for nothing")


class EventClock(FakeClock):
    """Runs events during waits: one event for each wait, and then the time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Callable[[], object]] = []

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        if self.events:
            self.advance(1)
            self.events.pop(0)()
            return True
        return super().wait(condition, timeout_seconds)


class WritingClock(FakeClock):
    """Writes to a file during waits, one text for each."""

    def __init__(self, path: Path, *texts: str) -> None:
        super().__init__()
        self._path = path
        self.texts = list(texts)

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        if self.texts:
            self._path.write_text(self.texts.pop(0))
        return super().wait(condition, timeout_seconds)


class HeldClock(FakeClock):
    """A clock with waits that last until the condition is notified, or until `advance_all`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting = threading.Event()

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        self.is_waiting.set()
        return condition.wait(30)
