"""The priority of the processes of a fleet on Ray.

Ray starts its workers with nice 15 and the highest score of the kernel's out-of-memory killer, and their
children inherit both. A server expects nice 0, because it lowers some of its threads below its requests.
"""

import os
from pathlib import Path

import structlog

_REMEDY = "start Ray on this node as root, or with RAY_worker_niceness=0 and RAY_worker_oom_score_adjustment=0"

_log = structlog.get_logger(__name__)


def take_usual_priority() -> None:
    """Gives this process the priority of one that was started from a shell.

    Threads and processes that it starts later have it too. If the kernel refuses it, that is logged: it
    needs root, or Ray's settings.
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
