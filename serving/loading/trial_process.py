"""Trials of programs for a GPU in a process of their own, so that no run of a request waits for their end.

XLA tries variants of a program out under a lock that stops all runs of its process. Runs of another process only share
the GPU's time.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol

import structlog

from serving.base.clock import Clock, seconds_since
from serving.base.name_text import printable
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.loading.program_files import program_file

_log = structlog.get_logger(__name__)

_MEMORY_SHARE_MIN = 0.01
"""Trials in less memory fail: 1 % of a large GPU holds the operands of one large product."""

_END_SECONDS_MAX = 10.0
"""A process that was killed is gone in milliseconds, unless a driver holds it."""

_WAIT_SECONDS_MAX = 1.0
"""The time until a cancel is noticed, if the process does not end by it."""

_FAILURES_MAX = 2
"""A program that has failed so often is left to the next start, so that a process that hangs delays few others."""

_GIVEN_UP = "a program has failed twice, and is left to the next start"
_REMAINS = "an earlier process was killed, and has not ended yet"

_STDERR_CHARACTERS = 2_000
_MODULE = "serving.loading.autotuning_process"


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


class Child(Protocol):
    """A process that was started."""

    def wait(self, timeout_seconds: float) -> int | None:
        """Waits for its end, and returns its status; None at the timeout."""
        ...

    def kill(self) -> None:
        """Ends it now. Returns at once; it may be gone already. Any thread."""
        ...


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

    def __init__(self, settings: TrialSettings, clock: Clock, spawn: Spawn | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._spawn = spawn or spawn_process
        self._failures: Counter[bytes] = Counter()  # of each program, by its digest
        # A process that was killed, and that had not ended yet.
        self._remaining: Child | None = None

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
        reason = self._report_run(replace(trials, programs=programs), cancellation)
        if reason not in ("", _REMAINS) and not cancellation.is_cancelled:
            failed = set(map(_digest, programs)) & set(map(_digest, unfinished()))
            self._failures.update(failed)
        return reason or (_GIVEN_UP if len(programs) < len(trials.programs) else "")

    def triable(self, programs: Sequence[bytes]) -> Sequence[bytes]:
        """The part of `programs` that has not failed twice."""
        return [program for program in programs if self._failures[_digest(program)] < _FAILURES_MAX]

    def _report_run(self, trials: Trials, cancellation: Cancellation) -> str:
        began_ns = self._clock.now_ns()
        said = ""
        try:
            # A file, because a process may wait for the reader of a full pipe.
            with os.fdopen(os.memfd_create("stderr"), "rb+", buffering=0) as stderr:
                reason = self._run(trials, cancellation, stderr.fileno())
                stderr.seek(0)
                said = stderr.read().decode(errors="replace").strip()[-_STDERR_CHARACTERS:]
        except OSError as error:
            reason = f"the process cannot be started: {error!r}"
        if not cancellation.is_cancelled:
            _report(trials, reason, said, seconds_since(self._clock, began_ns))
        return reason

    def _run(self, trials: Trials, cancellation: Cancellation, stderr: int) -> str:
        """Starts a process, and waits for its end. Raises OSError if it cannot be started."""
        if self._remaining is not None and self._remaining.wait(0) is None:
            return _REMAINS
        self._remaining = None
        child = self._spawn(self._settings, trials, stderr)
        with cancellation.stops_by(child.kill):
            status = self._wait(child, cancellation)
        if status is not None:
            return "" if status == 0 else f"the process ended with status {status}"
        child.kill()
        if child.wait(_END_SECONDS_MAX) is None:
            self._remaining = child
        return (
            f"the process took more than {self._settings.seconds_max:g} s, and was killed; if it needs longer, raise "
            "--accelerator_autotuning_seconds"
        )

    def _wait(self, child: Child, cancellation: Cancellation) -> int | None:
        """Waits for the end of a process; None after `seconds_max`, or soon after a cancel."""
        began_ns = self._clock.now_ns()
        while not cancellation.is_cancelled:
            left_seconds = self._settings.seconds_max - seconds_since(self._clock, began_ns)
            status = child.wait(max(0.0, min(left_seconds, _WAIT_SECONDS_MAX)))
            if status is not None or left_seconds <= 0:
                return status
        return None


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


def spawn_process(settings: TrialSettings, trials: Trials, stderr: int) -> Child:
    """Starts `serving.loading.autotuning_process`, which ends with this process. Raises OSError."""
    # The modules are the server's, and none comes from the working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    visible = visible_device(trials.device, environment)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    with program_file(trials.programs) as programs:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", _MODULE, settings.plugin, settings.cache_directory),
                *(repr(settings.memory_share), str(programs)),
            ],
            # The process ends when this pipe does.
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            env=environment,
            pass_fds=(programs,),
            # A signal to the server's process group, as from a terminal, is the server's.
            start_new_session=True,
        )
    return ChildProcess(process)


def _digest(program: bytes) -> bytes:
    return sha256(program).digest()


def _report(trials: Trials, reason: str, said: str, seconds: float) -> None:
    fields = {
        "model": trials.servable_id.name,
        "version": trials.servable_id.version,
        "device": trials.device,
        "programs": len(trials.programs),
        "seconds": round(seconds, 3),
        "stderr": printable(said),
    }
    if reason:
        _log.warning("autotuning_failed", reason=reason, **fields)
    else:
        _log.info("autotuned", **fields)
