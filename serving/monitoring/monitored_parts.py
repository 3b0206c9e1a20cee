"""The parts of a server that metrics and the live page read.

Each read is quick, does not wait for requests, and may happen on any thread.
"""

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.base.clock import Clock
from serving.core.servable import ServableId
from serving.data_plane.loads import Accelerator, SlabPool
from serving.data_plane.plane import DataPlane
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import Admission, ByteBudget, GrpcServer
from serving.data_plane.servables import (
    AcceleratedSignature,
    AcceleratorRuns,
    AcceleratorUploads,
    ArenaStatistics,
)
from serving.http.health_routes import readiness
from serving.loading.autotuning import Tuning, not_tuned
from serving.loading.batch_records import BatchRecords
from serving.loading.memory_fit import available_bytes
from serving.loading.reservoirs import Reservoirs
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.monitoring.gpu_sensors import GpuFigures, GpuSensors
from serving.monitoring.swap_timeline import SwapTimeline
from serving.monitoring.tracing import NoTracing, Tracing
from serving.reload.config_reload import ConfigReloader
from serving.reload.served_models import ServedModels
from serving.request_log.request_logs import RequestLogs
from serving.rpc.config_refusals import ConfigRefusals
from serving.rpc.health import HealthReporter
from serving.source.poller_pool import PollerPool


@dataclass(frozen=True, kw_only=True)
class ProcessFigures:
    """The figures of the process."""

    dropped_line_count: Callable[[], int]
    restart_count: int = 0

    def available_bytes(self) -> int:
        """The memory that the process may still take; UNLIMITED_BYTES if the system has no limit."""
        return available_bytes()

    def usage(self) -> resource.struct_rusage:
        """The resources that the process has used since it began."""
        return resource.getrusage(resource.RUSAGE_SELF)


@dataclass(frozen=True)
class AcceleratedVersion:
    """A version of a server with an accelerator: its parameters there, and its runs."""

    uploads: Sequence[AcceleratorUploads]
    runs: Sequence[AcceleratorRuns]
    signatures: Sequence[AcceleratedSignature] = ()
    tuning: Tuning | None = None


@dataclass(frozen=True, kw_only=True)
class MonitoredParts:
    """The parts of one server.

    `slab_pool` is None if versions have no arenas, and `gpu` without NVIDIA's
    driver. `accelerators` are none if all run on the CPU. `model_memory_limit_bytes` 0 means no limit.
    `build_info` is that of the data plane.
    """

    plane: DataPlane
    requests: RequestStatistics
    admission: Admission
    budget: ByteBudget
    grpc: GrpcServer
    monitor: StateMonitor
    streams: Streams
    served: ServedModels
    reloader: ConfigReloader
    pollers: PollerPool
    swaps: SwapTimeline
    batches: BatchRecords
    reservoirs: Reservoirs
    request_logs: RequestLogs
    slab_pool: SlabPool | None
    accelerators: Sequence[Accelerator] = ()
    tuning_of: Callable[[ServableId], Tuning | None] = not_tuned
    gpu: GpuSensors | None = None
    health: HealthReporter
    refusals: ConfigRefusals
    tracing: Tracing | NoTracing
    process: ProcessFigures
    model_memory_limit_bytes: int = 0
    build_info: Mapping[str, str] = field(default_factory=dict)
    clock: Clock

    def arena(self, servable_id: ServableId) -> ArenaStatistics | None:
        """The figures of a version's arena; None if it has no arena or is not AVAILABLE."""
        servable = self.streams.servable(servable_id)
        if servable is None:
            return None
        try:
            return servable.arena_statistics()
        except self.plane.StatusError:
            return None  # It was destroyed after the look-up.

    def accelerated(self, servable_id: ServableId) -> AcceleratedVersion | None:
        """The parameters and runs of a version on the accelerator; None without one, or without the version."""
        servable = self.streams.servable(servable_id)
        if not self.accelerators or servable is None:
            return None
        try:
            return AcceleratedVersion(
                servable.accelerator_uploads(),
                servable.accelerator_runs(),
                servable.accelerator_signatures(),
                self.tuning_of(servable_id),
            )
        except self.plane.StatusError:
            return None  # It was destroyed after the look-up.

    def gpu_figures(self) -> Mapping[str, GpuFigures]:
        """The last figures of the GPUs' sensors, by device; none without sensors."""
        return {} if self.gpu is None else self.gpu.figures

    def reasons(self) -> Mapping[str, str | None]:
        """The reason why each configured model is not ready; None for a ready model."""
        return readiness(self.health.view(), self.served.notes).reason_by_model
