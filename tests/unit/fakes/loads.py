"""A loader, and the progress that loads report to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from serving.base.errors import Cancelled
from serving.core.cancellation import Cancellation
from serving.core.servable import GateVerdict, LoadStage, ServableId
from serving.loading.loader import LoadProgress
from tests.unit.fakes.servables import FakeServable


@dataclass
class FakeLoader:
    """Loads in two stages, and succeeds or fails with the next of the id's `failures`."""

    failures: dict[ServableId, list[Exception]] = field(default_factory=dict)
    servables: list[FakeServable] = field(default_factory=list)
    loads: list[ServableId] = field(default_factory=list)
    # The directory of each version's latest load.
    directories: dict[ServableId, str] = field(default_factory=dict)
    # The figures that each load reports.
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    # The gate verdicts of the next load of a version.
    verdicts: dict[ServableId, list[GateVerdict]] = field(default_factory=dict)
    # Called in the middle of each load, for example to cancel it.
    during: Callable[[], None] = lambda: None

    def load(self, servable_id: ServableId, directory: str, progress: LoadProgress) -> FakeServable:
        for stage in (LoadStage.RESTORE, LoadStage.WARM_UP):
            if progress.cancellation.is_cancelled:
                raise Cancelled(f"{servable_id}: stopped before {stage.value}")
            progress.stage_began(stage)
            progress.stage_ended(stage, 0.5)
        self.loads.append(servable_id)
        self.directories[servable_id] = directory
        progress.measured(self.figures)
        progress.noted(self.notes)
        for verdict in self.verdicts.pop(servable_id, []):
            progress.gate_ended(verdict)
        self.during()
        failures = self.failures.get(servable_id, [])
        if failures:
            raise failures.pop(0)
        servable = FakeServable(servable_id)
        self.servables.append(servable)
        return servable


class FakeProgress:
    """Records a load's reports as lines; `cancel_after` cancels the load after that stage."""

    def __init__(self, cancel_after: LoadStage | None = None) -> None:
        self.lines: list[str] = []
        self.verdicts: list[GateVerdict] = []
        self.figures: dict[str, float] = {}
        self.notes: dict[str, str] = {}
        self.cancellation = Cancellation()
        self._cancel_after = cancel_after

    def stage_began(self, stage: LoadStage) -> None:
        self.lines.append(f"{stage.value} began")

    def gate_ended(self, verdict: GateVerdict) -> None:
        self.verdicts.append(verdict)

    def measured(self, figures: Mapping[str, float]) -> None:
        self.figures.update(figures)

    def noted(self, notes: Mapping[str, str]) -> None:
        self.notes.update(notes)

    def stage_ended(self, stage: LoadStage, seconds: float) -> None:
        self.lines.append(f"{stage.value} {seconds:g}")
        if stage is self._cancel_after:
            self.cancellation.cancel()
