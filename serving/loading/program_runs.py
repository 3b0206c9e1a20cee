"""Has programs of XLA compiled in a process of their own, because XLA compiles under locks that stop all runs."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import structlog

from serving.base.clock import Clock, seconds_since
from serving.base.name_text import printable
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.loading.child_process import Child
from serving.loading.core_loan import CoreLender, CoreLoan
from serving.loading.program_process import Arguments, spawn_programs

_log = structlog.get_logger(__name__)

_END_SECONDS_MAX = 10.0
"""A process that was killed is gone in milliseconds, unless a driver holds it."""

_WAIT_SECONDS_MAX = 1.0
"""The time until a cancel is noticed, if the process does not end by it."""

_STDERR_CHARACTERS = 2_000

_REMAINS = "an earlier process was killed, and has not ended yet"

Spawn = Callable[[Arguments, Sequence[bytes], int], Child]
"""Starts the process for programs, whose standard error is a descriptor. Raises OSError."""


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


class ProgramRuns:
    """Has programs compiled into the cache, by one process at a time.

    The server lends a process the cores that it has, while it can. The process takes `seconds_max` at most, and the ten
    seconds that a killed one may take to end.

    Thread: one at a time; any may cancel a run.
    """

    def __init__(
        self, seconds_max: float, cores: CoreLender, clock: Clock, spawn: Spawn = spawn_programs
    ) -> None:
        self._seconds_max = seconds_max
        self._cores = cores
        self._clock = clock
        self._spawn = spawn
        # A process that was killed, and that had not ended yet.
        self._remaining: Child | None = None

    def run(
        self, arguments: Arguments, programs: Sequence[bytes], cancellation: Cancellation
    ) -> ChildEnd:
        """Runs a process for `programs` to its end; `arguments` get its cores. Once cancelled, it ends the process."""
        if self._remaining is not None and self._remaining.wait(0) is None:
            return ChildEnd(_REMAINS, is_old=True)
        self._remaining = None
        began_ns = self._clock.now_ns()
        said, status = "", None
        try:
            # A file, because a process may wait for the reader of a full pipe.
            with (
                os.fdopen(os.memfd_create("stderr"), "rb+", buffering=0) as stderr,
                closing(self._cores.loan()) as loan,
            ):
                arguments = arguments._replace(cores=loan.cores)
                child = self._spawn(arguments, programs, stderr.fileno())
                status = self._run(child, loan, cancellation)
                # A character has four bytes at most, and a process may have said gigabytes.
                stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 4 * _STDERR_CHARACTERS))
                said = stderr.read().decode(errors="replace").strip()[-_STDERR_CHARACTERS:]
            reason = self._reason(status)
        except OSError as error:
            reason = f"the process cannot be started: {error!r}"
        return ChildEnd(reason, status, printable(said), seconds_since(self._clock, began_ns))

    def _run(self, child: Child, loan: CoreLoan, cancellation: Cancellation) -> int | None:
        """Waits for the end of a process; returns None if it had to be killed."""
        status = None
        try:
            with cancellation.stops_by(child.kill):
                status = self._wait(child, loan, cancellation)
        finally:
            if status is None:
                child.kill()
                if child.wait(_END_SECONDS_MAX) is None:
                    self._remaining = child
        return status

    def _wait(self, child: Child, loan: CoreLoan, cancellation: Cancellation) -> int | None:
        """Waits for the end of a process; None after `seconds_max`, or soon after a cancel."""
        began_ns = self._clock.now_ns()
        while not cancellation.is_cancelled:
            left_seconds = self._seconds_max - seconds_since(self._clock, began_ns)
            status = child.wait(max(0.0, min(left_seconds, _WAIT_SECONDS_MAX)))
            if status is not None or left_seconds <= 0:
                return status
            loan.look()
        return None

    def _reason(self, status: int | None) -> str:
        if status is None:
            return (
                f"the process took more than {self._seconds_max:g} s, and was killed; if it needs longer, raise "
                "--accelerator_autotuning_seconds"
            )
        return "" if status == 0 else f"the process ended with status {status}"
