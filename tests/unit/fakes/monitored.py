"""The parts of a server that metrics and the live page read, with values that a test sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from resource import struct_rusage

from serving.base.clock import Clock
from serving.core.blocked_versions import BlockedVersions
from serving.core.servable import Routing, ServableId, ServableStatus
from serving.data_plane.loads import TableStatistics
from serving.data_plane.servables import (
    AcceleratedSignature,
    AcceleratorRuns,
    ArenaStatistics,
    SignatureBatching,
)
from serving.loading.reservoirs import Reservoirs
from serving.monitoring.gpu_sensors import GpuFigures, GpuSensors
from serving.monitoring.monitored_parts import MonitoredParts, ProcessFigures
from serving.monitoring.swap_record import SwapRecord
from serving.reload.config_watch import ConfigRefusal
from serving.request_log.request_logs import RequestLogs
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakeAccelerator, FakePlane, FakeSlabPool
from tests.unit.fakes.log_store import no_uploads
from tests.unit.fakes.memory import TABLE_STATISTICS
from tests.unit.fakes.parts import (
    FakeBatches,
    FakeHealth,
    FakeMonitor,
    FakePollers,
    FakeRefusals,
    FakeReloader,
    FakeServedModels,
    FakeStreams,
    FakeSwaps,
    FakeTracing,
)
from tests.unit.fakes.requests import FakeAdmission, FakeByteBudget, FakeRequestStatistics
from tests.unit.fakes.servers import FakeGrpcServer

BUILD_INFO = {
    "millpond": "1.2.3",
    "tensorflow": "2.21.0",
    "wire": "nghttp2 1.52.0, OpenSSL 3.0.17",
    "jemalloc": "5.3.0",
    "allocator": "jemalloc",
}


@dataclass(frozen=True, kw_only=True)
class FakeProcessFigures(ProcessFigures):
    """11 minor and 2 major page faults, and as much memory as a test says."""

    available: int

    def available_bytes(self) -> int:
        return self.available

    def usage(self) -> struct_rusage:
        return struct_rusage([11 if at == 6 else 2 if at == 7 else 0 for at in range(16)])


class FakeGpuSensors(GpuSensors):
    """The sensors of GPUs that nothing reads."""

    def __init__(self, *figures: GpuFigures) -> None:
        self._figures = {str(device): seen for device, seen in enumerate(figures)}


class _PoolWithTables(FakeSlabPool):
    def table_statistics(self) -> TableStatistics:
        return TABLE_STATISTICS


class FakeParts:
    """The parts of a server without loaded versions, with changes. `parts` shows later changes too.

    `configured` are the models of which the health is shown. With `runs` there is an accelerator, and each
    version of it has 700 bytes there.
    """

    def __init__(
        self,
        *,
        statistics: FakeRequestStatistics | None = None,
        statuses: Sequence[ServableStatus] = (),
        configured: Sequence[str] = (),
        routings: dict[str, Routing] | None = None,
        arenas: dict[ServableId, ArenaStatistics] | None = None,
        batching: dict[ServableId, Sequence[SignatureBatching]] | None = None,
        blocked: dict[str, BlockedVersions] | None = None,
        runs: dict[ServableId, Sequence[AcceleratorRuns]] | None = None,
        accelerated: dict[ServableId, list[AcceleratedSignature]] | None = None,
        reservoirs: Reservoirs | None = None,
        request_logs: RequestLogs | None = None,
        swaps: list[SwapRecord] | None = None,
        swap_counts: Mapping[tuple[str, str], int] | None = None,
        stuck_sources: set[str] | None = None,
        canary_progress: dict[str, str] | None = None,
        refusal: ConfigRefusal | None = None,
        available_bytes: int = 8_000,
    ) -> None:
        self.statistics = FakeRequestStatistics() if statistics is None else statistics
        self.monitor = FakeMonitor(statuses)
        self.batching = {} if batching is None else batching
        self.streams = FakeStreams(
            self.monitor, routings or {}, arenas or {}, blocked or {}, canary_progress or {}
        )
        self.streams.runs = {} if runs is None else runs
        self.streams.accelerated = accelerated or {}
        self._accelerators = () if runs is None else (FakeAccelerator(),)
        self.swaps = FakeSwaps(swaps or [], swap_counts)
        self.pollers = FakePollers(stuck_sources or set())
        self.health = FakeHealth(configured, self.monitor)
        self._reservoirs = reservoirs or Reservoirs(None)
        self._request_logs = request_logs
        self._refusal = refusal
        self._available_bytes = available_bytes

    def parts(self, clock: Clock | None = None) -> MonitoredParts:
        plane = FakePlane()
        plane.runs_ended_count = 2
        return MonitoredParts(
            plane=plane,
            requests=self.statistics,
            admission=FakeAdmission(100, in_flight_count=5, refused_count=6),
            budget=FakeByteBudget(1_000, in_use_bytes=7, refused_count=3),
            grpc=busy_grpc(),
            monitor=self.monitor,
            streams=self.streams,
            served=FakeServedModels(),
            reloader=FakeReloader(4),
            pollers=self.pollers,
            swaps=self.swaps,
            batches=FakeBatches(self.batching),
            reservoirs=self._reservoirs,
            request_logs=self._request_logs
            or RequestLogs(plane, uploads=no_uploads(), clock=FakeClock()),
            slab_pool=_PoolWithTables(),
            accelerators=self._accelerators,
            health=self.health,
            refusals=FakeRefusals(self._refusal),
            tracing=FakeTracing(),
            process=FakeProcessFigures(
                dropped_line_count=lambda: 8, available=self._available_bytes
            ),
            build_info=BUILD_INFO,
            clock=clock or FakeClock(),
        )


def fake_parts(clock: Clock | None = None, **values: object) -> MonitoredParts:
    """Returns the parts with values of `FakeParts` and, if they have other names, of MonitoredParts."""
    of_parts = {name: values.pop(name) for name in _OF_PARTS & values.keys()}
    parts = FakeParts(**values).parts(clock)  # type: ignore[arg-type]
    return replace(parts, **of_parts)  # type: ignore[arg-type]


_OF_PARTS = frozenset(
    {
        *("accelerators", "gpu", "model_memory_limit_bytes", "slab_pool", "build_info"),
        *("tuning_of", "served"),
    }
)


def busy_grpc() -> FakeGrpcServer:
    """Returns a gRPC server with counts to find again."""
    grpc = FakeGrpcServer()
    grpc.connection_count = 11
    grpc.limit_counts = {"pause": 12, "pings": 0}
    return grpc
