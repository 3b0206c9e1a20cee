"""The priority of the threads that load and unload versions (--load_priority)."""

import os

import structlog

from serving.data_plane.plane import DataPlane

IDLE = "idle"
NICE = "nice"
_LOWEST_NICE = 19

_log = structlog.get_logger(__name__)


class LoadPriority:
    """Sets the priority of threads. Any thread. With `is_stock`, it changes nothing.

    A load or unload goes on at the priority that its thread has if the system refuses a lower one, as a
    sandbox may do: a warning is logged.
    """

    def __init__(self, plane: DataPlane, priority: str, *, is_stock: bool) -> None:
        self._plane = plane
        self._priority = priority
        self._is_stock = is_stock

    def enter_initial(self) -> None:
        """Lets the calling thread use memory as a background thread does, at its own priority."""
        self._enter("normal")

    def enter_background(self) -> None:
        """Makes the calling thread one of the background, at its priority."""
        self._enter(self._priority)

    def lower(self, thread_id: int) -> None:
        """Gives another thread the priority of the background."""
        if self._is_stock:
            return
        try:
            lower_thread(thread_id, self._priority)
        except OSError as error:
            self._warn(self._priority, error)

    def _enter(self, priority: str) -> None:
        if self._is_stock:
            return
        try:
            self._plane.enter_background_thread(priority)
        except self._plane.StatusError as error:
            self._warn(priority, error)

    def _warn(self, priority: str, error: Exception) -> None:
        _log.warning("load_priority_refused", requested=priority, reason=str(error))


def is_lowered(thread_id: int) -> bool:
    """True if a thread of this process has a priority that `lower_thread` gives. Raises OSError."""
    return (
        os.sched_getscheduler(thread_id) == os.SCHED_IDLE
        or os.getpriority(os.PRIO_PROCESS, thread_id) == _LOWEST_NICE
    )


def lower_thread(thread_id: int, priority: str) -> None:
    """Gives a thread of this process the priority of a value of --load_priority. Raises OSError."""
    if priority == IDLE:
        os.sched_setscheduler(thread_id, os.SCHED_IDLE, os.sched_param(0))
    elif priority == NICE:
        os.setpriority(os.PRIO_PROCESS, thread_id, _LOWEST_NICE)
