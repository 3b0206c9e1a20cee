"""Ends a process with the process that started it: a server by a variable of its environment."""

import os
import signal
import threading
from collections.abc import Callable, Mapping

STOP_AT_STDIN_EOF = "MILLPOND_STOP_AT_STDIN_EOF"
"""If it is 1, the server stops as at SIGTERM when its standard input closes. So it never outlives the
process that holds the other end. `ModelServer` and a supervisor set it."""


def stops_at_stdin_eof(environment: Mapping[str, str]) -> bool:
    return environment.get(STOP_AT_STDIN_EOF) == "1"


def stop_at_eof(descriptor: int, stop: Callable[[], None] | None = None) -> threading.Thread:
    """Starts a thread that calls `stop` when the pipe `descriptor` ends. By default, `stop` sends SIGTERM to
    this process.

    The parent holds the other end of the pipe. So this process ends with its parent, however the parent ends.
    PR_SET_PDEATHSIG would not be enough, because the kernel sends that signal when the thread that forked
    ends, and not the process.
    """

    def wait_for_eof() -> None:
        # Reads the descriptor and not sys.stdin, because Python aborts at its exit if a thread still reads
        # sys.stdin.
        while os.read(descriptor, 4096):
            pass
        (stop or (lambda: os.kill(os.getpid(), signal.SIGTERM)))()

    thread = threading.Thread(target=wait_for_eof, name="stdin-eof", daemon=True)
    thread.start()
    return thread
