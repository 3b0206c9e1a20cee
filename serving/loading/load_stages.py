"""Reports the stages and gates of one load. A stage does not begin if the load is cancelled."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from serving.base.clock import Clock, seconds_since
from serving.base.errors import Cancelled, FilesGone
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict, LoadStage, ServableId
from serving.loading.loader import LoadProgress

_log = structlog.get_logger(__name__)


class LoadStages:
    """The stages and gates of a load, on its loader thread."""

    def __init__(
        self, servable_id: ServableId, directory: Path, progress: LoadProgress, clock: Clock
    ) -> None:
        self._id = servable_id
        self._directory = directory
        self._progress = progress
        self._clock = clock

    @contextmanager
    def stage(self, stage: LoadStage) -> Iterator[None]:
        """Times the block as a stage.

        Raises Cancelled if the load is cancelled, before the block runs. Raises FilesGone after the
        block, or instead of its error, if the directory of the version is gone.
        """
        if self._progress.cancellation.is_cancelled:
            raise Cancelled(f"{self._id}: no longer aspired; stopped before {stage.value}")
        self._progress.stage_began(stage)
        start_ns = self._clock.now_ns()
        try:
            yield
        except Exception as error:
            self._check_directory(stage, error)
            raise
        finally:
            self._progress.stage_ended(stage, seconds_since(self._clock, start_ns))
        self._check_directory(stage)

    def gate_ended(self, verdict: GateVerdict) -> None:
        """Reports a verdict, and logs it if the gate is not passed."""
        self._progress.gate_ended(verdict)
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

    def _check_directory(self, stage: LoadStage, cause: Exception | None = None) -> None:
        # A file that is missing with its directory is not a fault of the model.
        if not self._directory.is_dir():
            raise FilesGone(
                f"{self._id}: {self._directory} was removed during the load (in {stage.value}); "
                "it is loaded again once it is back"
            ) from cause
