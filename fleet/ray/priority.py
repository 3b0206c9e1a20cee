"""Gives the processes of a fleet on Ray the usual priority.

Ray starts its workers with nice 15, and makes them the first that the kernel kills if memory runs out. Their
child processes inherit both. A server needs nice 0, because it gives some of its own threads a lower priority
than the threads that answer requests.
"""

import os
from pathlib import Path

import structlog

_REMEDY = "start Ray on this node as root, or with RAY_worker_niceness=0 and RAY_worker_oom_score_adjustment=0"

_log = structlog.get_logger(__name__)


def take_usual_priority() -> None:
    """Gives this process the priority of a process that was started from a shell.

    Threads and processes that it starts later inherit that priority. If the kernel refuses, logs what an
    operator can do, because only root may raise a priority.
    """
    for take in (_set_usual_nice, _set_usual_score):
        try:
            take()
        except OSError as error:
            _log.warning("fleet_priority_refused", reason=str(error), remedy=_REMEDY)


def _set_usual_nice() -> None:
    """Sets nice 0. On Linux each thread has a nice value of its own."""
    for thread in map(int, os.listdir("/proc/self/task")):
        try:
            if os.getpriority(os.PRIO_PROCESS, thread) > 0:
                os.setpriority(os.PRIO_PROCESS, thread, 0)
        except ProcessLookupError:
            # The thread has ended in the meantime.
            continue


def _set_usual_score() -> None:
    path = Path("/proc/self/oom_score_adj")
    if int(path.read_text()) > 0:
        path.write_text("0")
