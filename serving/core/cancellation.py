"""Cancellation: how the control thread stops a load that is inside the data plane."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """Whether one load is no longer wanted, and what stops it at once. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._stop: Callable[[], None] | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called since the last `reset`."""
        return self._is_cancelled

    def cancel(self) -> None:
        """From now on it is cancelled; calls what `stops_by` has, on this thread."""
        with self._lock:
            self._is_cancelled = True
            if self._stop is not None:
                self._stop()

    def reset(self) -> None:
        """Forgets a `cancel` that came too late."""
        with self._lock:
            self._is_cancelled = False

    @contextmanager
    def stops_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within it a `cancel` also calls `stop`, which must return at once and may come twice.

        A `cancel` that came before calls it here.
        """
        with self._lock:
            self._stop = stop
            if self._is_cancelled:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stop = None
