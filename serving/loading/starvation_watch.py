"""Raises the priority of loads that starve at idle priority.

If requests use all cores, a thread at idle priority gets almost no time (SCHED_IDLE has a weight of 3
against 1,024). A new version would then be minutes late, or not come while the load lasts. So a watch
measures how long the kernel has kept each thread waiting for a core. Beyond the limit it gives the
thread the priority of requests until its task ends.

Threads that a library has started for the task inherited its priority and starve with it: the watch
looks at their waits too, and raises and lowers them with the task.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.periodic_thread import Watch
from serving.loading.load_priority import LoadPriority

PERIOD_SECONDS = 0.2
"""The period of the watch while tasks run; it sleeps otherwise."""

_log = structlog.get_logger(__name__)


class Scheduler:
    """The kernel's scheduler, for threads of this process."""

    def waited_ns(self, thread_id: int) -> int:
        """The nanoseconds that the thread has waited for a core since it began; 0: unknown.

        Documentation/scheduler/sched-stats.rst names the fields of schedstat.
        """
        try:
            text = Path(f"/proc/self/task/{thread_id}/schedstat").read_text(encoding="ascii")
        except OSError:
            return 0
        return int(text.split()[1])

    def started(self, thread_id: int) -> int:
        """The time when the thread started, in clock ticks since boot; 0: it has ended.

        The kernel may give the id of a thread that has ended to another one.
        """
        try:
            text = Path(f"/proc/self/task/{thread_id}/stat").read_text(encoding="utf-8")
        except OSError:
            return 0
        return int(text.rpartition(")")[2].split()[19])

    def raise_priority(self, thread_id: int) -> None:
        """Gives the thread the usual priority. Raises OSError, for instance PermissionError.

        Needs CAP_SYS_NICE, or RLIMIT_NICE of 20 and more.
        """
        os.sched_setscheduler(thread_id, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, thread_id, 0)


Helpers = Callable[[], Collection[int]]
"""Returns the ids of the threads that work for a task beside its own. Other tasks may share them."""


def no_helpers() -> Collection[int]:
    return ()


@dataclass
class _Watched:
    helpers: Helpers
    waited_ns_before: dict[int, int]
    """The wait of each thread when the task began, or when the watch first saw the thread."""
    is_given_up: bool = False
    raised: dict[int, int] = field(default_factory=dict)
    """The start of each raised thread, by its id."""


class StarvationWatch:
    """Watches the background threads while they work, on a thread `load-patience`.

    Make it on a thread of the usual priority, which `load-patience` inherits.
    """

    def __init__(
        self,
        seconds: float,
        *,
        priority: LoadPriority,
        scheduler: Scheduler | None = None,
        clock: Clock,
    ) -> None:
        self._patience_ns = round(seconds * NS_PER_SECOND)
        self._priority = priority
        self._scheduler = scheduler or Scheduler()
        self._watch: Watch[int, _Watched] = Watch(
            "load-patience", self._look, period_seconds=PERIOD_SECONDS, clock=clock
        )

    def start(self) -> None:
        """Starts the watch."""
        self._watch.start()

    def stop(self) -> None:
        """Ends the watch; a raised thread keeps its priority until its task ends."""
        self._watch.stop()

    @contextmanager
    def watched(self, thread_id: int, helpers: Helpers = no_helpers) -> Iterator[None]:
        """Wraps a task of the thread with that id. Any thread may enter and leave it."""
        before = {one: self._scheduler.waited_ns(one) for one in (thread_id, *helpers())}
        watched = _Watched(helpers, before)
        try:
            with self._watch.watching(thread_id, watched):
                yield
        finally:
            for one, started in watched.raised.items():
                if self._scheduler.started(one) == started:
                    self._priority.lower(one)

    def look(self) -> None:
        """Raises the threads that have waited too long."""
        self._watch.look_now()

    def _look(self, threads: Mapping[int, _Watched]) -> None:
        for thread_id, watched in threads.items():
            if watched.is_given_up:
                continue
            all_threads = (thread_id, *watched.helpers())
            if watched.raised:
                # A helper may be new, or was lowered by the end of another task; or it has just ended.
                with suppress(OSError):
                    self._raise(all_threads[1:], watched)
                continue
            waited_ns = max(self._waited_ns(one, watched) for one in all_threads)
            if waited_ns >= self._patience_ns:
                self._begin_to_raise(all_threads, watched, waited_ns)

    def _waited_ns(self, thread_id: int, watched: _Watched) -> int:
        """How long the thread has waited for this task.

        A thread that the watch sees first after the task's start counts from then, because it may have waited
        for other tasks before.
        """
        waited_ns = self._scheduler.waited_ns(thread_id)
        return waited_ns - watched.waited_ns_before.setdefault(thread_id, waited_ns)

    def _raise(self, threads: Collection[int], watched: _Watched) -> None:
        for thread_id in threads:
            started = self._scheduler.started(thread_id)
            with suppress(ProcessLookupError):
                self._scheduler.raise_priority(thread_id)
                watched.raised[thread_id] = started

    def _begin_to_raise(self, threads: Collection[int], watched: _Watched, waited_ns: int) -> None:
        try:
            self._raise(threads, watched)
        except OSError as error:
            watched.is_given_up = True
            _log.warning(
                "load_starving",
                waited_seconds=round(waited_ns / NS_PER_SECOND, 2),
                reason=f"its priority cannot be raised: {error}",
                remedy="use --load_priority=normal, or give the process CAP_SYS_NICE",
            )
            return
        _log.info("load_priority_raised", waited_seconds=round(waited_ns / NS_PER_SECOND, 2))
