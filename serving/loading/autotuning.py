"""Autotuning on a server that is ready: versions serve at once, and their programs are replaced by tuned ones later."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import structlog

from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.errors import MillpondError
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateSettings
from serving.core.servable import AVAILABLE, END, UNLOADING, ServableId, ServableStatus
from serving.data_plane.servables import Servable
from serving.data_plane.status_errors import statuses_as_errors
from serving.gates.answer_watch import Answer
from serving.gates.tuned_check import PassingShortage, TunedCheck
from serving.loading.trial_process import TrialRuns, Trials

_log = structlog.get_logger(__name__)

_FIRST_PAUSE_SECONDS = 10.0
"""The pause before the second try of a version. Each later pause is twice as long as the one before it."""

_TRIES_MAX = 10
"""The most tries of a version, in about 85 minutes of pauses: then its programs are left to the next start."""

_NOT_TRIED = (
    "no request could try the tuned programs (give the version a warm-up file), or they could not be loaded (the log "
    "has program_not_offered)"
)


class TuningState(Enum):
    """The progress of a version whose programs came without autotuning."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Tuning:
    """The autotuning of one version.

    `reason` says why not all of its programs are tuned, if it has FAILED, or if it is WAITING for another try.
    """

    state: TuningState
    reason: str = ""


def not_tuned(servable_id: ServableId) -> Tuning | None:
    """The autotuning of a version on a server without it: None."""
    del servable_id
    return None


@dataclass(frozen=True, kw_only=True)
class UntunedVersion:
    """A version whose programs were compiled without autotuning, on the device of that name.

    `answers` are those that it gave in its load.
    """

    servable_id: ServableId
    servable: Servable
    device: str
    answers: Sequence[Answer]
    gates: GateSettings


@dataclass(frozen=True, eq=False)
class _Due:
    """A version to tune at an instant of the monotonic clock, or later. `try_count` counts its earlier tries."""

    version: UntunedVersion
    at_ns: int = 0
    try_count: int = 0

    @property
    def id(self) -> ServableId:
        return self.version.servable_id

    def again(self, now_ns: int) -> "_Due | None":
        """The next try, after a pause; None if this was the last one."""
        if self.try_count + 1 >= _TRIES_MAX:
            return None
        pause_seconds = _FIRST_PAUSE_SECONDS * 2**self.try_count
        return _Due(self.version, now_ns + int(pause_seconds * NS_PER_SECOND), self.try_count + 1)


