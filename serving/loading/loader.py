"""Loaders: do the work of loading one version."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from serving.base.clock import Clock, seconds_since
from serving.base.errors import Cancelled, FailedPrecondition, NotFound, from_status
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateMode, GateSettings
from serving.core.servable import GateVerdict, LoadStage, ServableId
from serving.data_plane.loads import SavedModelLoad, SavedModelPlane
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.servables import RequestReservoir, Servable
from serving.gates.gate_runs import GateRuns, WarmUpWatch
from serving.gates.gate_trials import GateSubject
from serving.gates.gates import refusal
from serving.loading.arenas import Arenas, report_remains
from serving.loading.op_packages import missing_ops_message
from serving.loading.restore_pace import RestorePace
from warmup.self_warm_up import SelfWarmUpResult, warm_joint_runs

WarmUp = Callable[[Path, Callable[[str, bytes], bytes], Callable[[], bool]], object]
"""Replays the warm-up records of a version directory through a servable's `answer`.

The last asks, before each request, whether to stop; then it raises Cancelled.
"""

Answer = TypeVar("Answer")

_log = structlog.get_logger(__name__)


class SelfWarmUp(Protocol):
    """Sends live requests of earlier versions through a new one."""

    def __call__(
        self,
        requests: Sequence[bytes],
        *,
        prepare: Callable[[bytes], None],
        predict: Callable[[bytes], bytes],
        is_cancelled: Callable[[], bool],
    ) -> SelfWarmUpResult: ...


class LoadProgress(Protocol):
    """What a load tells about itself, and asks, on the loader thread."""

    @property
    def cancellation(self) -> Cancellation:
        """Whether the version is no longer wanted, and how to be told at once."""
        ...

    def stage_began(self, stage: LoadStage) -> None: ...
    def stage_ended(self, stage: LoadStage, seconds: float) -> None: ...
    def gate_ended(self, verdict: GateVerdict) -> None: ...
    def measured(self, figures: Mapping[str, float]) -> None: ...


class Loader(Protocol):
    """Loads one version; whoever calls it then owns the servable."""

    def load(self, progress: LoadProgress) -> Servable:
        """Runs on a loader thread for as long as it takes; the servable is not yet published.

        Raises with everything freed: Cancelled where `progress` said so, else a MillpondError or
        what `errors.from_exception` makes one of.
        """
        ...


MakeLoader = Callable[[ServableId, str], Loader]
"""From an id and the version's directory to its loader."""


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """How SavedModels are loaded: the same for all versions of one model.

    `arenas` is None where parameters come from the request memory. `reservoir` is the data plane's
    and is handed to each version; None where nothing is kept of live requests. So are
    `request_statistics`, which tell of its requests; None where nobody asks. `gates` is asked for
    each load; `incumbent` tells which version serves the name at the moment, None where none does.
    """

    tags: Sequence[str]
    warm_up: WarmUp
    self_warm_up: SelfWarmUp
    arenas: Arenas | None = None
    has_strict_input_shapes: bool = False
    # Versions of the model that are served at rest.
    serving_count: int = 1
    is_sealing: bool = False
    reservoir: RequestReservoir | None = None
    request_statistics: RequestStatistics | None = None
    gates: Callable[[], GateSettings] = GateSettings
    incumbent: Callable[[ServableId], Servable | None] = lambda servable_id: None
    pace: RestorePace
    # Registers ops that a graph lacks, with a function that loads a library; returns whether a
    # second read of the graph may find them.
    add_ops: Callable[[Sequence[str], Callable[[str], Sequence[str]]], bool] = (
        lambda ops, load_library: False
    )


class _MissingOps(FailedPrecondition):
    """The graph has ops that nothing in this process registers."""

    def __init__(self, message: str, ops: Sequence[str]) -> None:
        super().__init__(message)
        self.ops = ops


@contextmanager
def statuses_as_errors(status_error: type[Exception]) -> Iterator[None]:
    """Raises the data plane's `StatusError` as the MillpondError of its code."""
    try:
        yield
    except status_error as error:
        code, message = error.args
        raise from_status(code, message) from error


UNSET_VARIABLE_COUNT_MAX = 5
"""The most names of variables that an error lists."""


