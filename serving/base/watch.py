"""A thread that looks at things every so often, as long as there are any."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from serving.base.clock import Clock

Key = TypeVar("Key")
Item = TypeVar("Item")


class Watch(Generic[Key, Item]):
    """Calls `look` with what is watched, every `period_seconds`, and sleeps while nothing is.

    It looks at once when the first item is added; an item beside others waits for the next turn.

    `look` runs under the watch's lock, so that what leaves it is not looked at any more. Start it on
    a thread of usual priority, which its own inherits. Without `start` only `look_now` looks.
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
        """Ends the thread, where it was started."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    @contextmanager
    def watching(self, key: Key, item: Item) -> Iterator[None]:
        """Within it `item` is looked at. Any thread."""
        self.add(key, item)
        try:
            yield
        finally:
            self.remove(key)

    def add(self, key: Key, item: Item) -> None:
        """`item` is looked at until `remove`. Any thread, and within `look`."""
        with self._changed:
            is_idle = not self._watched
            self._watched[key] = item
            if is_idle:
                self._changed.notify_all()

    def remove(self, key: Key) -> None:
        """`key` is not looked at any more, where it was. Any thread, and within `look`."""
        with self._changed:
            self._watched.pop(key, None)

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
