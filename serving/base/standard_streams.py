"""Gives a process the standard streams that its parent left closed, as `2>&-` does."""

import os
import sys

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def open_closed_streams() -> None:
    """Opens the null device as each of standard input, output and error that is closed.

    Otherwise the next file or socket of the process takes that number, and whatever is printed goes there.
    """
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        if _is_open(descriptor):
            continue
        # The lowest free number, which is this one: those below are open.
        os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(descriptor, True)
    sys.stdin = sys.stdin or os.fdopen(_STDIN, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", errors="backslashreplace", closefd=False)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
