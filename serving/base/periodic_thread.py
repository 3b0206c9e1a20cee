"""Threads that work periodically: `PeriodicThread` on a task, `Watch` on a changing set of items."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

import structlog

from serving.base.clock import Clock

_log = structlog.get_logger(__name__)


def _nothing() -> None:
    pass


class PeriodicThread:
    """Calls `turn` on a daemon thread `name`, each time `wait_seconds` have passed or at `wake`.

    An exception of a turn is a bug: it is logged as `failure_event`, and the next turn runs as usual.
    No lock is held while a turn runs, so `stop` and `wake` return at once.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], object],
        *,
        wait_seconds: float | Callable[[], float | None],
        failure_event: str,
        at_start: Callable[[], object] = _nothing,
        at_end: Callable[[], object] = _nothing,
        clock: Clock,
    ) -> None:
        """Makes the thread; `start` starts it.

        If `wait_seconds` is a function, it is called before each wait, under a lock. If it returns None,
        the thread waits until it is woken. `at_start` runs on the thread before the first wait, `at_end` after the
        last turn.
        """
        self._turn = turn
        self._wait_seconds = wait_seconds
        self._failure_event = failure_event
        self._at_start = at_start
        self._at_end = at_end
        self._clock = clock
        # Guards both flags below, and is notified when they change.
        self._changed = threading.Condition()
        self._is_woken = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Makes the next turn due now, even before `start`. Any thread."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread after the turn under way and `at_end`. Returns at once. Any thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def join(self, timeout_seconds: float | None) -> bool:
        """Waits, after `stop`, for the end of the thread; returns False at the timeout.

        With None it waits without limit.
        """
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def wait_for_turn(self) -> bool:
        """Waits until a turn is due; returns False after `stop`. Called by the thread or by a test."""
        with self._changed:
            if not self._is_woken and not self._is_stopping:
                wanted = self._wait_seconds
                self._clock.wait(self._changed, wanted() if callable(wanted) else wanted)
            self._is_woken = False
            return not self._is_stopping

    def _run(self) -> None:
        self._guarded(self._at_start)
        while self.wait_for_turn():
            self._guarded(self._turn)
        self._guarded(self._at_end)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 (a bug; the next turn must run)
            _log.exception(self._failure_event, thread=self._thread.name)


Key = TypeVar("Key")


Item = TypeVar("Item")


class Watch(Generic[Key, Item]):
    """Calls `look` with the watched items every `period_seconds`, and sleeps while there are no items.

    It looks at once when the first item is added; further items wait for the next turn.

    `look` runs under the watch's lock, so that a removed item is not looked at any more. Make and start the
    watch on a thread of the usual priority, because its own thread inherits that. Without `start` only
    `look_now` looks.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[Mapping[Key, Item]], None],
        *,
        period_seconds: float,
        clock: Clock,
    ) -> None:
        self._look = look
        self._period_seconds = period_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._watched: dict[Key, Item] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread if it was started."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    @contextmanager
    def watching(self, key: Key, item: Item) -> Iterator[None]:
        """Watches `item` while the context is entered. Any thread."""
        self.add(key, item)
        try:
            yield
        finally:
            self.remove(key)

    def add(self, key: Key, item: Item) -> None:
        """Watches `item` until `remove`. Any thread; allowed within `look`."""
        with self._changed:
            is_idle = not self._watched
            self._watched[key] = item
            if is_idle:
                self._changed.notify_all()

    def remove(self, key: Key) -> Item | None:
        """Stops watching `key`. Returns its item, or None if it was not watched.

        Any thread; allowed within `look`.
        """
        with self._changed:
            return self._watched.pop(key, None)

    def look_now(self) -> None:
        """Looks once, on the calling thread."""
        with self._changed:
            self._look(self._watched)

    def _run(self) -> None:
        with self._changed:
            while not self._is_stopping:
                if not self._watched:
                    self._changed.wait()
                    continue
                self._look(self._watched)
                self._clock.wait(self._changed, self._period_seconds)
