"""Processes that work for a server on programs of XLA, and never outlive it.

XLA compiles under locks that stop all runs of its process.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from serving.base.clock import Clock, seconds_since
from serving.base.name_text import printable
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.loading.core_loan import CoreLender

_log = structlog.get_logger(__name__)

_END_SECONDS_MAX = 10.0
"""A process that was killed is gone in milliseconds, unless a driver holds it."""

_WAIT_SECONDS_MAX = 1.0
"""The time until a cancel is noticed, if the process does not end by it."""

_STDERR_CHARACTERS = 2_000

_REMAINS = "an earlier process was killed, and has not ended yet"


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


@dataclass(frozen=True)
class ChildEnd:
    """The end of a process.

    `reason` says why it did not end well, and is "" if it did. The `status` is None if it was killed by this server, or
    could not be started. `is_old` is true if nothing was started, because an earlier process remains.
    """

    reason: str
    status: int | None = None
    said: str = ""
    seconds: float = 0.0
    is_old: bool = False

    def report(
        self, servable_id: ServableId, program_count: int, *, good: str, bad: str, **fields: object
    ) -> None:
        """Logs the event `good`, or `bad` with the reason, of a process that compiled programs of a version."""
        fields |= {
            "programs": program_count,
            "seconds": round(self.seconds, 3),
            "stderr": self.said,
        }
        log = _log.bind(model=servable_id.name, version=servable_id.version, **fields)
        if self.reason:
            log.warning(bad, reason=self.reason)
        else:
            log.info(good)


class ChildRuns:
    """Runs one process at a time. Thread: one at a time; any may cancel a run."""

    def __init__(self, seconds_max: float, clock: Clock, cores: CoreLender | None = None) -> None:
        self._seconds_max = seconds_max
        self._clock = clock
        self._cores = cores
        # A process that was killed, and that had not ended yet.
        self._remaining: Child | None = None

    def run(self, spawn: Callable[[int], Child], cancellation: Cancellation) -> ChildEnd:
        """Runs the process that `spawn` starts with a descriptor as its standard error, to its end.

        The server lends it the cores that it has while it can. Takes `seconds_max`, and the ten seconds that a killed
        process may take to end. Once cancelled, it ends the process.
        """
        if self._remaining is not None and self._remaining.wait(0) is None:
            return ChildEnd(_REMAINS, is_old=True)
        self._remaining = None
        began_ns = self._clock.now_ns()
        said, status = "", None
        try:
            # A file, because a process may wait for the reader of a full pipe.
            with (
                os.fdopen(os.memfd_create("stderr"), "rb+", buffering=0) as stderr,
                self._loan() as look,
            ):
                status = self._run(spawn(stderr.fileno()), look, cancellation)
                # A character has four bytes at most, and a process may have said gigabytes.
                stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 4 * _STDERR_CHARACTERS))
                said = stderr.read().decode(errors="replace").strip()[-_STDERR_CHARACTERS:]
            reason = self._reason(status)
        except OSError as error:
            reason = f"the process cannot be started: {error!r}"
        return ChildEnd(reason, status, printable(said), seconds_since(self._clock, began_ns))

    @contextmanager
    def _loan(self) -> Iterator[Callable[[], object]]:
        """Yields what is to be called each second or so, and takes the cores back at last."""
        if self._cores is None:
            yield lambda: None
            return
        loan = self._cores.loan()
        try:
            yield loan.look
        finally:
            loan.end()

    def _run(
        self, child: Child, look: Callable[[], object], cancellation: Cancellation
    ) -> int | None:
        """Waits for the end of a process; returns None if it had to be killed."""
        status = None
        try:
            with cancellation.stops_by(child.kill):
                status = self._wait(child, look, cancellation)
        finally:
            if status is None:
                child.kill()
                if child.wait(_END_SECONDS_MAX) is None:
                    self._remaining = child
        return status

    def _wait(
        self, child: Child, look: Callable[[], object], cancellation: Cancellation
    ) -> int | None:
        """Waits for the end of a process; None after `seconds_max`, or soon after a cancel."""
        began_ns = self._clock.now_ns()
        while not cancellation.is_cancelled:
            left_seconds = self._seconds_max - seconds_since(self._clock, began_ns)
            status = child.wait(max(0.0, min(left_seconds, _WAIT_SECONDS_MAX)))
            if status is not None or left_seconds <= 0:
                return status
            look()
        return None

    def _reason(self, status: int | None) -> str:
        if status is None:
            return (
                f"the process took more than {self._seconds_max:g} s, and was killed; if it needs longer, raise "
                "--accelerator_autotuning_seconds"
            )
        return "" if status == 0 else f"the process ended with status {status}"
