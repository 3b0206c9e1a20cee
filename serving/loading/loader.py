"""Loaders: load one version each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from serving.base.clock import Clock, SystemClock, seconds_since
from serving.base.errors import (
    Cancelled,
    FailedPrecondition,
    MillpondError,
    NotFound,
    from_status,
)
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateMode, GateSettings
from serving.core.servable import GateVerdict, LoadStage, ServableId
from serving.data_plane.loads import MissingKernel, SavedModelLoad
from serving.data_plane.plane import DataPlane
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.servables import RequestReservoir, Servable
from serving.gates.answer_watch import AnswerWatch
from serving.gates.gate_runs import GateRuns, WarmUpWatch
from serving.gates.gate_trials import GateSubject
from serving.gates.gates import refusal
from serving.loading.arenas import Arenas, report_remains
from serving.loading.batch_records import BatchRecords
from serving.loading.batch_refusals import BatchRefusals
from serving.loading.load_checks import (
    has_failed_for_kernel,
    missing_kernels_fault,
    missing_kernels_message,
    missing_ops_message,
    unset_tables_message,
    unset_variables_message,
)
from serving.loading.memory_fit import available_bytes
from warmup.self_warm_up import SelfWarmUpResult, warm_joint_runs

WarmUp = Callable[[Path, Callable[[str, bytes], bytes], Callable[[], bool]], object]
"""Replays the warm-up records of a version directory through a servable's `answer`.

The third argument is called before each request. If it returns True, the replay raises Cancelled.
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
    """Receives the progress of a load, on the loader thread, and carries its cancellation."""

    @property
    def cancellation(self) -> Cancellation:
        """The cancellation of the load, set when the version stops being aspired."""
        ...

    def stage_began(self, stage: LoadStage) -> None: ...
    def stage_ended(self, stage: LoadStage, seconds: float) -> None: ...
    def gate_ended(self, verdict: GateVerdict) -> None: ...
    def measured(self, figures: Mapping[str, float]) -> None: ...
    def noted(self, notes: Mapping[str, str]) -> None: ...


Result = TypeVar("Result")


class Loader(Protocol):
    """Loads one version. The caller owns the servable."""

    def load(self, progress: LoadProgress) -> Servable:
        """Loads the version on the calling loader thread; the servable is not yet published.

        If it raises, everything is freed. Raises Cancelled if `progress` was cancelled, else a
        MillpondError or an error that `errors.from_exception` converts to a MillpondError.
        """
        ...


MakeLoader = Callable[[ServableId, str], Loader]
"""Makes the loader of a version from its id and its directory."""


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The settings of SavedModel loads, the same for all versions of one model.

    `arenas` is None if parameters come from the request memory. `reservoir` is None if no live
    requests are kept; each version gets it. `request_statistics` is None if requests are not
    recorded; each version gets it too. `gates` is called for each load. `incumbent` returns the
    version that serves the name now, or None.
    """

    tags: Sequence[str]
    warm_up: WarmUp
    self_warm_up: SelfWarmUp
    arenas: Arenas | None = None
    has_strict_input_shapes: bool = False
    # The number of the model's versions that are served between swaps.
    serving_count: int = 1
    is_sealing: bool = False
    reservoir: RequestReservoir | None = None
    request_statistics: RequestStatistics | None = None
    gates: Callable[[], GateSettings] = GateSettings
    incumbent: Callable[[ServableId], Servable | None] = lambda servable_id: None
    restore_bytes_per_second: int = 0
    load_seconds_target: float = 0
    # Returns the data plane's `BatchSettings` for the version in a directory; None: its requests do
    # not share runs. Raises InvalidConfig if the version's own file is wrong.
    batching: Callable[[Path], object | None] = lambda directory: None
    batch_records: BatchRecords = field(default_factory=BatchRecords)
    batch_refusals: BatchRefusals = field(default_factory=lambda: BatchRefusals(SystemClock()))
    # Registers ops that a graph lacks, with a function that loads a library. Returns True if a second
    # read of the graph may find them.
    add_ops: Callable[[Sequence[str], Callable[[str], Sequence[str]]], bool] = (
        lambda ops, load_library: False
    )


class _MissingOps(FailedPrecondition):
    """The graph has ops that are not registered in this process."""

    def __init__(self, message: str, ops: Sequence[str]) -> None:
        super().__init__(message)
        self.ops = ops


@dataclass(kw_only=True)
class _Warmed:
    """The findings of one version's warm-ups, for its gates.

    `verdicts` may refuse the version after its other gates. `replayed` is None if no live request was
    replayed.
    """

    verdicts: list[GateVerdict] = field(default_factory=list)
    replayed: SelfWarmUpResult | None = None
    recorded: AnswerWatch = field(default_factory=AnswerWatch)
    live: AnswerWatch = field(default_factory=AnswerWatch)


@contextmanager
def statuses_as_errors(status_error: type[Exception]) -> Iterator[None]:
    """Raises the data plane's `StatusError` as the MillpondError of its code."""
    try:
        yield
    except status_error as error:
        code, message = error.args
        raise from_status(code, message) from error


