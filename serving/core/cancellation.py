"""Cancellation: how the control thread stops a load that is inside the data plane."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """A request to stop one load, and the call that stops it at once. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._stops: list[Callable[[], None]] = []

    @property
    def is_cancelled(self) -> bool:
        """True if `cancel` was called since the last `reset`."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Cancels the load, and calls the `stop` of each running `stops_by` on this thread."""
        with self._lock:
            self._is_cancelled = True
            for stop in self._stops:
                stop()

    def reset(self) -> None:
        """Forgets a `cancel` that arrived after the load had ended."""
        with self._lock:
            self._is_cancelled = False

    @contextmanager
    def stops_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Makes a `cancel` within the block call `stop` as well.

        Calls `stop` at once if the load is cancelled already. `stop` must return at once, and may be
        called twice. Blocks may lie within each other.
        """
        with self._lock:
            self._stops.append(stop)
            if self._is_cancelled:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stops.pop()
