"""Starvation: how long a load may starve at idle priority before it gets a share of the cores.

Where requests take all cores, a thread at idle priority gets next to none (SCHED_IDLE's weight is 3
beside 1,024): a new version would come minutes late, or not as long as it lasts. So a watch looks
how long the kernel has kept each thread waiting for a core, and past the patience it gives the
thread the priority that requests have, until its task ends.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.periodic_thread import Watch

PERIOD_SECONDS = 0.2
"""How often the watch looks while tasks run; it sleeps otherwise."""

_log = structlog.get_logger(__name__)


class Scheduler(Protocol):
    """The kernel's, for threads of this process."""

    def waited_ns(self, thread_id: int) -> int:
        """Nanoseconds that the thread was ready to run and had no core, since it began; 0: unknown."""
        ...

    def raise_priority(self, thread_id: int) -> None:
        """Gives the thread the usual priority. Raises PermissionError."""
        ...


class LinuxScheduler:
    """See `Scheduler`. Documentation/scheduler/sched-stats.rst names the fields of schedstat."""

    def waited_ns(self, thread_id: int) -> int:
        """See `Scheduler`."""
        try:
            text = Path(f"/proc/self/task/{thread_id}/schedstat").read_text(encoding="ascii")
        except OSError:
            return 0
        return int(text.split()[1])

    def raise_priority(self, thread_id: int) -> None:
        """See `Scheduler`. Needs CAP_SYS_NICE, or RLIMIT_NICE of 20 and more."""
        os.sched_setscheduler(thread_id, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, thread_id, 0)


@dataclass
class _Watched:
    waited_ns_before: int
    is_raised: bool = False
    is_given_up: bool = False


class StarvationWatch:
    """Watches the background threads while they work. Its own thread is `load-patience`.

    Make it on a thread of usual priority, which its own inherits. `lower` gives the calling thread
    its background priority back.
    """

    def __init__(
        self,
        seconds: float,
        *,
        lower: Callable[[], None],
        scheduler: Scheduler | None = None,
        clock: Clock,
    ) -> None:
        self._patience_ns = round(seconds * NS_PER_SECOND)
        self._lower = lower
        self._scheduler = scheduler or LinuxScheduler()
        self._watch: Watch[int, _Watched] = Watch(
            "load-patience", self._look, period_seconds=PERIOD_SECONDS, clock=clock
        )

    def start(self) -> None:
        """Starts the watch."""
        self._watch.start()

    def stop(self) -> None:
        """Ends the watch; what is raised stays so until its task ends."""
        self._watch.stop()

    @contextmanager
    def watched(self, thread_id: int) -> Iterator[None]:
        """Around a task of the thread with that id, which leaves it; any thread may enter it."""
        watched = _Watched(self._scheduler.waited_ns(thread_id))
        try:
            with self._watch.watching(thread_id, watched):
                yield
        finally:
            if watched.is_raised:
                self._lower()

    def look(self) -> None:
        """Raises whoever has waited too long."""
        self._watch.look_now()

    def _look(self, threads: Mapping[int, _Watched]) -> None:
        for thread_id, watched in threads.items():
            if watched.is_raised or watched.is_given_up:
                continue
            waited_ns = self._scheduler.waited_ns(thread_id) - watched.waited_ns_before
            if waited_ns >= self._patience_ns:
                self._raise(thread_id, watched, waited_ns)

    def _raise(self, thread_id: int, watched: _Watched, waited_ns: int) -> None:
        try:
            self._scheduler.raise_priority(thread_id)
        except OSError as error:
            watched.is_given_up = True
            _log.warning(
                "load_starving",
                waited_seconds=round(waited_ns / NS_PER_SECOND, 2),
                reason=f"its priority cannot be raised: {error}",
                remedy="say --load_priority=normal, or give the process CAP_SYS_NICE",
            )
            return
        watched.is_raised = True
        _log.info("load_priority_raised", waited_seconds=round(waited_ns / NS_PER_SECOND, 2))
