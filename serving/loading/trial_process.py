"""Trials of programs for a GPU in a process of their own, so that no run of a request waits for their end.

XLA tries variants of a program out under a lock that stops all runs of its process. Runs of another process only share
the GPU's time.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from serving.base.clock import Clock
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.loading.child_process import Child, ChildRuns
from serving.loading.core_loan import CoreLender
from serving.loading.program_process import Arguments, spawn_programs

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
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return device
    names = [name.strip() for name in visible.split(",")]
    return names[int(device)] if int(device) < len(names) else None


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """The settings of all trials. `memory_share` is of each GPU; `seconds_max` is for one process."""

    plugin: str
    cache_directory: str
    memory_share: float
    seconds_max: float


@dataclass(frozen=True)
class Trials:
    """Programs to autotune for a version on the device of that name."""

    servable_id: ServableId
    device: str
    programs: Sequence[bytes]


Spawn = Callable[[TrialSettings, Trials, int], Child]
"""Starts the process of trials, whose standard error is a descriptor."""


class TrialRuns:
    """Has programs autotuned into the cache, by one process at a time.

    Thread: one, of normal priority, because the processes inherit its priority. Any thread may cancel a run.
    """

    def __init__(
        self,
        settings: TrialSettings,
        clock: Clock,
        spawn: Spawn | None = None,
        cores: CoreLender | None = None,
    ) -> None:
        self._settings = settings
        self._spawn = spawn or spawn_trials
        self._failures: Counter[bytes] = Counter()  # of each program, by its digest
        self._runs = ChildRuns(settings.seconds_max, clock, cores)

    @property
    def cache_directory(self) -> str:
        """The directory of the programs."""
        return self._settings.cache_directory

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
        trials, all_count = replace(trials, programs=programs), len(trials.programs)
        end = self._runs.run(
            lambda stderr: self._spawn(self._settings, trials, stderr), cancellation
        )
        if not cancellation.is_cancelled:
            end.report(
                trials.servable_id,
                len(trials.programs),
                good="autotuned",
                bad="autotuning_failed",
                device=trials.device,
            )
            if end.reason and not end.is_old:
                failed = set(map(_digest, programs)) & set(map(_digest, unfinished()))
                self._failures.update(failed)
        return end.reason or (_GIVEN_UP if len(programs) < all_count else "")

    def triable(self, programs: Sequence[bytes]) -> Sequence[bytes]:
        """The part of `programs` that has not failed twice."""
        return [program for program in programs if self._failures[_digest(program)] < _FAILURES_MAX]


def spawn_trials(settings: TrialSettings, trials: Trials, stderr: int) -> Child:
    """Starts a process of trials (`program_process`). Raises OSError."""
    arguments = Arguments(
        settings.plugin, settings.cache_directory, memory_share=settings.memory_share
    )
    visible = visible_device(trials.device, os.environ)
    return spawn_programs(arguments, trials.programs, visible_devices=visible, stderr=stderr)


def _digest(program: bytes) -> bytes:
    return sha256(program).digest()
