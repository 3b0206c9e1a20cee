"""CheckedLoad: loads one version, warms it up and passes its gates. Read it from top to bottom."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from serving.base.clock import Clock, seconds_since
from serving.base.errors import FailedPrecondition
from serving.core.model_settings import Platform, Priority
from serving.core.servable import LoadStage, ServableId
from serving.data_plane.loads import SavedModelLoad
from serving.data_plane.plane import DataPlane
from serving.data_plane.servables import Servable
from serving.data_plane.status_errors import statuses_as_errors
from serving.gates.gate_runs import GateRuns
from serving.gates.gate_trials import GateSubject
from serving.gates.gates import refusal
from serving.gates.tuned_check import ANSWERS_MAX
from serving.loading.accelerator_use import AcceleratorNeeds, AcceleratorUse
from serving.loading.arenas import report_remains
from serving.loading.autotuning import UntunedVersion
from serving.loading.load_checks import (
    missing_ops_message,
    unset_tables_message,
    unset_variables_message,
)
from serving.loading.load_stages import LoadStages
from serving.loading.loaded_files import unchanged_files
from serving.loading.loader import LoadProgress, LoadSettings
from serving.loading.memory_fit import available_bytes
from serving.loading.metadata_json import metadata_json
from serving.loading.missing_kernels import MissingKernels
from serving.loading.table_reports import report_tables
from serving.loading.upload_reports import report_uploads
from serving.loading.version_warm_up import VersionWarmUp

_log = structlog.get_logger(__name__)


class _MissingOps(FailedPrecondition):
    """The graph has ops that are not registered in this process."""

    def __init__(self, message: str, ops: Sequence[str]) -> None:
        super().__init__(message)
        self.ops = ops


class CheckedLoad:
    """One load of one SavedModel, step by step, each step a timed stage. `run` it once.

    Once the version is not aspired any more, the load stops at the next kernel, within a tensor that is
    restored, or at the next warm-up request. If the version's `directory` is gone, the load stops
    before the next stage. If files that it reads change meanwhile, it fails, and is tried again.
    """

    def __init__(
        self,
        servable_id: ServableId,
        directory: Path,
        *,
        settings: LoadSettings,
        plane: DataPlane,
        progress: LoadProgress,
        clock: Clock,
    ) -> None:
        self._id = servable_id
        self._directory = directory
        self._settings = settings
        self._plane = plane
        self._progress = progress
        self._stages = LoadStages(servable_id, directory, progress, clock)
        self._stage = self._stages.stage
        self._clock = clock
        # Both set once the version is compiled for an accelerator, of that name.
        self._device = ""
        self._untuned_count = 0

    def run(self) -> Servable:
        """Loads the version, and returns it. Raises as `Loader.load` does."""
        arenas = self._settings.arenas
        try:
            with statuses_as_errors(self._plane.StatusError):
                servable = self._load_and_check()
        except BaseException:
            if arenas is not None:
                arenas.failed(self._id)
            raise
        if arenas is not None:
            arenas.loaded(self._id, servable, self._settings.serving_count)
        return servable

    def _load_and_check(self) -> Servable:
        servable, missing_kernels = self._load()
        if self._accelerator is not None:
            self._progress.measured({"accelerator_bytes": servable.accelerator_bytes})
            report_uploads(self._id, servable.accelerator_uploads(), self._progress)
        try:
            warm_up = self._warm_up(servable, missing_kernels)
            with self._stage(LoadStage.GATES):
                self._pass_gates(servable, warm_up)
            self._put_back_state(servable)
            servable.set_metadata_json(metadata_json(self._id, servable.signature_def_map()))
            if self._settings.is_sealing:
                self._seal(servable)
            self._tune_later(servable, warm_up)
        except BaseException:
            report_remains(self._id, servable.destroy())
            raise
        return servable

    # --- Load -------------------------------------------------------------------------------------

    def _load(self) -> tuple[Servable, MissingKernels]:
        """Loads the version; loads it a second time if the missing ops of its graph can be added."""
        try:
            return self._load_once()
        except _MissingOps as missing:
            if not self._add_ops(missing.ops):
                raise
        return self._load_once()

    def _add_ops(self, ops: Sequence[str]) -> bool:
        """Registers ops that the graph lacks; returns True if a second load may find them."""
        installed = self._settings.ops
        if installed is None:
            return False
        with statuses_as_errors(self._plane.StatusError):
            return installed.load(ops, self._plane.load_op_library)

    def _load_once(self) -> tuple[Servable, MissingKernels]:
        # The files may have changed since the source checked them, so they are checked again. Missing
        # assets are ignored: if the graph reads one, the load fails with TensorFlow's error.
        with self._stage(LoadStage.CHECK):
            self._check_platform()
            self._plane.check_saved_model(str(self._directory))
            make_batching = self._settings.batching
            batching = None if make_batching is None else make_batching(self._directory)
        load = self._plane.SavedModelLoad(
            self._id.name, self._id.version, str(self._directory), self._settings.tags
        )
        try:
            with (
                self._progress.cancellation.stops_by(load.cancel),
                unchanged_files(self._id, self._directory),
            ):
                missing_kernels = self._take_steps(load, is_batched=batching is not None)
            servable = load.finish(
                self._settings.reservoir,
                self._settings.request_statistics,
                batching,
                self._settings.replay_seconds_max,
                self._settings.request_log,
            )
        except BaseException:
            report_remains(self._id, load.discard())
            raise
        return servable, missing_kernels

    def _take_steps(self, load: SavedModelLoad, *, is_batched: bool) -> MissingKernels:
        if self._accelerator is not None:
            self._accelerator.placement.check(self._id.name, self._settings.accelerator_devices)
        with self._stage(LoadStage.READ_GRAPH):
            self._read_graph(load)
            missing_kernels = MissingKernels(self._id, load)
        arenas = self._settings.arenas
        if arenas is not None:
            with self._stage(LoadStage.TAKE_ARENA):
                self._progress.measured(arenas.take(self._id, load, self._graph_bytes()))
        with self._stage(LoadStage.CREATE_SESSION):
            load.create_session()
        with self._stage(LoadStage.RESTORE):
            self._restore(load)
        with self._stage(LoadStage.INIT):
            load.run_init()
            self._check_values(load)
            is_first = not self._settings.follows_another(self._id)
            report_tables(self._id, load, self._progress, is_first=is_first)
        accelerator = self._accelerator
        if is_batched or accelerator is not None:
            load.analyze_rows()
        if accelerator is not None:
            self._use(accelerator, load)
        with self._stage(LoadStage.MAKE_CALLABLES):
            load.make_callables()
            self._make_callables_of_requests(load)
        return missing_kernels

    def _use(self, accelerator: AcceleratorUse, load: SavedModelLoad) -> None:
        """Compiles the version for accelerators, and copies its parameters there."""
        needs = AcceleratorNeeds(
            memory_bytes_max=self._settings.accelerator_memory_bytes,
            is_low=self._settings.accelerator_priority is Priority.LOW,
            is_needed=self._settings.platform is Platform.PJRT,
            tables=self._settings.accelerator_tables,
            devices=self._settings.accelerator_devices,
            replica_count=self._settings.accelerator_replicas,
        )
        error = self._plane.StatusError
        with accelerator.placed(self._id, load, needs) as places, self._stage(LoadStage.COMPILE):
            applied = accelerator.apply(
                self._id,
                load,
                places,
                needs,
                status_error=error,
                cancellation=self._progress.cancellation,
            )
        self._device, self._untuned_count = places[0].name, applied.untuned_count
        self._progress.measured(applied.figures)

    def _tune_later(self, servable: Servable, warm_up: VersionWarmUp) -> None:
        accelerator = self._accelerator
        if accelerator is None or accelerator.autotuning is None or not self._untuned_count:
            return
        version = UntunedVersion(
            servable_id=self._id,
            servable=servable,
            device=self._device,
            answers=warm_up.answers[:ANSWERS_MAX],
            gates=self._settings.gates,
        )
        accelerator.autotuning.add(version)

    def _check_platform(self) -> None:
        if self._settings.platform is Platform.PJRT and self._settings.accelerator is None:
            raise FailedPrecondition(
                f'{self._id}: its model\'s platform is "pjrt", and this server has no accelerator; '
                'start it with --accelerator, or set platform = "auto"'
            )

    @property
    def _accelerator(self) -> AcceleratorUse | None:
        """The accelerator that the version may use; None if it runs on the CPU."""
        is_off = self._settings.platform is Platform.TENSORFLOW
        return None if is_off else self._settings.accelerator

    def _read_graph(self, load: SavedModelLoad) -> None:
        load.read_graph()
        if self._settings.has_strict_input_shapes:
            load.check_input_shapes()
        missing_ops = load.missing_ops()
        if missing_ops:
            raise _MissingOps(f"{self._id}: {missing_ops_message(missing_ops)}", missing_ops)

    def _graph_bytes(self) -> int:
        """The size of the graph's file; the graph takes a little more in memory."""
        for name in ("saved_model.pb", "saved_model.pbtxt"):
            with suppress(OSError):
                return (self._directory / name).stat().st_size
        return 0

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
            kept_bytes=load.kept_bytes,
            copied_bytes=load.copied_bytes,
            bytes_per_second=round(load.restored_bytes / seconds) if seconds else None,
        )

    def _check_values(self, load: SavedModelLoad) -> None:
        """Raises FailedPrecondition if requests would read variables or tables without a value."""
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

    def _make_callables_of_requests(self, load: SavedModelLoad) -> None:
        """Makes the callables for the sets of outputs that clients request.

        They are made now because their allocations, such as constants of the graph, still go into the
        arena.
        """
        if self._settings.reservoir is None:
            return
        for request in self._settings.reservoir.requests():
            # The new version may lack the signature; its clients then get an error.
            with suppress(self._plane.StatusError):
                load.make_callable(request)

    # --- Warm-up and gates ------------------------------------------------------------------------

    def _warm_up(self, servable: Servable, missing_kernels: MissingKernels) -> VersionWarmUp:
        warm_up = VersionWarmUp(
            self._id,
            self._directory,
            servable,
            settings=self._settings,
            progress=self._progress,
            stages=self._stages,
            status_error=self._plane.StatusError,
            clock=self._clock,
        )
        self._plane.mark_request_memory_peak()
        servable.keep_state(self._keepable_bytes())
        # A run of a warm-up may be long, or endless.
        with self._progress.cancellation.stops_by(servable.cancel_runs):
            missing_kernels.try_out(servable, self._plane.StatusError)
            # Made-up requests leave nothing, even if a record writes what cannot be put back.
            servable.put_back_state()
            servable.keep_state(self._keepable_bytes())
            warm_up.run()
        if self._settings.arenas is not None:
            # The next version need not have room for what is kept: it keeps what its own room allows.
            rise_bytes = self._plane.request_memory_peak_rise_bytes()
            self._settings.arenas.warmed_up(self._id, rise_bytes - servable.kept_state_bytes)
        return warm_up

    def _keepable_bytes(self) -> int:
        """The bytes of variables that may be kept while requests of the warm-up write them.

        Half of what is free: the requests themselves take memory too.
        """
        arenas = self._settings.arenas
        return (available_bytes() if arenas is None else arenas.free_bytes(self._id)) // 2

    def _pass_gates(self, servable: Servable, warm_up: VersionWarmUp) -> None:
        """Runs all gates, even after a failure, so that each verdict is reported.

        Raises FailedPrecondition if an enforced gate is not passed, including those of the warm-up.
        """
        subject = GateSubject(
            directory=self._directory,
            candidate=servable,
            incumbent=partial(self._settings.incumbent, self._id),
            reservoir=self._settings.reservoir,
            status_error=self._plane.StatusError,
            self_warm_up=warm_up.replayed,
            answers=warm_up.answers,
        )
        runs = GateRuns(
            subject,
            self._settings.gates,
            cancellation=self._progress.cancellation,
            clock=self._clock,
        )
        verdicts = [*warm_up.verdicts]
        for verdict in runs.run():
            self._stages.gate_ended(verdict)
            verdicts.append(verdict)
        error = refusal(self._id, verdicts)
        if error is not None:
            raise error

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

    def _seal(self, servable: Servable) -> None:
        if not servable.seal_arena():
            _log.info(
                "arena_not_sealed",
                model=self._id.name,
                version=self._id.version,
                reason="an op that requests run may write to it",
            )
