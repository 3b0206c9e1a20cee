"""Runs a program that the kernel kills when its parent ends: `python bound_process.py PARENT PROGRAM …`.

A script that imports nothing of Millpond, so that it takes milliseconds. The program takes its place.

The kernel kills the program when the *thread* that started this process ends.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def bound(command: Sequence[str]) -> list[str]:
    """The command that runs `command`, a path and its arguments, bound to this process."""
    # Isolated and without site-packages: neither is needed.
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *command]


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):
        # The parent ended before the call, so the signal will not come.
        sys.exit(1)
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
