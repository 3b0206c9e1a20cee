"""Pins request threads to cores while background threads, or HTTP's threads, use the other cores.

A thread of lower priority leaves its core to any request thread that wakes there. But the kernel must
choose that core. If all cores of a last-level cache are busy, as they are during a load, the kernel
stops searching for the best core (`SIS_UTIL` in kernel/sched/fair.c). It may wake two request threads
on one core while another core runs only the load, for 20 ms and more, until its load balancer runs.
This was seen with `perf sched`. docs/figures.md has the effect of pinning on the tail.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

PINNED_CORES_MAX = 8
"""The most cores on which threads are pinned. A load makes one core busy, so on larger machines the
kernel still searches for a free core. Also, another process's thread on a request thread's core does
more harm there than the kernel's choice."""

_log = structlog.get_logger(__name__)


class RequestCores:
    """Pins the request threads while tasks run. Any thread.

    `is_idle` returns True if the thread with that id has idle priority.
    """

    def __init__(
        self, is_idle: Callable[[int], bool] | None = None, core_count: int | None = None
    ) -> None:
        self._pins: list[Callable[[bool], object]] = []
        self._is_idle = is_idle or _is_idle
        self._is_small = (core_count or _core_count()) <= PINNED_CORES_MAX
        self._changing = threading.Lock()
        self._task_count = 0

    def add_listener(self, pin: Callable[[bool], object]) -> None:
        """Calls `pin` with True when threads are to be pinned, and with False when they are not any more.

        `pin` is `GrpcServer.pin_request_threads`. Call this before the first task.
        """
        self._pins.append(pin)

    @contextmanager
    def pinned(self, thread_id: int) -> Iterator[None]:
        """Wraps a task of the thread with that id. Does nothing if its priority is not idle.

        Beside a load of the usual priority, a request thread should stay free to move.
        """
        if not self._is_small or not self._is_idle(thread_id):
            yield
            return
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    def hold(self, is_held: bool) -> None:
        """Pins with True and unpins with False, in turn.

        For requests over HTTP, whose threads have a nice value.
        """
        if self._is_small:
            self._add(1 if is_held else -1)

    def pin_again(self) -> None:
        """Pins threads that have started since the tasks that run now began."""
        with self._changing:
            if self._task_count > 0:
                self._pin(is_pinned=True)

    def _add(self, count: int) -> None:
        with self._changing:
            before, self._task_count = self._task_count, self._task_count + count
            if (before == 0) != (self._task_count == 0):
                self._pin(is_pinned=self._task_count > 0)

    def _pin(self, *, is_pinned: bool) -> None:
        for pin in self._pins:
            pin(is_pinned)


def pin_always(pin: Callable[[bool], bool]) -> None:
    """Pins the request threads for as long as the server runs; logs a warning if that fails."""
    if not pin(True):
        _log.warning(
            "request_threads_not_pinned",
            core_count=_core_count(),
            remedy="remove --grpc_request_threads, so that each core has a thread",
        )


def _is_idle(thread_id: int) -> bool:
    return os.sched_getscheduler(thread_id) == os.SCHED_IDLE


def _core_count() -> int:
    return len(os.sched_getaffinity(0))
