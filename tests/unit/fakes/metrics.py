"""Recorded requests and swaps, as metrics read them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from serving.base.clock import NS_PER_SECOND
from serving.data_plane.request_statistics import LatencyFigures
from serving.monitoring.swap_record import SwapRecord, SwapResult
from tests.unit.fakes.page import span_latency


def figures_of(latencies_ns: Sequence[int]) -> LatencyFigures:
    """Returns the figures of the latencies given, by the nearest rank."""
    ascending = sorted(latencies_ns) or [0]

    def quantile_ns(quantile: float) -> int:
        return ascending[max(1, math.ceil(quantile * len(ascending))) - 1]

    return LatencyFigures(
        count=len(latencies_ns),
        sum_ns=sum(latencies_ns),
        p50_ns=quantile_ns(0.5),
        p90_ns=quantile_ns(0.9),
        p99_ns=quantile_ns(0.99),
        p999_ns=quantile_ns(0.999),
        max_ns=ascending[-1],
    )


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
    is_ended: bool = False
    latencies_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    phases_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    recent_phases_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def count_by_code(self) -> Mapping[int, int]:
        return {code: len(latencies) for code, latencies in self.latencies_ns.items()}

    def latency(self, code: int) -> LatencyFigures:
        return figures_of(self.latencies_ns.get(code, ()))

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> Sequence[int]:
        return _cumulative_counts(self.latencies_ns.get(code, ()), edges_ns)

    def phase(self, phase: str, window_seconds: int | None = None) -> LatencyFigures:
        assert window_seconds in (None, 10)
        phases = self.phases_ns if window_seconds is None else self.recent_phases_ns
        return figures_of(phases.get(phase, ()))

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> Sequence[int]:
        return _cumulative_counts(self.phases_ns.get(phase, ()), edges_ns)


def _cumulative_counts(latencies_ns: Sequence[int], edges_ns: Sequence[int]) -> list[int]:
    return [sum(latency <= edge for latency in latencies_ns) for edge in edges_ns]


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