class SavedModelLoader:
    """Loads one SavedModel step by step, each step a timed stage, and warms it up.

    Once the version is not aspired any more, the load stops at the next kernel, within a tensor that is
    restored, or at the next warm-up request. If the version's `directory` is gone, the load stops
    before the next stage.
    """

    def __init__(
        self,
        servable_id: ServableId,
        directory: str,
        *,
        settings: LoadSettings,
        plane: DataPlane,
        clock: Clock,
    ) -> None:
        self._id = servable_id
        self._directory = Path(directory)
        self._settings = settings
        self._plane = plane
        self._clock = clock
        self._signature_names: Sequence[str] = ()
        self._missing_kernels: Sequence[MissingKernel] = ()

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
            servable.keep_state(self._keepable_bytes())
            # A run of a warm-up may be long, or endless.
            with progress.cancellation.stops_by(servable.cancel_runs):
                self._try_missing_kernels(servable)
                # Made-up requests leave nothing, even if a record writes what cannot be put back.
                servable.put_back_state()
                servable.keep_state(self._keepable_bytes())
                warmed = self._warm(servable, gates, progress)
            if self._settings.arenas is not None:
                # The next version need not have room for what is kept: it keeps what its own room allows.
                rise_bytes = self._plane.request_memory_peak_rise_bytes()
                self._settings.arenas.warmed_up(self._id, rise_bytes - servable.kept_state_bytes)
            pass_gates = partial(self._pass_gates, servable, gates, warmed, progress)
            self._run_stage(progress, LoadStage.GATES, pass_gates)
            self._put_back_state(servable)
            if self._settings.is_sealing:
                self._seal(servable)
        except BaseException:
            report_remains(self._id, servable.destroy())
            raise
        return servable

    def _keepable_bytes(self) -> int:
        """Returns how many bytes of variables may be kept while requests of the warm-up write them.

        Half of what is free: the requests themselves take memory too.
        """
        arenas = self._settings.arenas
        return (available_bytes() if arenas is None else arenas.free_bytes(self._id)) // 2

    def _put_back_state(self, servable: Servable) -> None:
        """Makes the first client find the variables as the load has filled them."""
        variable_count = servable.put_back_state()
        if variable_count:
            _log.info(
                "state_put_back",
                model=self._id.name,
                version=self._id.version,
                variable_count=variable_count,
            )

    def _load(self, progress: LoadProgress) -> Servable:
        """Loads the version; loads it a second time if the missing ops of its graph can be added."""
        try:
            return self._load_once(progress)
        except _MissingOps as missing:
            with statuses_as_errors(self._plane.StatusError):
                if not self._settings.add_ops(missing.ops, self._plane.load_op_library):
                    raise
        return self._load_once(progress)

    def _load_once(self, progress: LoadProgress) -> Servable:
        # The files may have changed since the source checked them, so they are checked again. Missing
        # assets are ignored: if the graph reads one, the load fails with TensorFlow's error.
        batching = self._run_stage(progress, LoadStage.CHECK, self._check)
        load = self._plane.SavedModelLoad(
            self._id.name, self._id.version, str(self._directory), self._settings.tags
        )
        try:
            with progress.cancellation.stops_by(load.cancel):
                self._take_steps(load, progress, is_batched=batching is not None)
            return load.finish(
                self._settings.reservoir, self._settings.request_statistics, batching
            )
        except BaseException:
            report_remains(self._id, load.discard())
            raise

    def _check(self) -> object | None:
        """Checks the files of the version. Returns the settings of its batches."""
        self._plane.check_saved_model(str(self._directory))
        return self._settings.batching(self._directory)

    def _take_steps(
        self, load: SavedModelLoad, progress: LoadProgress, *, is_batched: bool
    ) -> None:
        run = partial(self._run_stage, progress)
        run(LoadStage.READ_GRAPH, partial(self._read_graph, load))
        if self._settings.arenas is not None:
            take = partial(self._take_arena, self._settings.arenas, load, progress)
            run(LoadStage.TAKE_ARENA, take)
        run(LoadStage.CREATE_SESSION, load.create_session)
        run(LoadStage.RESTORE, partial(self._restore, load))
        run(LoadStage.INIT, partial(self._run_init, load))
        make_callables = partial(self._make_callables, load, is_batched=is_batched)
        run(LoadStage.MAKE_CALLABLES, make_callables)

    def _read_graph(self, load: SavedModelLoad) -> None:
        load.read_graph()
        if self._settings.has_strict_input_shapes:
            load.check_input_shapes()
        missing_ops = load.missing_ops()
        if missing_ops:
            raise _MissingOps(f"{self._id}: {missing_ops_message(missing_ops)}", missing_ops)
        self._check_kernels(load)

    def _check_kernels(self, load: SavedModelLoad) -> None:
        missing = load.missing_kernels()
        self._signature_names = load.signature_names
        certain = [row for row in missing if row.is_certain]
        fault = missing_kernels_fault(certain, self._signature_names)
        if fault:
            raise FailedPrecondition(f"{self._id}: {fault}")
        self._missing_kernels = missing
        if missing:
            _log.warning(
                "op_without_kernel",
                model=self._id.name,
                version=self._id.version,
                reason=f"requests that come to it fail: {missing_kernels_message(missing)}",
            )

    def _try_missing_kernels(self, servable: Servable) -> None:
        """Raises FailedPrecondition if requests fail because of an op in a branch that they do not take.

        TensorFlow makes the kernels of both branches, unless it finds out before that one is never
        taken. A run of made-up values shows that, whatever branch it takes.
        """
        uncertain = [
            row
            for row in self._missing_kernels
            if not row.is_certain and row.is_built and row.signature
        ]
        found = self._failed_trials(servable, uncertain) if uncertain else []
        certain = [row for row in self._missing_kernels if row.is_certain]
        fault = missing_kernels_fault([*certain, *found], self._signature_names)
        if fault:
            raise FailedPrecondition(f"{self._id}: {fault}")

    def _failed_trials(
        self, servable: Servable, rows: Sequence[MissingKernel]
    ) -> list[MissingKernel]:
        """Returns the rows for whose kernel a made-up request fails."""
        # Only here, because it imports numpy and grpcio, which few servers need.
        from warmup.synthesis import made_up_request

        found: list[MissingKernel] = []
        for row in rows:
            signatures = servable.signature_def_map()
            request = made_up_request(signatures, self._id.name, row.signature)
            try:
                if request is not None:
                    self._answer(partial(servable.replay, "Predict"), request)
            except Cancelled:
                raise
            except MillpondError as error:
                found += [row] if has_failed_for_kernel(row, str(error)) else []
        return found

    def _run_init(self, load: SavedModelLoad) -> None:
        load.run_init()
        for event, names, message_of in (
            ("variables_without_value", load.variables_without_value(), unset_variables_message),
            ("tables_without_value", load.tables_without_value(), unset_tables_message),
        ):
            if not names:
                continue
            message = message_of(names)
            # A signature that writes variables or tables may set them before another one reads them.
            if not load.may_write_variables:
                raise FailedPrecondition(f"{self._id}: {message}")
            _log.warning(
                event,
                model=self._id.name,
                version=self._id.version,
                count=len(names),
                reason=message,
            )

    def _take_arena(self, arenas: Arenas, load: SavedModelLoad, progress: LoadProgress) -> None:
        progress.measured(arenas.take(self._id, load, self._graph_bytes()))

    def _graph_bytes(self) -> int:
        """Returns the size of the graph's file; the graph takes a little more in memory."""
        for name in ("saved_model.pb", "saved_model.pbtxt"):
            with suppress(OSError):
                return (self._directory / name).stat().st_size
        return 0

    def _make_callables(self, load: SavedModelLoad, *, is_batched: bool) -> None:
        if is_batched:
            load.analyze_rows()
        load.make_callables()
        if self._settings.reservoir is None:
            return
        # Makes the callables for the sets of outputs that clients request. They are made now because
        # their allocations, such as constants of the graph, still go into the arena.
        for request in self._settings.reservoir.requests():
            # The new version may lack the signature; its clients then get an error.
            with suppress(self._plane.StatusError):
                load.prepare(request)

    def _seal(self, servable: Servable) -> None:
        if not servable.seal_arena():
            _log.info(
                "arena_not_sealed",
                model=self._id.name,
                version=self._id.version,
                reason="an op that requests run may write to it",
            )

    def _restore(self, load: SavedModelLoad) -> None:
        start_ns = self._clock.now_ns()
        load.set_restore_bytes_per_second(self._settings.restore_bytes_per_second)
        load.set_restore_target(self._settings.load_seconds_target)
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
        self, progress: LoadProgress, stage: LoadStage, step: Callable[[], Result]
    ) -> Result:
        if progress.cancellation.is_cancelled:
            raise Cancelled(f"{self._id}: no longer aspired; stopped before {stage.value}")
        progress.stage_began(stage)
        start_ns = self._clock.now_ns()
        try:
            result = step()
        except Exception as error:
            self._raise_if_directory_gone(stage, error)
            raise
        finally:
            progress.stage_ended(stage, seconds_since(self._clock, start_ns))
        self._raise_if_directory_gone(stage)
        return result

    def _raise_if_directory_gone(self, stage: LoadStage, cause: Exception | None = None) -> None:
        """Raises NotFound if the directory is gone: then a missing file is not a fault of the model."""
        if not self._directory.is_dir():
            raise NotFound(
                f"{self._id}: {self._directory} was removed during the load (in {stage.value}); "
                "drop the version again"
            ) from cause

    def _warm(self, servable: Servable, gates: GateSettings, progress: LoadProgress) -> _Warmed:
        """Runs both warm-ups."""
        warmed = _Warmed()
        run = partial(self._run_stage, progress)
        replay_records = partial(self._replay_records, servable, gates, warmed, progress)
        run(LoadStage.WARM_UP, replay_records)
        reservoir = self._settings.reservoir
        if reservoir is not None:
            replay = partial(self._replay_requests, servable, reservoir, warmed, progress)
            run(LoadStage.SELF_WARM_UP, replay)
        if servable.batching():
            run(LoadStage.PROVE_BATCHING, partial(self._prove_batching, servable, progress))
        return warmed

    def _prove_batching(self, servable: Servable, progress: LoadProgress) -> None:
        predecessor = self._settings.incumbent(self._id)
        warmed_count = servable.prove_batching(predecessor)
        if warmed_count:
            _log.info(
                "batches_warmed_up",
                model=self._id.name,
                version=self._id.version,
                count=warmed_count,
            )
        self._settings.batch_records.add(self._id, servable)
        self._settings.batch_refusals.add(self._id, servable)

    def _replay_records(
        self,
        servable: Servable,
        gates: GateSettings,
        warmed: _Warmed,
        progress: LoadProgress,
    ) -> None:
        mode = gates.warm_up
        watch = WarmUpWatch(
            partial(self._answer_method, servable),
            answers=warmed.recorded,
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
        # If records may write variables, they must not be run again.
        if gates.convergence is not GateMode.OFF and not servable.may_write_variables:
            verdict = watch.converge(gates, lambda: progress.cancellation.is_cancelled)
            if verdict is not None:
                self._notify(verdict, progress)
                warmed.verdicts.append(verdict)

    def _replay_requests(
        self,
        servable: Servable,
        reservoir: RequestReservoir,
        warmed: _Warmed,
        progress: LoadProgress,
    ) -> None:
        # A replay's writes are put back before the version is published. A replay ends before a write
        # that cannot be.
        def predict(request: bytes) -> bytes:
            response = self._answer(partial(servable.replay, "Predict"), request)
            warmed.live.saw("Predict", request, response)
            return response

        result = self._settings.self_warm_up(
            reservoir.requests(),
            prepare=partial(self._answer, servable.prepare),
            predict=predict,
            is_cancelled=lambda: progress.cancellation.is_cancelled,
        )
        if progress.cancellation.is_cancelled:
            raise Cancelled(f"{self._id}: no longer aspired; stopped in its self-warm-up")
        if servable.may_write_variables:
            self._report_writes(result, progress)
        if not servable.may_write_variables or result.run_count + result.failed_count:
            warmed.replayed = result
        errors = warm_joint_runs(
            reservoir.joint_requests(),
            answer=partial(self._answer, partial(servable.replay, "MultiInference")),
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

    def _report_writes(self, result: SelfWarmUpResult, progress: LoadProgress) -> None:
        count = result.unrepeatable_count
        progress.measured({"changes_variables": 1, "unrepeatable_count": count})
        progress.noted({"unrepeatable_reason": result.unrepeatable_reason})
        if count:
            _log.warning(
                "requests_not_repeated",
                model=self._id.name,
                version=self._id.version,
                count=count,
                reason=result.unrepeatable_reason,
                consequence="live requests warmed the version up only as far as they change nothing",
            )

    def _pass_gates(
        self,
        servable: Servable,
        gates: GateSettings,
        warmed: _Warmed,
        progress: LoadProgress,
    ) -> None:
        """Runs all gates, even after a failure, so that each verdict is reported.

        Raises FailedPrecondition if an enforced gate is not passed, including those of the warm-up.
        """
        subject = GateSubject(
            directory=self._directory,
            candidate=servable,
            incumbent=partial(self._settings.incumbent, self._id),
            reservoir=self._settings.reservoir,
            translated=partial(statuses_as_errors, self._plane.StatusError),
            self_warm_up=warmed.replayed,
            answers=(*warmed.live.answers, *warmed.recorded.answers),
        )
        runs = GateRuns(
            subject,
            gates,
            is_cancelled=lambda: progress.cancellation.is_cancelled,
            clock=self._clock,
        )
        for verdict in runs.run():
            self._notify(verdict, progress)
            warmed.verdicts.append(verdict)
        error = refusal(self._id, warmed.verdicts)
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
