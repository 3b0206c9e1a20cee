"""Compiles a load's programs in a process of their own, so that no run of a request waits for XLA.

XLA's compilation of a program stops all runs of its process several times, for 15 to 25 ms each on a machine with an
H200. A crash of the compiler ends its process only, so it costs a version and not the server.
"""

import os
import signal
import threading
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from serving.base.clock import Clock
from serving.base.errors import Cancelled, FailedPrecondition, MillpondError, ResourceExhausted
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.data_plane.loads import Accelerator
from serving.loading.program_process import UNABLE, Arguments
from serving.loading.program_runs import ChildEnd, ProgramRuns

_log = structlog.get_logger(__name__)

_UNABLE_MAX = 2
"""After so many processes in a row that began no program, the server compiles for itself, and loads wait for none."""

_ENDED_BY_PEOPLE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})

_TURN_SECONDS = 1.0
"""The time until a cancel is noticed by a load that waits for another one's process."""

_NO_GPU = ""


class Program(NamedTuple):
    """A program that the cache has not: its name for people, and its code."""

    name: str
    code: bytes


class CompileRuns:
    """Has programs compiled into the cache by one process at a time, from `start` on.

    `arguments` are those of all processes. Thread: any, at once: loads wait for one another.
    """

    def __init__(self, arguments: Arguments, runs: ProgramRuns, clock: Clock) -> None:
        self._arguments = arguments
        self._runs = runs
        self._clock = clock
        self._is_started = threading.Event()
        self._changed = threading.Condition()
        # The turn is guarded by the condition, and the rest by the turn.
        self._is_taken = False
        self._unable_count = 0

    def start(self) -> None:
        """Takes the programs of loads that begin from now on, because requests may run beside them."""
        self._is_started.set()

    def may_compile(self, accelerator: Accelerator) -> bool:
        """True if programs for this accelerator are compiled by a process."""
        can_compile = accelerator.topology is not None and self._unable_count < _UNABLE_MAX
        return self._is_started.is_set() and can_compile

    def run(
        self,
        servable_id: ServableId,
        accelerator: Accelerator,
        programs: Sequence[Program],
        cancellation: Cancellation,
    ) -> None:
        """Compiles the programs for all accelerators like this one, as far as that goes: the server does the rest.

        Raises FailedPrecondition if one of them crashes the compiler, which would end the server, ResourceExhausted if
        the system has killed the process, and Cancelled.
        """
        if not self._take_turn(cancellation):
            raise _cancelled(servable_id)
        try:
            end, begun = self._compile(accelerator, programs, cancellation)
            if cancellation.is_cancelled:
                raise _cancelled(servable_id)
            self._count(end, begun)
        finally:
            self._end_turn()
        error = _refusal(servable_id, end, programs[:begun])
        if error is not None:
            raise error
        end.report(
            servable_id, len(programs), good="programs_compiled", bad="programs_left_to_server"
        )

    def _take_turn(self, cancellation: Cancellation) -> bool:
        """Waits for the turn. Returns False once cancelled."""
        with self._changed:
            while self._is_taken and not cancellation.is_cancelled:
                self._clock.wait(self._changed, _TURN_SECONDS)
            if cancellation.is_cancelled:
                return False
            self._is_taken = True
            return True

    def _end_turn(self) -> None:
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()

    def _compile(
        self, accelerator: Accelerator, programs: Sequence[Program], cancellation: Cancellation
    ) -> tuple[ChildEnd, int]:
        """Returns how the process ended, and how many programs it had begun."""
        codes = [program.code for program in programs]
        with os.fdopen(os.memfd_create("begun"), "rb+", buffering=0) as begun:
            arguments = self._arguments._replace(
                topology=accelerator.topology or "",
                target=accelerator.target,
                visible_devices=_NO_GPU,
                begun=begun.fileno(),
            )
            end = self._runs.run(arguments, codes, cancellation)
            return end, os.fstat(begun.fileno()).st_size

    def _count(self, end: ChildEnd, begun: int) -> None:
        """Counts a process that ended, or had to be killed, before its first program."""
        is_unable = end.status == UNABLE or (begun == 0 and (end.status is None or end.status < 0))
        if not is_unable:
            self._unable_count = 0
        elif not end.is_old:
            self._unable_count += 1
            if self._unable_count == _UNABLE_MAX:
                _log.warning(
                    "compile_process_given_up",
                    reason=end.reason,
                    stderr=end.said,
                    consequence="the server compiles programs itself until its next start, and requests wait meanwhile",
                )


def _cancelled(servable_id: ServableId) -> Cancelled:
    return Cancelled(f"{servable_id}: no longer aspired; stopped while its programs were compiled")


def _refusal(
    servable_id: ServableId, end: ChildEnd, begun: Sequence[Program]
) -> MillpondError | None:
    """Why the server must not compile what has ended the process; None if it may."""
    if not begun or end.status is None or end.status >= 0 or -end.status in _ENDED_BY_PEOPLE:
        return None
    program = begun[-1].name
    if -end.status == signal.SIGKILL:
        return ResourceExhausted(
            f"{servable_id}: the process that compiled a program ({program}) was killed, as the system does if memory "
            "is short; free memory, or give the container more"
        )
    return FailedPrecondition(
        f"{servable_id}: the compiler of the accelerator's plugin crashed ({_signal_name(-end.status)}) on a program "
        f'({program}), which would have ended the server; set platform = "tensorflow" for the model, so that it runs '
        "on the CPU, or leave these rows out of --accelerator_rows, or install another plugin; if the crash comes of "
        f"the process alone, --accelerator_compile_process=false leaves it out: {end.said}"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
