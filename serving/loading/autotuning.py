"""Autotuning on a server that is ready: in a process of its own, so that no run of a request waits for its end.

XLA tries variants of a program out under a lock that stops all runs of its process. Runs of another process only share
the GPU's time.
"""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.executor import ThreadExecutor
from serving.base.name_text import printable
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.loading.program_files import program_file

_log = structlog.get_logger(__name__)

_MEMORY_SHARE_MIN = 0.01
"""Trials in less memory fail: 1 % of a large GPU holds the operands of one large product."""

_SPAWN_SECONDS_MAX = 10.0
_END_SECONDS_MAX = 10.0
"""A process that was killed is gone in milliseconds, unless a driver holds it."""

_FAILURES_MAX = 2
"""A program that has failed so often is left to the next start, so that a process that hangs delays few loads."""

_NO_TURN = "the processes of other loads took all the time"

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
    """The settings of all trials. `memory_share` is of each GPU; `seconds_max` is for one load."""

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


class Autotuning:
    """Fills the cache with autotuned programs, by a process at a time for each device.

    If the process fails, or takes too long, the load goes on without it, and compiles without autotuning. A later load
    tries once more.

    Thread: any, at once. `start` on a thread of normal priority, because the processes inherit its priority.
    """

    def __init__(self, settings: TrialSettings, clock: Clock, spawn: Spawn | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._spawn = spawn or spawn_process
        self._spawner = ThreadExecutor("autotuning", 1)
        self._changed = threading.Condition()
        # The devices whose process runs, or is about to.
        self._busy: set[str] = set()
        self._children: set[Child] = set()
        self._failures: Counter[bytes] = Counter()  # of each program, by its digest
        self._is_stopping = False

    def start(self) -> None:
        """Starts the thread that starts the processes: a loader's priority may be too low for them."""
        self._spawner.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Kills the processes, and starts no other one. Returns False if the thread still runs."""
        with self._changed:
            self._is_stopping = True
            for child in self._children:
                child.kill()
            self._changed.notify_all()
        return self._spawner.stop(timeout_seconds)

    def run(self, trials: Trials, cancellation: Cancellation) -> bool:
        """Compiles the programs into the cache. Returns False if not all of them are there, after a warning.

        Takes `seconds_max` at most, with the wait for the processes of other loads. A cancelled load ends its process.
        Programs that have failed twice are left out.
        """
        programs = [program for program in trials.programs if self._may_try(program)]
        if not programs:
            return False
        return self._try(replace(trials, programs=programs), cancellation) and programs == list(
            trials.programs
        )

    def _may_try(self, program: bytes) -> bool:
        with self._changed:
            return self._failures[_digest(program)] < _FAILURES_MAX

    def _try(self, trials: Trials, cancellation: Cancellation) -> bool:
        began_ns = self._clock.now_ns()
        deadline_ns = began_ns + round(self._settings.seconds_max * NS_PER_SECOND)
        said = ""
        try:
            with os.fdopen(os.memfd_create("stderr"), "rb+", buffering=0) as stderr:
                with cancellation.stops_by(self._wake):
                    reason = self._run(trials, cancellation, deadline_ns, stderr.fileno())
                stderr.seek(0)
                said = stderr.read().decode(errors="replace").strip()[-_STDERR_CHARACTERS:]
        except (OSError, FutureTimeoutError) as error:
            reason = f"the process cannot be started: {error!r}"
        if not (cancellation.is_cancelled or self._is_stopping):
            if reason not in ("", _NO_TURN):
                self._note_failure(trials.programs)
            will_retry = any(map(self._may_try, trials.programs))
            _report(trials, reason, said, seconds_since(self._clock, began_ns), will_retry)
        return not reason

    def _note_failure(self, programs: Sequence[bytes]) -> None:
        with self._changed:
            self._failures.update(map(_digest, programs))

    def _run(
        self, trials: Trials, cancellation: Cancellation, deadline_ns: int, stderr: int
    ) -> str:
        """Waits for its turn, and for the process. Returns why there is no result; "" if there is one.

        Raises as `_start` does.
        """
        with self._turn(trials.device, cancellation, deadline_ns) as has_turn:
            if not has_turn:
                return _NO_TURN
            child = self._start(trials, stderr)
            return self._await_end(child, cancellation, deadline_ns)

    @contextmanager
    def _turn(self, device: str, cancellation: Cancellation, deadline_ns: int) -> Iterator[bool]:
        with self._changed:
            while device in self._busy and not self._is_over(cancellation, deadline_ns):
                self._clock.wait(self._changed, self._left_seconds(deadline_ns))
            has_turn = device not in self._busy and not self._is_over(cancellation, deadline_ns)
            if has_turn:
                self._busy.add(device)
        try:
            yield has_turn
        finally:
            if has_turn:
                with self._changed:
                    self._busy.discard(device)
                    self._changed.notify_all()

    def _is_over(self, cancellation: Cancellation, deadline_ns: int) -> bool:
        return (
            self._is_stopping or cancellation.is_cancelled or self._left_seconds(deadline_ns) <= 0
        )

    def _left_seconds(self, deadline_ns: int) -> float:
        return (deadline_ns - self._clock.now_ns()) / NS_PER_SECOND

    def _start(self, trials: Trials, stderr: int) -> Child:
        """Starts the process on the spawner's thread. Raises OSError, and TimeoutError if that thread does not come."""
        started: Future[Child] = Future()

        def start() -> None:
            if not started.set_running_or_notify_cancel():
                return
            try:
                started.set_result(self._spawn(self._settings, trials, stderr))
            except OSError as error:
                started.set_exception(error)

        self._spawner.submit(start)
        try:
            return started.result(_SPAWN_SECONDS_MAX)
        except FutureTimeoutError:
            if started.cancel():
                raise
            return started.result()

    def _await_end(self, child: Child, cancellation: Cancellation, deadline_ns: int) -> str:
        with self._changed:
            self._children.add(child)
            if self._is_stopping:
                child.kill()
        try:
            with cancellation.stops_by(child.kill):
                status = child.wait(max(self._left_seconds(deadline_ns), 0))
            if status is None:
                child.kill()
                child.wait(_END_SECONDS_MAX)
        finally:
            with self._changed:
                self._children.discard(child)
        if status is None:
            return f"the process took more than {self._settings.seconds_max:g} s, and was killed"
        return "" if status == 0 else f"the process ended with status {status}"

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


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


def _report(trials: Trials, reason: str, said: str, seconds: float, will_retry: bool) -> None:
    fields = {
        "model": trials.servable_id.name,
        "version": trials.servable_id.version,
        "device": trials.device,
        "programs": len(trials.programs),
        "seconds": round(seconds, 3),
        "stderr": printable(said),
    }
    if reason:
        _log.warning("autotuning_failed", reason=reason, will_retry=will_retry, **fields)
    else:
        _log.info("autotuned", **fields)
