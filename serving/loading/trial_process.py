"""Trials of programs for a GPU in a process of their own, so that no run of a request waits for their end.

XLA tries variants of a program out under a lock that stops all runs of its process. Runs of another process only share
the GPU's time.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from serving.base.visible_devices import visible_devices
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.loading.program_process import Arguments
from serving.loading.program_runs import ProgramRuns

_MEMORY_SHARE_MIN = 0.01
"""Trials in less memory fail: 1 % of a large GPU holds the operands of one large product."""

_FAILURES_MAX = 2
"""A program that has failed so often is left to the next start, so that a process that hangs delays few others."""

_GIVEN_UP = "a program has failed twice, and is left to the next start"


def trial_memory_share(server_fraction: float) -> float:
    """The share of a GPU's memory for trials beside a server that may take `server_fraction`; 0: too little.

    It is half of what the server never takes. The other half is for the contexts and the programs of both processes. So
    trials never take memory that the server counts on, however much it uses later.
    """
    share = (1.0 - server_fraction) / 2
    return share if share >= _MEMORY_SHARE_MIN else 0.0


def visible_device(device: str, environment: Mapping[str, str]) -> str | None:
    """The value of CUDA_VISIBLE_DEVICES with which a process sees this device of the server only.

    None if the server's own value does not tell.
    """
    index = int(device)
    names = visible_devices(index + 1, environment)
    return names[index] if index < len(names) else None


@dataclass(frozen=True)
class Trials:
    """Programs to autotune for a version on the device of that name."""

    servable_id: ServableId
    device: str
    programs: Sequence[bytes]


class TrialRuns:
    """Has programs autotuned into the cache, by one process at a time.

    `arguments` are those of all processes. Thread: one, of normal priority, because the processes inherit its priority.
    Any thread may cancel a run.
    """

    def __init__(self, arguments: Arguments, runs: ProgramRuns) -> None:
        self._arguments = arguments
        self._runs = runs
        self._failures: Counter[bytes] = Counter()  # of each program, by its digest

    @property
    def cache_directory(self) -> str:
        """The directory of the programs."""
        return self._arguments.cache_directory

    def run(
        self, trials: Trials, cancellation: Cancellation, unfinished: Callable[[], Sequence[bytes]]
    ) -> str:
        """Compiles the programs into the cache. Returns why not all of them are there; "" if they are.

        Takes `seconds_max`, and the ten seconds that a killed process may take to end. Once cancelled, it ends
        the process, and reports nothing. Programs that have failed twice are left out. After a process that failed,
        its programs that are in `unfinished()`, because the cache has them not, have failed once more.
        """
        programs = self.triable(trials.programs)
        if not programs:
            return _GIVEN_UP
        visible = visible_device(trials.device, os.environ)
        arguments = self._arguments._replace(visible_devices=visible)
        end = self._runs.run(arguments, programs, cancellation)
        if not cancellation.is_cancelled:
            end.report(
                trials.servable_id,
                len(programs),
                good="autotuned",
                bad="autotuning_failed",
                device=trials.device,
            )
            if end.reason and not end.is_old:
                failed = set(map(_digest, programs)) & set(map(_digest, unfinished()))
                self._failures.update(failed)
        return end.reason or (_GIVEN_UP if len(programs) < len(trials.programs) else "")

    def triable(self, programs: Sequence[bytes]) -> Sequence[bytes]:
        """The part of `programs` that has not failed twice."""
        return [program for program in programs if self._failures[_digest(program)] < _FAILURES_MAX]


def _digest(program: bytes) -> bytes:
    return sha256(program).digest()
