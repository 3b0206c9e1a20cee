"""Fakes of the metrics' sources: recorded requests, memory, routing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from serving.base.clock import NS_PER_SECOND
from serving.core.servable import Routing, ServableId, ServableStatus
from serving.monitoring.metric_sources import MetricSources
from serving.monitoring.swap_record import SwapRecord, SwapResult
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.memory import FakeRequestMemory, FakeSlabPoolStatistics
from tests.unit.fakes.page import span_latency
from tests.unit.fakes.requests import FakeAdmission, FakeByteBudget, FakeRequestStatistics
from tests.unit.fakes.servers import FakeGrpcServer


@dataclass(frozen=True)
class FakeFigures:
    """`LatencyFigures` of the latencies given, by the nearest rank."""

    latencies_ns: Sequence[int] = ()

    @property
    def count(self) -> int:
        return len(self.latencies_ns)

    @property
    def sum_ns(self) -> int:
        return sum(self.latencies_ns)

    @property
    def p50_ns(self) -> int:
        return self._quantile_ns(0.5)

    @property
    def p90_ns(self) -> int:
        return self._quantile_ns(0.9)

    @property
    def p99_ns(self) -> int:
        return self._quantile_ns(0.99)

    @property
    def p999_ns(self) -> int:
        return self._quantile_ns(0.999)

    @property
    def max_ns(self) -> int:
        return max(self.latencies_ns, default=0)

    def _quantile_ns(self, quantile: float) -> int:
        if not self.latencies_ns:
            return 0
        rank = max(1, math.ceil(quantile * self.count))
        return sorted(self.latencies_ns)[rank - 1]


@dataclass(frozen=True, kw_only=True)
class FakeMethod:
    """`MethodStatistics` of a list of latencies.

    `phases_ns` covers all time; `recent_phases_ns` the last 10 s.
    """

    model: str = "m"
    version: int = 1
    method: str = "Predict"
    in_flight_count: int = 0
    row_count: int = 0
    ended_seconds: float | None = None
    latencies_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    phases_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    recent_phases_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def count_by_code(self) -> Mapping[int, int]:
        return {code: len(latencies) for code, latencies in self.latencies_ns.items()}

    def latency(self, code: int) -> FakeFigures:
        return FakeFigures(self.latencies_ns.get(code, ()))

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> Sequence[int]:
        return _cumulative_counts(self.latencies_ns.get(code, ()), edges_ns)

    def phase(self, phase: str, window_seconds: int | None = None) -> FakeFigures:
        assert window_seconds in (None, 10)
        phases = self.phases_ns if window_seconds is None else self.recent_phases_ns
        return FakeFigures(phases.get(phase, ()))

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> Sequence[int]:
        return _cumulative_counts(self.phases_ns.get(phase, ()), edges_ns)


def _cumulative_counts(latencies_ns: Sequence[int], edges_ns: Sequence[int]) -> list[int]:
    return [sum(latency <= edge for latency in latencies_ns) for edge in edges_ns]


@dataclass(frozen=True)
class FakePageFaults:
    """Page faults as in `resource.getrusage`."""

    ru_minflt: int = 11
    ru_majflt: int = 2


def swap_of(model: str, **changes: object) -> SwapRecord:
    """Returns a swap that loaded for half a second, took two seconds in all and has ended."""
    record = SwapRecord(
        id=f"{model}-2-0",
        model=model,
        version=2,
        previous_version=1,
        began_at_ns=0,
        wall_offset_ns=0,
        load_started_at_ns=NS_PER_SECOND,
        published_at_ns=NS_PER_SECOND * 3 // 2,
        ended_at_ns=3 * NS_PER_SECOND,
        result=SwapResult.PUBLISHED,
        before=span_latency(3_000, 0.01),
        during=span_latency(1_000),
        after=span_latency(0),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


BUILD_INFO = {
    "millpond": "0.1.0",
    "tensorflow": "2.21.0",
    "wire": "nghttp2 1.52.0, OpenSSL 3.0.17",
    "jemalloc": "5.3.0",
    "allocator": "jemalloc",
}


def busy_grpc() -> FakeGrpcServer:
    """Returns a gRPC server with counts to find again."""
    grpc = FakeGrpcServer()
    grpc.connection_count = 11
    grpc.limit_counts = {"pause": 12, "pings": 0}
    return grpc


def fake_sources(
    *,
    requests: FakeRequestStatistics | None = None,
    statuses: Sequence[ServableStatus] = (),
    clock: FakeClock | None = None,
    **changes: object,
) -> MetricSources:
    """Returns the sources of a server without loaded versions, with `changes`."""
    by_name: dict[str, tuple[ServableStatus, ...]] = {}
    for status in statuses:
        by_name[status.id.name] = (*by_name.get(status.id.name, ()), status)
    sources = MetricSources(
        requests=requests or FakeRequestStatistics(),
        admission=FakeAdmission(100, in_flight_count=5, refused_count=6),
        budget=FakeByteBudget(1_000, in_use_bytes=7, refused_count=3),
        grpc=busy_grpc(),
        runs_ended_by_memory=lambda: 2,
        statuses=lambda: by_name,
        swap_counts=dict,
        arena=_no_arena,
        slab_pool=FakeSlabPoolStatistics,
        request_memory=FakeRequestMemory,
        page_faults=FakePageFaults,
        memory_available_bytes=lambda: 8_000,
        routing=lambda name: Routing(),
        default_version=lambda name: max(
            (item.id.version for item in by_name.get(name, ())), default=None
        ),
        base_path=lambda name: f"/models/{name}",
        config_change_count=lambda: 4,
        is_config_refused=lambda: False,
        spans_dropped=lambda: {"over_rate": 3, "full": 0, "export": 2},
        log_lines_dropped=lambda: 8,
        stuck_sources=lambda: {"m"},
        build_info=BUILD_INFO,
        clock=clock or FakeClock(),
    )
    return replace(sources, **changes)  # type: ignore[arg-type]


def _no_arena(servable_id: ServableId) -> None:
    del servable_id
