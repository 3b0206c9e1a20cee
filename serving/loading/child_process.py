"""Processes that work for a server, and never outlive it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Protocol


class Child(Protocol):
    """A process that was started."""

    def wait(self, timeout_seconds: float) -> int | None:
        """Waits for its end, and returns its status; None at the timeout."""
        ...

    def kill(self) -> None:
        """Ends it now. Returns at once; it may be gone already. Any thread."""
        ...


class ChildProcess:
    """A `Child` of this process, which holds the pipe that is its standard input."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self, timeout_seconds: float) -> int | None:
        """See `Child`."""
        try:
            status = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status

    def kill(self) -> None:
        """See `Child`."""
        self._process.kill()


def spawn_module(
    module: str,
    arguments: Sequence[str],
    *,
    visible_devices: str | None,
    descriptors: Sequence[int],
    stderr: int,
) -> Child:
    """Starts a module of this server, which ends with this process, and has its `descriptors`. Raises OSError.

    It sees the GPUs in `visible_devices`, a value of CUDA_VISIBLE_DEVICES, or those of this process.
    """
    # The modules are the server's, and none comes from the working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    if visible_devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible_devices
    return ChildProcess(
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            # The process ends when this pipe does.
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            env=environment,
            pass_fds=descriptors,
        )
    )
