"""What the collector reads, as protocols: of the data plane, and of the parts of a server.

Every call is quick, waits for nothing that a request holds, and may be made on any thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from serving.clock import Clock
from serving.monitoring.request_statistics import RequestStatistics
from serving.servable import Routing, ServableId
from serving.state_monitor import Statuses


class ArenaFigures(Protocol):
    """Where the bytes of a version's slab are (`_native.ArenaStatistics`); the first four add up to it."""

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def active_unused_bytes(self) -> int: ...
    @property
    def retained_bytes(self) -> int: ...
    @property
    def unused_bytes(self) -> int: ...
    @property
    def slab_resident_bytes(self) -> int: ...


class SlabPoolFigures(Protocol):
    """Where the pool's slabs are (`_native.SlabPoolStatistics`)."""

    @property
    def in_use_count(self) -> int: ...
    @property
    def in_use_bytes(self) -> int: ...
    @property
    def spare_count(self) -> int: ...
    @property
    def spare_bytes(self) -> int: ...
    @property
    def spare_resident_bytes(self) -> int: ...
    @property
    def surplus_resident_bytes(self) -> int: ...
    @property
    def quarantined_count(self) -> int: ...
    @property
    def quarantined_bytes(self) -> int: ...


class RequestMemoryFigures(Protocol):
    """What TensorFlow's allocator holds (`_native.RequestMemoryStatistics`)."""

    @property
    def in_use_bytes(self) -> int: ...
    @property
    def in_use_bytes_peak(self) -> int: ...
    @property
    def allocation_count(self) -> int: ...


class ReservoirFigures(Protocol):
    """What a reservoir holds (`_native.RequestReservoirStatistics`)."""

    @property
    def request_count(self) -> int: ...
    @property
    def request_bytes(self) -> int: ...


class PageFaults(Protocol):
    """Since the process began (`resource.getrusage`)."""

    @property
    def ru_minflt(self) -> int: ...
    @property
    def ru_majflt(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class MetricSources:
    """Where each metric comes from.

    `swap_counts`: by model and result (`SwapResult.value`). `arena`: of a version that is AVAILABLE; None
    where it has none, is gone, or goes as we ask.
    `slab_pool` None: there is none. `reservoirs`: by model. `default_version` is who answers a request
    that names none, a canary aside. `base_path`: of a configured model. `config_changes`: by result.
    """

    requests: RequestStatistics
    statuses: Callable[[], Statuses]
    swap_counts: Callable[[], Mapping[tuple[str, str], int]]
    arena: Callable[[ServableId], ArenaFigures | None]
    slab_pool: Callable[[], SlabPoolFigures] | None
    request_memory: Callable[[], RequestMemoryFigures]
    page_faults: Callable[[], PageFaults]
    reservoirs: Callable[[], Mapping[str, ReservoirFigures]] = dict
    routing: Callable[[str], Routing]
    default_version: Callable[[str], int | None]
    base_path: Callable[[str], str | None]
    config_changes: Callable[[], Mapping[str, int]] = dict
    build_info: Mapping[str, str] = field(default_factory=dict)
    clock: Clock
