"""Runs a program that the kernel kills when its parent ends: `python bound_process.py PARENT PROGRAM …`.

The program replaces this script in its process. The script imports nothing of Millpond, so it takes only
milliseconds. The kernel kills the program as soon as the *thread* that started this script ends.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def bound(command: Sequence[str]) -> list[str]:
    """The command that runs `command` (a path and its arguments), and binds that program to this process."""
    # -I and -S leave out the user's settings and site-packages, so that Python starts faster.
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *command]


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):
        # The parent ended before `prctl`, so the kernel will send no signal.
        sys.exit(1)
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