def unset_variables_message(names: Sequence[str]) -> str:
    """Returns the error of a model whose requests read variables that hold no value."""
    listed = ", ".join(repr(name) for name in names[:UNSET_VARIABLE_COUNT_MAX])
    more = len(names) - UNSET_VARIABLE_COUNT_MAX
    if more > 0:
        listed += f" and {more} more"
    return (
        f"its signatures read {len(names)} variables that neither the checkpoint nor an init op "
        f"gives a value: {listed}; export a Keras 3 model by model.export(path), not by "
        "tf.saved_model.save"
    )


class SavedModelLoader:
    """Loads one SavedModel step by step, each step a timed stage, and warms it up.

    The load stops at the next kernel, within a tensor that is restored, or at the next warm-up
    request, once the version is not wanted any more, and before the next stage once its directory
    is gone. `directory` is the version's.
    """

    def __init__(
        self,
        servable_id: ServableId,
        directory: str,
        *,
        settings: LoadSettings,
        plane: SavedModelPlane,
        clock: Clock,
    ) -> None:
        self._id = servable_id
        self._directory = Path(directory)
        self._settings = settings
        self._plane = plane
        self._clock = clock

    def load(self, progress: LoadProgress) -> Servable:
        """See `Loader`."""
        arenas = self._settings.arenas
        try:
            with statuses_as_errors(self._plane.StatusError):
                servable = self._load_and_warm(progress)
        except BaseException:
            if arenas is not None:
                arenas.failed(self._id)
            raise
        if arenas is not None:
            arenas.loaded(self._id, servable, self._settings.serving_count)
        return servable

    def _load_and_warm(self, progress: LoadProgress) -> Servable:
        servable = self._load(progress)
        gates = self._settings.gates()
        try:
            self._plane.mark_request_memory_peak()
            verdicts, replayed = self._warm(servable, gates, progress)
            if self._settings.arenas is not None:
                rise_bytes = self._plane.request_memory_peak_rise_bytes()
                self._settings.arenas.warmed_up(self._id, rise_bytes)
            pass_gates = partial(self._pass_gates, servable, gates, verdicts, replayed, progress)
            self._run_stage(progress, LoadStage.GATES, pass_gates)
            if self._settings.is_sealing:
                self._seal(servable)
        except BaseException:
            report_remains(self._id, servable.destroy())
            raise
        return servable

    def _load(self, progress: LoadProgress) -> Servable:
        """Loads the version; a second time if the ops that its graph lacks can be had."""
        try:
            return self._load_once(progress)
        except _MissingOps as missing:
            with statuses_as_errors(self._plane.StatusError):
                if not self._settings.add_ops(missing.ops, self._plane.load_op_library):
                    raise
        return self._load_once(progress)

    def _load_once(self, progress: LoadProgress) -> Servable:
        # Checked again: the source looked a while ago, and a retry may meet other files. Missing
        # assets pass: if the graph reads one, the load fails with TensorFlow's error.
        check = partial(self._plane.check_saved_model, str(self._directory))
        self._run_stage(progress, LoadStage.CHECK, check)
        load = self._plane.SavedModelLoad(
            self._id.name, self._id.version, str(self._directory), self._settings.tags
        )
        try:
            with progress.cancellation.stops_by(load.cancel):
                self._take_steps(load, progress)
            return load.finish(self._settings.reservoir, self._settings.request_statistics)
        except BaseException:
            report_remains(self._id, load.discard())
            raise

    def _take_steps(self, load: SavedModelLoad, progress: LoadProgress) -> None:
        run = partial(self._run_stage, progress)
        run(LoadStage.READ_GRAPH, partial(self._read_graph, load))
        if self._settings.arenas is not None:
            take = partial(self._take_arena, self._settings.arenas, load, progress)
            run(LoadStage.TAKE_ARENA, take)
        run(LoadStage.CREATE_SESSION, load.create_session)
        run(LoadStage.RESTORE, partial(self._restore, load))
        run(LoadStage.INIT, partial(self._run_init, load))
        run(LoadStage.MAKE_CALLABLES, partial(self._make_callables, load))

    def _read_graph(self, load: SavedModelLoad) -> None:
        load.read_graph()
        if self._settings.has_strict_input_shapes:
            load.check_input_shapes()
        missing_ops = load.missing_ops()
        if missing_ops:
            raise _MissingOps(f"{self._id}: {missing_ops_message(missing_ops)}", missing_ops)

    def _run_init(self, load: SavedModelLoad) -> None:
        load.run_init()
        names = load.variables_without_value()
        if not names:
            return
        message = unset_variables_message(names)
        # A signature that writes variables may set them before another one reads them.
        if not load.may_write_variables:
            raise FailedPrecondition(f"{self._id}: {message}")
        _log.warning(
            "variables_without_value",
            model=self._id.name,
            version=self._id.version,
            count=len(names),
            reason=message,
        )

    def _take_arena(self, arenas: Arenas, load: SavedModelLoad, progress: LoadProgress) -> None:
        progress.measured(arenas.take(self._id, load, self._graph_bytes()))

    def _graph_bytes(self) -> int:
        """Of its file: what the graph takes in memory is more, and near it."""
        for name in ("saved_model.pb", "saved_model.pbtxt"):
            with suppress(OSError):
                return (self._directory / name).stat().st_size
        return 0

    def _make_callables(self, load: SavedModelLoad) -> None:
        load.make_callables()
        if self._settings.reservoir is None:
            return
        # Those of the sets of outputs that clients ask for, while what they make, constants of the
        # graph among it, still goes into the arena.
        for request in self._settings.reservoir.requests():
            # The new version may have no such signature: its clients will hear of it.
            with suppress(self._plane.StatusError):
                load.prepare(request)

    def _seal(self, servable: Servable) -> None:
        if not servable.seal_arena():
            _log.info(
                "arena_not_sealed",
                model=self._id.name,
                version=self._id.version,
                reason="something that requests run may write to it",
            )

    def _restore(self, load: SavedModelLoad) -> None:
        start_ns = self._clock.now_ns()
        with self._settings.pace.applied_to(load):
            load.restore()
        seconds = seconds_since(self._clock, start_ns)
        _log.info(
            "restored",
            model=self._id.name,
            version=self._id.version,
            restored_bytes=load.restored_bytes,
            bytes_per_second=round(load.restored_bytes / seconds) if seconds else None,
        )

    def _run_stage(
        self, progress: LoadProgress, stage: LoadStage, step: Callable[[], object]
    ) -> None:
        if progress.cancellation.is_cancelled:
            raise Cancelled(f"{self._id}: no longer aspired; stopped before {stage.value}")
        progress.stage_began(stage)
        start_ns = self._clock.now_ns()
        try:
            step()
        except Exception as error:
            self._raise_if_directory_gone(stage, error)
            raise
        finally:
            progress.stage_ended(stage, seconds_since(self._clock, start_ns))
        self._raise_if_directory_gone(stage)

    def _raise_if_directory_gone(self, stage: LoadStage, cause: Exception | None = None) -> None:
        """A file that is missing because its directory went away is not a broken model."""
        if not self._directory.is_dir():
            raise NotFound(
                f"{self._id}: {self._directory} went away while it was loaded (in {stage.value}); "
                "drop the version again"
            ) from cause

    def _warm(
        self, servable: Servable, gates: GateSettings, progress: LoadProgress
    ) -> tuple[list[GateVerdict], list[SelfWarmUpResult]]:
        """Returns the verdicts that may yet refuse the version after its other gates, and the result of
        the self-warm-up if requests were replayed.
        """
        verdicts: list[GateVerdict] = []
        replayed: list[SelfWarmUpResult] = []
        run = partial(self._run_stage, progress)
        replay_records = partial(self._replay_records, servable, gates, verdicts, progress)
        run(LoadStage.WARM_UP, replay_records)
        reservoir = self._settings.reservoir
        if reservoir is not None:
            replay = partial(self._replay_requests, servable, reservoir, replayed, progress)
            run(LoadStage.SELF_WARM_UP, replay)
        return verdicts, replayed

    def _replay_records(
        self,
        servable: Servable,
        gates: GateSettings,
        verdicts: list[GateVerdict],
        progress: LoadProgress,
    ) -> None:
        mode = gates.warm_up
        watch = WarmUpWatch(
            partial(self._answer_method, servable),
            is_tolerant=mode is not GateMode.ENFORCE,
            clock=self._clock,
        )

        def warm_up(ask: Callable[[str, bytes], bytes]) -> None:
            result = self._settings.warm_up(
                self._directory, ask, lambda: progress.cancellation.is_cancelled
            )
            _log.debug("warmed_up", model=self._id.name, version=self._id.version, result=result)

        try:
            watch.run(warm_up)
        finally:
            if mode is not GateMode.OFF and not progress.cancellation.is_cancelled:
                self._notify(watch.verdict(mode), progress)
        # What a record asked for once, or as often as a flag says, must not happen more often.
        if gates.convergence is not GateMode.OFF and not servable.may_write_variables:
            verdict = watch.converge(gates, lambda: progress.cancellation.is_cancelled)
            if verdict is not None:
                self._notify(verdict, progress)
                verdicts.append(verdict)

    def _replay_requests(
        self,
        servable: Servable,
        reservoir: RequestReservoir,
        replayed: list[SelfWarmUpResult],
        progress: LoadProgress,
    ) -> None:
        if servable.may_write_variables:
            # What a client asked for once must not happen twice.
            _log.info(
                "self_warm_up_skipped",
                model=self._id.name,
                version=self._id.version,
                reason="a request may change a variable",
            )
            return
        result = self._settings.self_warm_up(
            reservoir.requests(),
            prepare=partial(self._answer, servable.prepare),
            predict=partial(self._answer, servable.predict),
            is_cancelled=lambda: progress.cancellation.is_cancelled,
        )
        replayed.append(result)
        errors = warm_joint_runs(
            reservoir.joint_requests(),
            answer=partial(self._answer_method, servable, "MultiInference"),
            is_cancelled=lambda: progress.cancellation.is_cancelled,
            clock=self._clock,
        )
        if errors:
            _log.warning(
                "joint_warm_up_failed",
                model=self._id.name,
                version=self._id.version,
                failed_count=len(errors),
                first_error=errors[0],
            )
        progress.measured(
            {
                "self_warm_up_request_count": result.run_count + result.failed_count,
                "self_warm_up_failed_count": result.failed_count,
            }
        )
        log = _log.info
        if result.failed_count:
            log = _log.warning if result.run_count else _log.error
        log(
            "self_warmed_up",
            model=self._id.name,
            version=self._id.version,
            run_count=result.run_count,
            failed_count=result.failed_count,
            skipped_count=result.skipped_count,
            first_error=result.first_error,
        )

    def _pass_gates(
        self,
        servable: Servable,
        gates: GateSettings,
        verdicts: list[GateVerdict],
        replayed: list[SelfWarmUpResult],
        progress: LoadProgress,
    ) -> None:
        """All of them, so that the verdict is whole. FailedPrecondition where one says no, or one of
        `verdicts`, which were there before.
        """
        subject = GateSubject(
            directory=self._directory,
            candidate=servable,
            incumbent=partial(self._settings.incumbent, self._id),
            reservoir=self._settings.reservoir,
            translated=partial(statuses_as_errors, self._plane.StatusError),
            self_warm_up=replayed[0] if replayed else None,
        )
        runs = GateRuns(
            subject,
            gates,
            is_cancelled=lambda: progress.cancellation.is_cancelled,
            clock=self._clock,
        )
        for verdict in runs.run():
            self._notify(verdict, progress)
            verdicts.append(verdict)
        error = refusal(self._id, verdicts)
        if error is not None:
            raise error

    def _notify(self, verdict: GateVerdict, progress: LoadProgress) -> None:
        progress.gate_ended(verdict)
        if verdict.is_passed:
            return
        log = _log.error if verdict.mode == GateMode.ENFORCE.value else _log.warning
        log(
            "gate_not_passed",
            model=self._id.name,
            version=self._id.version,
            gate=verdict.gate,
            mode=verdict.mode,
            reason=verdict.reason,
            **verdict.figures,
        )

    def _answer_method(self, servable: Servable, method: str, request: bytes) -> bytes:
        with statuses_as_errors(self._plane.StatusError):
            return servable.answer(method, request)

    def _answer(self, call: Callable[[bytes], Answer], request: bytes) -> Answer:
        with statuses_as_errors(self._plane.StatusError):
            return call(request)