class Autotuning:
    """Replaces the programs of versions that serve by autotuned ones, one version at a time.

    A thread `autotuning` has a process compile them into the cache, loads them, compares their answers with those
    of the version (`TunedCheck`), and gives them to its requests. These wait for the check's runs as for others, and
    for the GPU's driver. Whatever fails leaves the programs as they are. After a passing shortage, or a process that
    failed, the version is tried again, but not for a program that is damaged. A version that is retired meanwhile is
    left, and its process ended.

    Thread: any, at once. Call `start` on a thread of normal priority, because the thread and its processes inherit
    it.
    """

    def __init__(self, trials: TrialRuns, status_error: type[Exception], clock: Clock) -> None:
        self._trials = trials
        self._status_error = status_error
        self._clock = clock
        self._changed = threading.Condition()
        # All guarded by the condition. A version is loaded, then due once it serves, then current.
        self._loaded: dict[ServableId, UntunedVersion] = {}
        self._due: list[_Due] = []
        self._current: tuple[ServableId, Cancellation] | None = None
        self._tunings: dict[ServableId, Tuning] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="autotuning", daemon=True)

    def start(self) -> None:
        """Starts the thread. Versions that serve by now are tuned."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the process and the thread. Returns False if the thread still runs."""
        with self._changed:
            self._is_stopping = True
            if self._current is not None:
                self._current[1].cancel()
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def add(self, version: UntunedVersion) -> None:
        """Takes a version that was loaded. It is tuned once it serves."""
        with self._changed:
            self._loaded[version.servable_id] = version
            self._tunings[version.servable_id] = Tuning(TuningState.WAITING)

    def on_status(self, status: ServableStatus) -> None:
        """Tunes versions that begin to serve, and leaves those that end. A listener of StateMonitor."""
        with self._changed:
            if status.state is AVAILABLE and status.id in self._loaded:
                self._due.append(_Due(self._loaded.pop(status.id)))
                self._changed.notify_all()
            elif status.state in (UNLOADING, END):
                self._leave(status.id)

    def tuning(self, servable_id: ServableId) -> Tuning | None:
        """The progress of a version; None if all its programs came tuned, or if it has ended."""
        with self._changed:
            return self._tunings.get(servable_id)

    def tunings(self) -> Mapping[ServableId, Tuning]:
        """The progress of each version that is there, and whose programs did not all come tuned."""
        with self._changed:
            return dict(self._tunings)

    def _leave(self, servable_id: ServableId) -> None:
        self._loaded.pop(servable_id, None)
        self._tunings.pop(servable_id, None)
        self._due = [due for due in self._due if due.id != servable_id]
        if self._current is not None and self._current[0] == servable_id:
            self._current[1].cancel()

    # --- The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            due, cancellation = taken
            try:
                tuning = self._tune(due.version, cancellation)
            except Exception as error:  # noqa: BLE001 (the version serves on with the programs that it has)
                # A version that ends meanwhile refuses calls.
                if not (cancellation.is_cancelled and isinstance(error, MillpondError)):
                    _log.exception("autotuning_broken", **_identity(due.version))
                tuning = Tuning(TuningState.FAILED, repr(error))
            self._end(due, cancellation, tuning)

    def _take(self) -> tuple[_Due, Cancellation] | None:
        with self._changed:
            while not self._is_stopping:
                now_ns = self._clock.now_ns()
                due = next((due for due in self._due if due.at_ns <= now_ns), None)
                if due is not None:
                    return due, self._begin(due)
                pauses_ns = [due.at_ns - now_ns for due in self._due]
                self._clock.wait(
                    self._changed, min(pauses_ns) / NS_PER_SECOND if pauses_ns else None
                )
            return None

    def _begin(self, due: _Due) -> Cancellation:
        cancellation = Cancellation()
        self._due.remove(due)
        self._current = (due.id, cancellation)
        self._tunings[due.id] = Tuning(TuningState.RUNNING)
        return cancellation

    def _end(self, due: _Due, cancellation: Cancellation, tuning: Tuning) -> None:
        again = due.again(self._clock.now_ns()) if tuning.state is TuningState.WAITING else None
        with self._changed:
            self._current = None
            if cancellation.is_cancelled:  # The version is not there any more, or not for long.
                return
            if again is not None:
                self._due.append(again)
            elif tuning.state is TuningState.WAITING:
                tuning = Tuning(TuningState.FAILED, tuning.reason)
            self._tunings[due.id] = tuning
        if again is not None:
            _log.info("autotuning_waits", **_identity(due.version), reason=tuning.reason)

    def _tune(self, version: UntunedVersion, cancellation: Cancellation) -> Tuning:
        reason, may_retry = self._compile(version, cancellation)
        # A process that has failed may have compiled some of them.
        replaced = (
            _Replaced() if cancellation.is_cancelled else self._replace(version, cancellation)
        )
        with statuses_as_errors(self._status_error):
            signatures = version.servable.accelerator_signatures()
        if not any(signature.untuned_rows for signature in signatures):
            return Tuning(TuningState.DONE)
        may_retry = may_retry or bool(replaced.shortage)
        reasons = filter(None, (reason, *replaced.faults, replaced.damage, replaced.shortage))
        return Tuning(
            TuningState.WAITING if may_retry else TuningState.FAILED,
            "; ".join(reasons) or _NOT_TRIED,
        )

    def _compile(self, version: UntunedVersion, cancellation: Cancellation) -> tuple[str, bool]:
        """Has the programs compiled into the cache; returns why not all are there, and if another try may do more."""

        def missing() -> Sequence[bytes]:
            with statuses_as_errors(self._status_error):
                return version.servable.untuned_programs(self._trials.cache_directory)

        programs = missing()
        if not programs:
            return "", False
        trials = Trials(version.servable_id, version.device, programs)
        reason = self._trials.run(trials, cancellation, missing)
        may_retry = reason and not cancellation.is_cancelled and self._trials.triable(missing())
        return reason, bool(may_retry)

    def _replace(self, version: UntunedVersion, cancellation: Cancellation) -> "_Replaced":
        """Gives the programs that pass the check to requests."""
        servable, began_ns = version.servable, self._clock.now_ns()
        check = TunedCheck(
            servable_id=version.servable_id,
            servable=servable,
            answers=version.answers,
            settings=version.gates,
            status_error=self._status_error,
            cancellation=cancellation,
        )
        replaced = _Replaced()
        with statuses_as_errors(self._status_error):
            offered, replaced.shortage, replaced.damage = servable.offer_tuned_programs(
                self._trials.cache_directory
            )
            try:
                expected = check.expected() if offered else ()
                for rows in offered:
                    fault = check.faults(rows, expected)
                    if fault:
                        replaced.faults.append(f"programs of {rows} rows: {fault}")
                    else:
                        replaced.used_count += servable.use_tuned_programs(rows)
            except PassingShortage as shortage:
                # Programs of more rows, which come after these, would find no more.
                replaced.shortage = str(shortage)
            finally:
                servable.withdraw_tuned_programs()
        if not cancellation.is_cancelled:
            _report(version, replaced, seconds_since(self._clock, began_ns))
        return replaced


@dataclass
class _Replaced:
    """The programs of a version that were given to requests, and why others were not.

    `shortage` says for lack of what the check was not ended, and `damage` what can never be loaded.
    """

    used_count: int = 0
    faults: list[str] = field(default_factory=list)
    shortage: str = ""
    damage: str = ""


def _identity(version: UntunedVersion) -> Mapping[str, object]:
    return {"model": version.servable_id.name, "version": version.servable_id.version}


def _report(version: UntunedVersion, replaced: _Replaced, seconds: float) -> None:
    identity, count = _identity(version), replaced.used_count
    if count:
        _log.info("programs_tuned", **identity, programs=count, seconds=round(seconds, 3))
    if replaced.faults:
        _log.warning("tuned_programs_differ", **identity, reason="; ".join(replaced.faults))
    if replaced.damage:
        _log.warning("tuned_programs_damaged", **identity, reason=replaced.damage)
