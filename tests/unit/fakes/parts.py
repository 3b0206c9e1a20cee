"""The parts of a server that others only read, with values that tests set."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from serving.core.blocked_versions import BlockedVersions
from serving.core.servable import AVAILABLE, Routing, ServableId, ServableStatus
from serving.data_plane.servables import (
    AcceleratedSignature,
    AcceleratorRuns,
    AcceleratorUploads,
    ArenaStatistics,
    SignatureBatching,
)
from serving.loading.batch_records import BatchRecords
from serving.loading.reservoirs import Reservoirs
from serving.manager.state_monitor import StateMonitor, Statuses
from serving.manager.stream import StreamStatus
from serving.manager.streams import Streams
from serving.monitoring.swap_record import SwapRecord
from serving.monitoring.swap_timeline import SwapTimeline
from serving.monitoring.tracing import NoTracing
from serving.reload.config_reload import ConfigReloader
from serving.reload.config_watch import ConfigRefusal
from serving.reload.served_models import ServedModels
from serving.rpc.config_refusals import ConfigRefusals
from serving.rpc.health import HealthReporter, HealthView
from serving.source.notes import Note
from serving.source.poll_schedule import PollLimits
from serving.source.poller_pool import PollerPool
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.requests import FakeReservoir
from tests.unit.fakes.servables import FakeServable


class FakeMonitor(StateMonitor):
    """Shows the statuses of a list, which a test may change."""

    def __init__(self, shown: Sequence[ServableStatus] = ()) -> None:
        super().__init__(FakeClock())
        self.shown = list(shown)

    def statuses(self) -> Statuses:
        by_name: dict[str, tuple[ServableStatus, ...]] = {}
        for status in sorted(self.shown, key=lambda status: status.id):
            by_name[status.id.name] = (*by_name.get(status.id.name, ()), status)
        return by_name


class FakeServedModels(ServedModels):
    """Configured models without sources."""

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        notes: Mapping[str, list[Note]] | None = None,
        found: Mapping[str, Collection[int]] | None = None,
        base_paths: Mapping[str, str] | None = None,
    ) -> None:
        self.configured = tuple(names)
        self._base_path_by_name = base_paths or {}
        self._notes = notes or {}
        self._found = found or {}

    @property
    def names(self) -> tuple[str, ...]:
        return self.configured

    def base_path(self, name: str) -> str | None:
        return self._base_path_by_name.get(name, f"/models/{name}")

    def notes(self, name: str) -> list[Note]:
        return self._notes.get(name, [])

    def found_versions(self, name: str) -> frozenset[int]:
        return frozenset(self._found.get(name, ()))

    def aspired_versions(self, name: str) -> frozenset[int]:
        return frozenset()


class FakeHealth(HealthReporter):
    """The health of models of which the server needs none, by the statuses of a monitor."""

    def __init__(self, models: Sequence[str], monitor: StateMonitor) -> None:
        self.models = tuple(models)
        self.is_draining = False
        self._monitor = monitor

    def view(self) -> HealthView:
        return HealthView(
            models=self.models,
            statuses=self._monitor.statuses(),
            needed=frozenset(),
            is_draining=self.is_draining,
        )


class FakeRefusals(ConfigRefusals):
    """A refusal, or none."""

    def __init__(self, refusal: ConfigRefusal | None = None) -> None:
        self.refusal = refusal

    @property
    def first(self) -> ConfigRefusal | None:
        return self.refusal


class FakeReloader(ConfigReloader):
    """Has applied some changes."""

    def __init__(self, applied_count: int) -> None:
        self._count = applied_count

    @property
    def applied_count(self) -> int:
        return self._count


class FakePollers(PollerPool):
    """Looks at no disk."""

    def __init__(self, stuck: set[str]) -> None:
        super().__init__(PollLimits(), FakeClock())
        self.stuck = stuck

    @property
    def stuck_keys(self) -> frozenset[str]:
        return frozenset(self.stuck)


class FakeSwaps(SwapTimeline):
    """Swaps that are over, newest first."""

    def __init__(
        self, shown: list[SwapRecord], by_result: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        self.shown = shown
        self._by_result = by_result or {}

    def records(self) -> list[SwapRecord]:
        return self.shown

    def counts(self) -> Mapping[tuple[str, str], int]:
        return self._by_result


class FakeBatches(BatchRecords):
    """The batches of some versions."""

    def __init__(self, by_version: Mapping[ServableId, Sequence[SignatureBatching]]) -> None:
        super().__init__()
        self._by_version = by_version

    def of(self, servable_id: ServableId) -> Sequence[SignatureBatching]:
        return self._by_version.get(servable_id, ())


class FakeReservoirs(Reservoirs):
    """The reservoirs of some models; the other models keep no requests."""

    def __init__(self, by_name: Mapping[str, FakeReservoir]) -> None:
        super().__init__(None)
        self._known = by_name

    def of(self, name: str) -> FakeReservoir | None:
        return self._known.get(name)


class FakeTracing(NoTracing):
    """Has lost spans."""

    def dropped_counts(self) -> Mapping[str, int]:
        return {"over_rate": 3, "full": 0, "export": 2}


@dataclass
class FakeStreams(Streams):
    """The highest available version of `monitor` answers, unless a routing says otherwise."""

    monitor: StateMonitor
    routings: dict[str, Routing] = field(default_factory=dict)
    arenas: dict[ServableId, ArenaStatistics] = field(default_factory=dict)
    blocked_versions: dict[str, BlockedVersions] = field(default_factory=dict)
    canary_progress: dict[str, str] = field(default_factory=dict)
    runs: dict[ServableId, Sequence[AcceleratorRuns]] = field(default_factory=dict)
    accelerated: dict[ServableId, list[AcceleratedSignature]] = field(default_factory=dict)

    def routing(self, name: str) -> Routing:
        return self.routings.get(name, Routing())

    def answering(self, name: str) -> int | None:
        versions = self.monitor.statuses().get(name, ())
        available = [status.id.version for status in versions if status.state is AVAILABLE]
        return self.routing(name).default_version or max(available, default=None)

    def status(self, name: str) -> StreamStatus | None:
        return StreamStatus(policy="auto", canary_progress=self.canary_progress.get(name, ""))

    def servable(self, servable_id: ServableId) -> FakeServable | None:
        servable = FakeServable(servable_id)
        servable.arena = self.arenas.get(servable_id)
        servable.runs = self.runs.get(servable_id, ())
        servable.accelerated = self.accelerated.get(servable_id, [])
        servable.uploads = AcceleratorUploads(
            "0", 700 * len(servable.runs), 2, 3_000_000, 1, 1_400, 400, 5_600, 1, "t: no room"
        )
        return servable

    def blocks(self, name: str) -> BlockedVersions:
        return self.blocked_versions.get(name, {})
