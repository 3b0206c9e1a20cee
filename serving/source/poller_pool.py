"""The threads that read disks for all sources; `poll_schedule.py` decides which source is next."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.no_threads import NO_THREAD_REMEDY
from serving.source.directory_watch import DirectoryWatch
from serving.source.glance import Sight
from serving.source.glance_rounds import GlanceRound
from serving.source.poll_schedule import Poll, PollLimits, PollSchedule

_log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0
"""The wait after a poll that raised, which is a bug, or after a thread that could not be started."""


class Pollable(Protocol):
    """A source, as its pool sees it."""

    def poll(self, number: int) -> float | None:
        """Polls once and returns the seconds until the next poll, or None to wait until it is woken.

        Called on a thread of the pool. If two polls run at once, the poll with the larger `number`
        began later. If it ends first, the result of the other poll is out of date.
        """
        ...

    def stuck_changed(self, stuck_seconds: Callable[[], float | None]) -> None:
        """Handles the start or end of a stuck poll. Called on a thread of the pool.

        `stuck_seconds()` returns how long the poll has been running, or None if it, or a later poll,
        has ended.
        """
        ...


class PollerPool:
    """Runs polls on threads `poller-N`, which are started as needed, and times them.

    The thread `poller-watch` hands out the polls that are due and detects stuck ones. All threads are
    daemons, because a dead disk can hold a thread for ever. The pool calls no method of a source
    under its lock. A source whose directory is watched is due once that changes.
    """

    def __init__(self, limits: PollLimits, clock: Clock) -> None:
        self._clock = clock
        # One lock guards all fields below. `_changed` wakes the watch, `_was_given` a poller thread.
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._was_given = threading.Condition(lock)
        self._schedule = PollSchedule(limits)
        self._sources: dict[str, Pollable] = {}
        self._given: deque[Poll] = deque()
        # The number of threads that no stuck poll holds, and the number of threads ever started.
        self._free_count = 0
        self._thread_count = 0
        # All poller threads, and the poller threads that run a poll now.
        self._threads: set[threading.Thread] = set()
        self._held_threads: set[threading.Thread] = set()
        # True if the kernel refused a thread when one was last needed.
        self._lacks_thread = False
        self._is_stopping = False
        self._watch = threading.Thread(target=self._run_watch, name="poller-watch", daemon=True)
        self._directories = DirectoryWatch(self.wake)
        # The rounds of each disk, under the key of its polls, and the round of each watched source.
        self._rounds: dict[str, GlanceRound] = {}
        self._round_of: dict[str, GlanceRound] = {}

    def start(self) -> None:
        """Starts polling; sources may have been added before."""
        self._watch.start()

    def stop(self) -> None:
        """Begins no more polls. Returns at once."""
        with self._changed:
            self._is_stopping = True
            while self._given:
                self._schedule.ended(self._given.popleft(), self._clock.now_ns(), None)
            self._changed.notify_all()
            self._was_given.notify_all()
        self._directories.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits after `stop` until all threads that no poll holds have ended."""
        end_ns = self._clock.now_ns() + round(timeout_seconds * NS_PER_SECOND)
        with self._changed:
            threads = [self._watch, *(self._threads - self._held_threads)]
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(end_ns - self._clock.now_ns(), 0) / NS_PER_SECOND)
        remaining_seconds = max(end_ns - self._clock.now_ns(), 0) / NS_PER_SECOND
        is_watch_over = self._directories.join(remaining_seconds)
        return is_watch_over and not any(thread.is_alive() for thread in threads)

    def add(self, key: str, group: str, source: Pollable, *, is_due: bool) -> None:
        """Adds a source. Its first poll is due at once if `is_due`, otherwise when it is woken."""
        with self._changed:
            self._sources[key] = source
            self._schedule.add(key, group, self._clock.now_ns() if is_due else None)
            self._changed.notify_all()

    def remove(self, key: str) -> None:
        """Removes a source and returns at once. A poll under way goes on, but schedules no further poll."""
        with self._changed:
            self._sources.pop(key, None)
            self._schedule.remove(key)
        self.forget_watch(key)

    def watch(self, key: str, directory: str, sight: Sight, period_seconds: float) -> bool:
        """Makes the source due at the next change of `directory` since its `sight`.

        The kernel reports the change at once (`DirectoryWatch`), or else a glance each period finds it. Returns
        False if neither is possible. The caller glances once more after that.
        """
        is_reported = self._directories.watch(key, directory, sight.links)
        self._forget_glances(key)
        if is_reported or not sight.shows_changes:
            return is_reported
        self._watch_by_glances(key, directory, sight, period_seconds)
        return True

    def forget_watch(self, key: str) -> None:
        """Ends `watch`."""
        self._directories.forget(key)
        self._forget_glances(key)

    def _forget_glances(self, key: str) -> None:
        with self._changed:
            by_glances = self._round_of.pop(key, None)
        if by_glances is not None:
            by_glances.forget(key)

    def _watch_by_glances(
        self, key: str, directory: str, sight: Sight, period_seconds: float
    ) -> None:
        # Base paths on one disk hang together.
        name = f"\0glances at disk {sight.device}"
        with self._changed:
            if name not in self._rounds:
                self._rounds[name] = GlanceRound(self.wake, period_seconds)
                self._schedule.add(name, name, None)
            made = self._round_of[key] = self._rounds[name]
            if made.watch(key, directory, sight):
                self._schedule.wake(
                    name, None, self._clock.now_ns() + round(period_seconds * NS_PER_SECOND)
                )
                self._changed.notify_all()

    @property
    def source_count(self) -> int:
        """The number of sources that share the threads."""
        return len(self._sources)

    def wake(self, key: str, group: str | None = None) -> None:
        """Makes the source due now, or after its poll under way.

        `group` is as in `add`; without it, it stays as it was.
        """
        with self._changed:
            self._schedule.wake(key, group, self._clock.now_ns())
            self._changed.notify_all()

    def wait_until_idle(self, key: str, timeout_seconds: float) -> bool:
        """Waits until no poll of `key` is under way. Returns False at the timeout."""
        end_ns = self._clock.now_ns() + round(timeout_seconds * NS_PER_SECOND)
        with self._changed:
            while not self._schedule.is_idle(key):
                remaining_ns = end_ns - self._clock.now_ns()
                if remaining_ns <= 0:
                    return False
                self._clock.wait(self._changed, remaining_ns / NS_PER_SECOND)
        return True

    @property
    def stuck_keys(self) -> frozenset[str]:
        """The sources that are stuck."""
        with self._changed:
            return self._schedule.stuck_keys() - self._rounds.keys()

    def _pollable(self, key: str) -> Pollable | None:
        with self._changed:
            return self._sources.get(key) or self._rounds.get(key)

    def _stuck_seconds(self, key: str) -> float | None:
        with self._changed:
            since_ns = self._schedule.stuck_since_ns(key)
            now_ns = self._clock.now_ns()
        return None if since_ns is None else (now_ns - since_ns) / NS_PER_SECOND

    # --- poller-watch -----------------------------------------------------------------------------

    def _run_watch(self) -> None:
        while not self._is_stopping:
            with self._changed:
                stuck = self._schedule.note_stuck(self._clock.now_ns())
                self._free_count -= len(stuck)
                self._give_due()
                if not stuck:
                    self._wait()
            for poll in stuck:
                self._notify_stuck(poll.key)

    def _give_due(self) -> None:
        while (poll := self._schedule.take(self._clock.now_ns())) is not None:
            self._given.append(poll)
            self._was_given.notify()
        # A thread whose poll has just ended counts as free, although it does not wait for a poll yet.
        while self._free_count < self._schedule.running_count:
            lacked_thread, self._lacks_thread = self._lacks_thread, not self._start_thread()
            if self._lacks_thread and not lacked_thread:
                _log.warning("poller_not_started", remedy=NO_THREAD_REMEDY)
            if self._lacks_thread:
                return

    def _start_thread(self) -> bool:
        """Returns False if the kernel grants no thread. Then the running threads take the polls."""
        name = f"poller-{self._thread_count + 1}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._threads.add(thread)
        self._free_count += 1
        self._thread_count += 1
        return True

    def _wait(self) -> None:
        now_ns, due_ns = self._clock.now_ns(), self._schedule.next_due_ns()
        if self._lacks_thread:
            retry_ns = now_ns + round(RETRY_SECONDS * NS_PER_SECOND)
            due_ns = retry_ns if due_ns is None else min(due_ns, retry_ns)
        if self._is_stopping or (due_ns is not None and due_ns <= now_ns):
            return
        self._clock.wait(
            self._changed, None if due_ns is None else (due_ns - now_ns) / NS_PER_SECOND
        )

    # --- poller-N ---------------------------------------------------------------------------------

    def _run(self) -> None:
        is_needed = True
        while is_needed and (poll := self._take()) is not None:
            self._poll(poll)
            # After a stuck poll the thread is not needed, because another one has taken its place.
            is_needed = not poll.is_stuck
        with self._changed:
            self._threads.discard(threading.current_thread())

    def _take(self) -> Poll | None:
        with self._was_given:
            while not self._given and not self._is_stopping:
                self._clock.wait(self._was_given, None)
            if not self._given:
                return None
            self._held_threads.add(threading.current_thread())
            return self._given.popleft()

    def _poll(self, poll: Poll) -> None:
        source = self._pollable(poll.key)
        delay_seconds: float | None = RETRY_SECONDS
        try:
            if source is not None:
                delay_seconds = source.poll(poll.number)
        except Exception:  # noqa: BLE001 (a bug; the next poll may fare better)
            _log.exception("poll_failed", model=poll.key)
        with self._changed:
            was_stuck = self._schedule.stuck_since_ns(poll.key) is not None
            self._schedule.ended(poll, self._clock.now_ns(), delay_seconds)
            self._held_threads.discard(threading.current_thread())
            self._changed.notify_all()
        if was_stuck:
            self._notify_stuck(poll.key)

    def _notify_stuck(self, key: str) -> None:
        source = self._pollable(key)
        if source is None:
            return
        try:
            source.stuck_changed(lambda: self._stuck_seconds(key))
        except Exception:  # noqa: BLE001 (a bug; the other sources must go on)
            _log.exception("poll_failed", model=key)
