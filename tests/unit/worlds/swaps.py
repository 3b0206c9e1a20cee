"""The swap timeline, with the lives of versions and concurrent requests."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    UNLOADING,
    LoadStage,
    ServableId,
    ServableState,
    ServableStatus,
    UnloadStage,
)
from serving.data_plane.loads import SlabPoolStatistics
from serving.data_plane.request_statistics import HistoryPoint, LatencyFigures
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.monitoring.swap_record import SwapRecord
from serving.monitoring.swap_timeline import SwapTimeline
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakeSlabPool
from tests.unit.fakes.memory import SLAB_POOL_STATISTICS
from tests.unit.fakes.metrics import figures_of
from tests.unit.fakes.requests import FakeRequestStatistics

MS = 1_000_000


class RecordedRequests(FakeRequestStatistics):
    """RequestStatistics over a list of the requests' ends."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.requests: list[tuple[str, int, int]] = []
        self.failures: list[tuple[str, int, int]] = []
        self.cut_count = 0

    def answer(self, latency_ms: float, model: str = "m", *, is_failed: bool = False) -> None:
        self.requests.append((model, self._clock.now_ns(), round(latency_ms * MS)))
        self.failures.extend(self.requests[-1:] if is_failed else [])

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        return figures_of(
            tuple(ns for name, at, ns in self.requests if name == model and from_ns < at <= to_ns)
        )

    def history(self, model: str | None, since_ns: int = 0) -> Sequence[HistoryPoint]:
        return [
            HistoryPoint(at, 1, int((name, at, ns) in self.failures), figures_of((ns,)))
            for name, at, ns in self.requests
            if model in (None, name) and at > since_ns
        ]

    def cut(self) -> int:
        self.cut_count += 1
        return self._clock.now_ns()


class _Statuses(StateMonitor):
    def __init__(self, statuses: Mapping[ServableId, ServableStatus]) -> None:
        super().__init__(FakeClock())
        self._shown = statuses

    def status(self, servable_id: ServableId) -> ServableStatus | None:
        return self._shown.get(servable_id)


class _Answering(Streams):
    def __init__(self, versions: Mapping[str, int]) -> None:
        super().__init__()
        self._versions = versions

    def answering(self, name: str) -> int | None:
        return self._versions.get(name)


class _DueSlabs(FakeSlabPool):
    """Memory is on its way back to the system while `is_due`."""

    is_due = False

    def statistics(self) -> SlabPoolStatistics:
        return replace(SLAB_POOL_STATISTICS, surplus_resident_bytes=int(self.is_due))


class World:
    """A timeline and the lives of its versions."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.requests = RecordedRequests(self.clock)
        self.answering: dict[str, int] = {}
        self.slab_pool = _DueSlabs()
        self.fault_count = 0
        self.statuses: dict[ServableId, ServableStatus] = {}
        self.timeline = SwapTimeline(
            self.requests,
            monitor=_Statuses(self.statuses),
            streams=_Answering(self.answering),
            slab_pool=self.slab_pool,
            clock=self.clock,
            fault_count=lambda: self.fault_count,
        )

    def report(
        self, version: int, state: ServableState, *, name: str = "m", **changes: Any
    ) -> None:
        servable_id = ServableId(name, version)
        old = self.statuses.get(servable_id, ServableStatus(id=servable_id, state=START))
        if state is START:
            now_ns = self.clock.now_ns()
            old = ServableStatus(
                id=servable_id, state=START, detected_at_ns=now_ns - 2, found_at_ns=now_ns - 1
            )
        self.statuses[servable_id] = replace(old, state=state, **changes)
        self.timeline.on_status(self.statuses[servable_id])

    def end_stage(self, version: int, stage: LoadStage | UnloadStage, seconds: float) -> None:
        self.clock.advance(seconds)
        servable_id = ServableId("m", version)
        old = self.statuses[servable_id]
        self.statuses[servable_id] = replace(
            old,
            stage_seconds={**old.stage_seconds, stage: seconds},
            stage_ended_at_ns={**old.stage_ended_at_ns, stage: self.clock.now_ns()},
        )

    def load(self, version: int) -> None:
        self.report(version, START)
        self.report(version, LOADING)
        self.end_stage(version, LoadStage.RESTORE, 2)
        self.end_stage(version, LoadStage.PUBLISH, 0.001)
        self.answering["m"] = version
        self.report(version, AVAILABLE, figures={"slab_bytes": 5.0, "load_cpu_seconds": 1.5})

    def unload(self, version: int) -> None:
        self.report(version, UNLOADING)
        self.end_stage(version, UnloadStage.QUIESCE, 0.5)
        self.end_stage(version, UnloadStage.DESTROY, 0.25)
        self.report(version, END, figures={"unload_cpu_seconds": 0.125})

    def pass_time(self, seconds: float) -> None:
        """Passes time as the timeline's thread sees it."""
        for _ in range(round(seconds * 4)):
            self.clock.advance(0.25)
            self.timeline.advance_swaps()

    def swap(self, old: int, new: int) -> None:
        self.load(new)
        self.unload(old)

    @property
    def newest(self) -> SwapRecord:
        return self.timeline.records()[0]
