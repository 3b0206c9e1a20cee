"""GlanceRound: looks at all base paths at rest of one disk in turn, for little more than their system calls."""

import threading
from collections.abc import Callable

from serving.source.glance import Sight, glance


class GlanceRound:
    """Calls `changed(key)` once when the base path of a key differs from its sight; then forgets the key.

    It is for base paths whose changes the kernel does not report. It is a `Pollable`: one poll glances at
    every base path, so that a thousand of them wake a thread once a period, and not a thousand times.

    If a poll gets stuck, every key counts as changed. Then each source polls by itself, and only a source
    whose own path hangs is reported. Any thread may call each method.
    """

    def __init__(self, changed: Callable[[str], None], period_seconds: float) -> None:
        """`changed` is called without a lock, and must not wait."""
        self._changed = changed
        self._period_seconds = period_seconds
        self._lock = threading.Lock()
        # The base path of each key, and its sight. Guarded by the lock.
        self._sights: dict[str, tuple[str, Sight]] = {}

    def watch(self, key: str, directory: str, sight: Sight) -> bool:
        """Looks at `directory` for `key` from now on. Returns True if no other key was there before."""
        with self._lock:
            was_idle = not self._sights
            self._sights[key] = (directory, sight)
            return was_idle

    def forget(self, key: str) -> None:
        """Looks at nothing for `key` any more. `changed` may still be called once."""
        with self._lock:
            self._sights.pop(key, None)

    def poll(self, number: int) -> float | None:
        """Glances at each base path once. Returns None, to wait for the next `watch`, if none is left."""
        del number
        with self._lock:
            sights = list(self._sights.items())
        for key, (directory, sight) in sights:
            if glance(directory, sight.links) != sight.identity and self._take(key, sight):
                self._changed(key)
        return self._period_seconds if self._sights else None

    def stuck_changed(self, stuck_seconds: Callable[[], float | None]) -> None:
        """Hands all keys back to their own polls once a poll hangs."""
        if stuck_seconds() is None:
            return
        with self._lock:
            keys = sorted(self._sights)
            self._sights.clear()
        for key in keys:
            self._changed(key)

    def _take(self, key: str, sight: Sight) -> bool:
        """Forgets `key` unless it got another sight meanwhile. Returns True if it was there."""
        with self._lock:
            _, watched = self._sights.get(key, ("", None))
            if watched is not sight:
                return False
            del self._sights[key]
            return True
