"""Autotuning on a server that is ready: versions serve at once, and their programs are replaced by tuned ones later."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

from serving.base.clock import Clock, seconds_since
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateSettings
from serving.core.servable import AVAILABLE, END, UNLOADING, ServableId, ServableStatus
from serving.data_plane.servables import Servable
from serving.data_plane.status_errors import statuses_as_errors
from serving.gates.answer_watch import Answer
from serving.gates.tuned_check import TunedCheck
from serving.loading.trial_process import TrialRuns, Trials

_log = structlog.get_logger(__name__)

_NOT_TRIED = "no tuned program could be loaded, or no request tries it"


class TuningState(Enum):
    """The progress of a version whose programs came without autotuning."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Tuning:
    """The autotuning of one version. `reason` says why not all of its programs are tuned, if it has FAILED."""

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


class Autotuning:
    """Replaces the programs of versions that serve by autotuned ones, one version at a time.

    A thread `autotuning` has a process compile them into the cache, loads them, compares their answers with those
    of the version (`TunedCheck`), and gives them to its requests, which wait for nothing of that. Whatever fails
    leaves the programs as they are. A version that is retired meanwhile is left, and its process ended.

    Thread: any, at once. Call `start` on a thread of normal priority, because the thread and its processes inherit
    it.
    """

    def __init__(self, trials: TrialRuns, status_error: type[Exception], clock: Clock) -> None:
        self._trials = trials
        self._status_error = status_error
        self._clock = clock
        self._changed = threading.Condition()
        # All guarded by the condition. A version is here from its load to its end.
        self._versions: dict[ServableId, UntunedVersion] = {}
        self._tunings: dict[ServableId, Tuning] = {}
        self._due: list[ServableId] = []
        self._current: tuple[ServableId, Cancellation] | None = None
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
            self._versions[version.servable_id] = version
            self._tunings[version.servable_id] = Tuning(TuningState.WAITING)

    def on_status(self, status: ServableStatus) -> None:
        """Tunes versions that begin to serve, and leaves those that end. A listener of StateMonitor."""
        with self._changed:
            if status.id not in self._tunings:
                return
            if status.state is AVAILABLE and status.id in self._versions:
                if status.id not in self._due:
                    self._due.append(status.id)
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
        self._versions.pop(servable_id, None)
        self._tunings.pop(servable_id, None)
        if servable_id in self._due:
            self._due.remove(servable_id)
        if self._current is not None and self._current[0] == servable_id:
            self._current[1].cancel()

    # --- The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            version, cancellation = taken
            try:
                tuning = self._tune(version, cancellation)
            except Exception as error:  # noqa: BLE001 (the version serves on with the programs that it has)
                if not cancellation.is_cancelled:
                    _log.exception("autotuning_broken", **_identity(version))
                tuning = Tuning(TuningState.FAILED, repr(error))
            self._end(version, tuning)

    def _take(self) -> tuple[UntunedVersion, Cancellation] | None:
        with self._changed:
            while not self._due and not self._is_stopping:
                self._changed.wait()
            if self._is_stopping:
                return None
            version = self._versions.pop(self._due.pop(0))
            cancellation = Cancellation()
            self._current = (version.servable_id, cancellation)
            self._tunings[version.servable_id] = Tuning(TuningState.RUNNING)
            return version, cancellation

    def _end(self, version: UntunedVersion, tuning: Tuning) -> None:
        with self._changed:
            self._current = None
            # A version that was retired meanwhile is not there any more.
            if version.servable_id in self._tunings:
                self._tunings[version.servable_id] = tuning

    def _tune(self, version: UntunedVersion, cancellation: Cancellation) -> Tuning:
        with statuses_as_errors(self._status_error):
            programs = version.servable.untuned_programs(self._trials.cache_directory)
        reason = ""
        if programs:
            trials = Trials(version.servable_id, version.device, programs)
            reason = self._trials.run(trials, cancellation)
        # A process that has failed may have compiled some of them.
        faults = [] if cancellation.is_cancelled else self._replace(version, cancellation)
        with statuses_as_errors(self._status_error):
            signatures = version.servable.accelerator_signatures()
        left = [rows for signature in signatures for rows in signature.untuned_rows]
        if not left:
            return Tuning(TuningState.DONE)
        return Tuning(TuningState.FAILED, "; ".join(filter(None, (reason, *faults))) or _NOT_TRIED)

    def _replace(self, version: UntunedVersion, cancellation: Cancellation) -> Sequence[str]:
        """Gives the programs that pass the check to requests; returns the faults of the others."""
        servable, began_ns = version.servable, self._clock.now_ns()
        check = TunedCheck(
            version.servable_id, servable, version.answers, version.gates, self._status_error
        )
        faults: list[str] = []
        used_count = 0
        with statuses_as_errors(self._status_error):
            offered = servable.offer_tuned_programs(self._trials.cache_directory)
            try:
                expected = check.expected() if offered else ()
                for rows in offered:
                    if cancellation.is_cancelled:
                        break
                    fault = check.faults(rows, expected)
                    if fault:
                        faults.append(f"programs of {rows} rows: {fault}")
                    else:
                        used_count += servable.use_tuned_programs(rows)
            finally:
                servable.withdraw_tuned_programs()
        if not cancellation.is_cancelled:
            _report(version, used_count, faults, seconds_since(self._clock, began_ns))
        return faults


def _identity(version: UntunedVersion) -> Mapping[str, object]:
    return {"model": version.servable_id.name, "version": version.servable_id.version}


def _report(
    version: UntunedVersion, used_count: int, faults: Sequence[str], seconds: float
) -> None:
    if used_count:
        _log.info(
            "programs_tuned", **_identity(version), programs=used_count, seconds=round(seconds, 3)
        )
    if faults:
        _log.warning("tuned_programs_differ", **_identity(version), reason="; ".join(faults))
