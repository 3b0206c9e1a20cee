"""The sources that the collector reads, in the data plane and in the parts of a server.

Each call is quick, does not wait for requests, and may be made on any thread.
"""

import resource
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serving.base.clock import Clock
from serving.core.blocked_versions import BlockedVersions
from serving.core.servable import Routing, ServableId
from serving.data_plane.loads import SlabPoolStatistics
from serving.data_plane.plane import RequestMemoryStatistics
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import Admission, ByteBudget, GrpcServer
from serving.data_plane.servables import (
    ArenaStatistics,
    RequestReservoirStatistics,
    SignatureBatching,
)
from serving.loading.memory_fit import available_bytes
from serving.manager.state_monitor import Statuses
from serving.monitoring.swap_record import SwapRecord


class PageFaults(Protocol):
    """The counts since the process began (`resource.getrusage`)."""

    @property
    def ru_minflt(self) -> int: ...
    @property
    def ru_majflt(self) -> int: ...


def _process_page_faults() -> PageFaults:
    return resource.getrusage(resource.RUSAGE_SELF)


@dataclass(frozen=True, kw_only=True)
class MetricSources:
    """The source of each metric.

    `batching` takes a version, also one that has ended. `swap_counts` is by model and result
    (`SwapResult.value`). `arena` takes an AVAILABLE version, and returns None if it has no arena or
    has been unloaded meanwhile. `slab_pool` is None if versions have no arenas. `reservoirs` is by
    model. `default_version` answers requests that name no version, beside a canary. `base_path`
    takes a configured model. `swaps` are newest first. `models_ready` has each configured model.
    `memory_available_bytes` is UNLIMITED_BYTES if the system reports no limit.
    `model_memory_limit_bytes` 0 means no limit. `spans_dropped` is by reason, and empty if tracing
    is off.
    """

    requests: RequestStatistics
    admission: Admission
    budget: ByteBudget
    grpc: GrpcServer
    runs_ended_by_memory: Callable[[], int] = lambda: 0
    statuses: Callable[[], Statuses]
    swap_counts: Callable[[], Mapping[tuple[str, str], int]]
    arena: Callable[[ServableId], ArenaStatistics | None]
    batching: Callable[[ServableId], Sequence[SignatureBatching]] = lambda servable_id: ()
    slab_pool: Callable[[], SlabPoolStatistics] | None
    request_memory: Callable[[], RequestMemoryStatistics]
    page_faults: Callable[[], PageFaults] = _process_page_faults
    reservoirs: Callable[[], Mapping[str, RequestReservoirStatistics]] = dict
    routing: Callable[[str], Routing]
    default_version: Callable[[str], int | None]
    base_path: Callable[[str], str | None]
    config_change_count: Callable[[], int]
    is_config_refused: Callable[[], bool]
    swaps: Callable[[], Sequence[SwapRecord]] = tuple
    blocked_versions: Callable[[str], BlockedVersions] = lambda model: {}
    restart_count: Callable[[], int] = lambda: 0
    models_ready: Callable[[], Mapping[str, bool]] = dict
    memory_available_bytes: Callable[[], int] = available_bytes
    model_memory_limit_bytes: int = 0
    spans_dropped: Callable[[], Mapping[str, int]] = dict
    log_lines_dropped: Callable[[], int] = lambda: 0
    stuck_sources: Callable[[], Collection[str]] = frozenset
    build_info: Mapping[str, str] = field(default_factory=dict)
    clock: Clock
