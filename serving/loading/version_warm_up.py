"""Warms up one loaded version: with the records of its directory, with live requests, and its batches."""

from pathlib import Path

import structlog

from serving.base.clock import Clock
from serving.base.errors import Cancelled
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict, LoadStage, ServableId
from serving.data_plane.servables import RequestReservoir, Servable
from serving.data_plane.status_errors import statuses_as_errors
from serving.gates.answer_watch import Answer, AnswerWatch
from serving.gates.gate_runs import WarmUpWatch
from serving.loading.load_stages import LoadStages
from serving.loading.loader import LoadProgress, LoadSettings
from serving.loading.side_choices import has_choice
from warmup.replay import Ask
from warmup.self_warm_up import SelfWarmUpResult, warm_joint_runs

_log = structlog.get_logger(__name__)


class VersionWarmUp:
    """The warm-ups of one version before it is published, and what its gates need to know of them.

    Used on the loader thread. `verdicts` may refuse the version after its other gates. `replayed` is
    None if no live request was replayed.
    """

    def __init__(
        self,
        servable_id: ServableId,
        directory: Path,
        servable: Servable,
        *,
        settings: LoadSettings,
        progress: LoadProgress,
        stages: LoadStages,
        status_error: type[Exception],
        clock: Clock,
    ) -> None:
        self._id = servable_id
        self._directory = directory
        self._servable = servable
        self._settings = settings
        self._progress = progress
        self._cancellation = progress.cancellation
        self._stages = stages
        self._status_error = status_error
        self._clock = clock
        self._recorded = AnswerWatch()
        self._live = AnswerWatch()
        self.verdicts: list[GateVerdict] = []
        self.replayed: SelfWarmUpResult | None = None

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers of the version in both warm-ups."""
        return (*self._live.answers, *self._recorded.answers)

    def run(self) -> None:
        """Runs the stages of the warm-up. Raises Cancelled, and the errors that refuse the version."""
        with self._stages.stage(LoadStage.WARM_UP):
            self._replay_records()
        if self._settings.reservoir is not None:
            with self._stages.stage(LoadStage.SELF_WARM_UP):
                self._replay_requests(self._settings.reservoir)
        if self._servable.batching():
            with self._stages.stage(LoadStage.VERIFY_BATCHING):
                self._verify_batching()
        accelerator = self._settings.accelerator
        if accelerator is not None and has_choice(self._servable):
            with self._stages.stage(LoadStage.MEASURE):
                accelerator.sides.measure(self._id, self._servable)

    def _replay_records(self) -> None:
        gates = self._settings.gates
        watch = WarmUpWatch(
            self._answer,
            answers=self._recorded,
            is_tolerant=gates.warm_up is not GateMode.ENFORCE,
            clock=self._clock,
        )
        try:
            watch.run(self._warm_up)
        finally:
            if gates.warm_up is not GateMode.OFF and not self._cancellation.is_cancelled:
                self._stages.gate_ended(watch.verdict(gates.warm_up))
        # If records may write variables, they must not be run again.
        if gates.convergence is not GateMode.OFF and not self._servable.may_write_variables:
            verdict = watch.converge(gates, self._cancellation)
            if verdict is not None:
                self._stages.gate_ended(verdict)
                self.verdicts.append(verdict)

    def _warm_up(self, ask: Ask) -> None:
        result = self._settings.warm_up(self._directory, ask, self._cancellation)
        _log.debug("warmed_up", model=self._id.name, version=self._id.version, result=result)

    def _replay_requests(self, reservoir: RequestReservoir) -> None:
        # A replay's writes are put back before the version is published. A replay ends before a write
        # that cannot be.
        result = self._settings.self_warm_up(
            reservoir.requests(),
            make_callable=self._make_callable,
            predict=self._predict,
            cancellation=self._cancellation,
        )
        if self._cancellation.is_cancelled:
            raise Cancelled(f"{self._id}: no longer aspired; stopped in its self-warm-up")
        if self._servable.may_write_variables:
            self._report_writes(result)
        if not self._servable.may_write_variables or result.run_count + result.failed_count:
            self.replayed = result
        self._run_joint_requests(reservoir)
        self._report_replay(result)

    def _run_joint_requests(self, reservoir: RequestReservoir) -> None:
        errors = warm_joint_runs(
            reservoir.joint_requests(),
            answer=self._run_jointly,
            cancellation=self._cancellation,
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

    def _report_replay(self, result: SelfWarmUpResult) -> None:
        self._progress.measured(
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

    def _report_writes(self, result: SelfWarmUpResult) -> None:
        count = result.unrepeatable_count
        self._progress.measured({"changes_variables": 1, "unrepeatable_count": count})
        self._progress.noted({"unrepeatable_reason": result.unrepeatable_reason})
        if count:
            _log.warning(
                "requests_not_repeated",
                model=self._id.name,
                version=self._id.version,
                count=count,
                reason=result.unrepeatable_reason,
                consequence="live requests warmed the version up only as far as they change nothing",
            )

    def _verify_batching(self) -> None:
        predecessor = self._settings.incumbent(self._id)
        warmed_count = self._servable.verify_batching(predecessor)
        if warmed_count:
            _log.info(
                "batches_warmed_up",
                model=self._id.name,
                version=self._id.version,
                count=warmed_count,
            )
        self._settings.batch_records.add(self._id, self._servable)
        self._settings.batch_refusals.add(self._id, self._servable)

    # --- Requests to the version ------------------------------------------------------------------

    def _answer(self, method: str, request: bytes) -> bytes:
        with statuses_as_errors(self._status_error):
            return self._servable.answer(method, request)

    def _make_callable(self, request: bytes) -> None:
        with statuses_as_errors(self._status_error):
            self._servable.make_callable(request)

    def _predict(self, request: bytes) -> bytes:
        with statuses_as_errors(self._status_error):
            response = self._servable.replay("Predict", request)
        self._live.saw("Predict", request, response)
        return response

    def _run_jointly(self, request: bytes) -> bytes:
        with statuses_as_errors(self._status_error):
            return self._servable.replay("MultiInference", request)
