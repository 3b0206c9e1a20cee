"""Fakes of the live page's sources: figures that a test sets, and scenes like a real server's."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import StatusCode
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LOADING,
    UNLOADING,
    GateVerdict,
    Health,
    LoadStage,
    Routing,
    ServableId,
    ServableState,
    ServableStatus,
    Stage,
    UnloadStage,
)
from serving.data_plane.request_statistics import HistoryPoint, LatencyFigures
from serving.monitoring.swap_record import SpanLatency, StageSpan, SwapRecord, SwapResult
from tests.unit.fakes.memory import ARENA_STATISTICS
from tests.unit.fakes.monitored import FakeParts
from tests.unit.fakes.requests import FakeRequestStatistics
from tests.unit.fakes.servables import busy_batching

_MS = 1_000_000


def latencies(count: int, p50_ns: int, p99_ns: int, p999_ns: int) -> LatencyFigures:
    return LatencyFigures(count=count, p50_ns=p50_ns, p99_ns=p99_ns, p999_ns=p999_ns)


@dataclass(frozen=True)
class FakeMethod:
    """`MethodStatistics`; `latency_10s` covers the requests in its window, of `total`.

    `phase_us` has the mean of each other phase, for the requests of `latency_10s`.
    """

    model: str
    version: int = 0
    method: str = "Predict"
    in_flight_count: int = 0
    row_count: int = 0
    is_ended: bool = False
    count_by_code: Mapping[int, int] = field(default_factory=dict)
    latency_10s: LatencyFigures = LatencyFigures()
    phase_us: Mapping[str, int] = field(default_factory=dict)

    def latency(self, code: int) -> LatencyFigures:
        raise AssertionError(f"the page asks for no latency by code, {code}")

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> Sequence[int]:
        raise AssertionError(f"the page asks for no buckets, {code} {edges_ns}")

    def phase(self, phase: str, window_seconds: int | None = None) -> LatencyFigures:
        assert window_seconds == 10
        if phase == "total":
            return self.latency_10s
        if phase not in self.phase_us:
            return LatencyFigures()
        count = self.latency_10s.count
        return LatencyFigures(count=count, sum_ns=self.phase_us[phase] * 1_000 * count)

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> Sequence[int]:
        raise AssertionError(f"the page asks for no buckets, {phase} {edges_ns}")


def status(
    name: str,
    version: int,
    state: ServableState = AVAILABLE,
    *,
    health: Health = HEALTHY,
    stage: Stage | None = None,
    changed_wall_ns: int = 0,
    verdicts: tuple[GateVerdict, ...] = (),
    failed_load_count: int = 0,
) -> ServableStatus:
    return ServableStatus(
        id=ServableId(name, version),
        state=state,
        health=health,
        stage=stage,
        state_changed_wall_ns=changed_wall_ns,
        verdicts=verdicts,
        failed_load_count=failed_load_count,
    )


def swap(name: str, version: int, began_at_ns: int, **changes: Any) -> SwapRecord:
    """Returns a published swap with `changes`."""
    stages = _stages(version, began_at_ns)
    published_at_ns = stages[-1].ended_at_ns
    unload_ns = [
        ("quiesce", published_at_ns, published_at_ns + 30 * _MS),
        ("destroy", published_at_ns + 30 * _MS, published_at_ns + 200 * _MS),
    ]
    record = SwapRecord(
        id=f"{name}-{version}-{began_at_ns // NS_PER_SECOND}",
        model=name,
        version=version,
        previous_version=version - 1,
        began_at_ns=began_at_ns,
        wall_offset_ns=0,
        load_started_at_ns=began_at_ns + NS_PER_SECOND,
        published_at_ns=published_at_ns,
        ended_at_ns=published_at_ns + 200 * _MS,
        result=SwapResult.PUBLISHED,
        stages=(*stages, *(_stage(name, "unload", version - 1, *at) for name, *at in unload_ns)),
        figures={
            "parameter_bytes": 1_210_000_000,
            "slab_bytes": 1_250_000_000,
            "page_fault_count": 412,
            "load_cpu_seconds": 1.1,
            "unload_cpu_seconds": 0.2,
        },
        before=span_latency(42_000, 0.0061),
        during=span_latency(8_400, 0.0064),
        after=span_latency(41_500, 0.0060),
    )
    return replace(record, **changes)


def span_latency(request_count: int, p999_seconds: float = 0.012) -> SpanLatency:
    return SpanLatency(
        span_seconds=10.0,
        request_count=request_count,
        p50_seconds=0.0011,
        p99_seconds=0.0034,
        p999_seconds=p999_seconds,
        max_seconds=0.021,
    )


_STAGES_MS = {
    LoadStage.CHECK: 4,
    LoadStage.READ_GRAPH: 90,
    LoadStage.TAKE_ARENA: 2,
    LoadStage.CREATE_SESSION: 30,
    LoadStage.RESTORE: 810,
    LoadStage.INIT: 60,
    LoadStage.MAKE_CALLABLES: 40,
    LoadStage.WARM_UP: 210,
    LoadStage.SELF_WARM_UP: 320,
    LoadStage.GATES: 150,
    LoadStage.PUBLISH: 1,
}


def _stages(version: int, began_at_ns: int) -> tuple[StageSpan, ...]:
    at_ns = began_at_ns + NS_PER_SECOND
    stages = [_stage("settle", "source", version, began_at_ns, at_ns)]
    for stage, length_ms in _STAGES_MS.items():
        stages.append(_stage(stage.value, "load", version, at_ns, at_ns + length_ms * _MS))
        at_ns += length_ms * _MS
    return tuple(stages)


def _stage(name: str, task: str, version: int, began_at_ns: int, ended_at_ns: int) -> StageSpan:
    return StageSpan(
        name=name, task=task, version=version, began_at_ns=began_at_ns, ended_at_ns=ended_at_ns
    )


@dataclass
class LiveHistory(FakeRequestStatistics):
    """Has a point for every second of the last 15 minutes of the clock, the same at each call."""

    clock: Clock | None = None
    per_second: Mapping[str | None, float] = field(default_factory=dict)
    # Instants of the monotonic clock at which the tail was worse, as in a bad swap.
    spikes_ns: Sequence[int] = ()

    def history(self, model: str | None, since_ns: int = 0) -> Sequence[HistoryPoint]:
        assert self.clock is not None
        mean = self.per_second.get(model, 0.0)
        last = self.clock.now_ns() // NS_PER_SECOND
        first = max(since_ns // NS_PER_SECOND + 1, last - 899)
        return [self._point(second, mean) for second in range(first, last + 1)]

    def _point(self, second: int, mean: float) -> HistoryPoint:
        at_ns = second * NS_PER_SECOND
        if mean == 0:
            return HistoryPoint(at_ns)
        noise = random.Random(second).gauss
        count = max(0, round(mean * (1 + 0.15 * math.sin(second / 90)) + noise(0, mean * 0.03)))
        age_ns = min((at_ns - spike for spike in self.spikes_ns if at_ns >= spike), default=at_ns)
        spike = 9 * math.exp(-age_ns / (4 * NS_PER_SECOND)) if age_ns < 12 * NS_PER_SECOND else 0
        latency = LatencyFigures(
            count=count * 10,
            p50_ns=round(1.1 * _MS * (1 + noise(0, 0.02))),
            p99_ns=round((3.2 + spike / 4) * _MS * (1 + noise(0, 0.05))),
            p999_ns=round((5.8 + spike) * _MS * (1 + abs(noise(0, 0.12)))),
        )
        return HistoryPoint(at_ns, count, 3 if second % 97 == 0 else 0, latency)


def busy_scene(clock: Clock) -> FakeParts:
    """Returns five models: one is in a swap, one has a canary, and one's new version failed."""
    now_ns, wall_ns = clock.now_ns(), clock.wall_ns()

    def ago(seconds: float) -> int:
        return wall_ns - round(seconds * NS_PER_SECOND)

    statuses = [
        status("ctr", 41, END, changed_wall_ns=ago(1_490)),
        status("ctr", 42, changed_wall_ns=ago(420)),
        status("ctr", 43, LOADING, stage=LoadStage.SELF_WARM_UP, changed_wall_ns=ago(2)),
        status("ranker", 7, changed_wall_ns=ago(93_000)),
        status("ranker", 8, changed_wall_ns=ago(660)),
        failed_version(clock),
        status("spelling", 3, changed_wall_ns=ago(7_400)),
        status("embeddings", 11, UNLOADING, stage=UnloadStage.QUIESCE, changed_wall_ns=ago(1)),
        status("embeddings", 12, changed_wall_ns=ago(1)),
        status("audience_lookalike_expansion_eu_west", 20_260_101, changed_wall_ns=ago(50)),
    ]
    serving = [item.id for item in statuses if item.state in (AVAILABLE, UNLOADING)]
    arena = replace(
        ARENA_STATISTICS, allocated_bytes=1_210_000_000, slab_resident_bytes=1_250_000_000
    )
    return FakeParts(
        statistics=LiveHistory(
            clock=clock,
            per_second={None: 4_200, "ctr": 3_000, "ranker": 900, "spelling": 40},
            spikes_ns=[now_ns - 660 * NS_PER_SECOND, now_ns - 270 * NS_PER_SECOND],
            by_version=[_served(servable_id) for servable_id in serving],
            by_model=[
                FakeMethod("ctr", count_by_code={0: 2_711_406, 4: 37}),
                FakeMethod("ranker", count_by_code={0: 811_020, 3: 5}),
                FakeMethod("", count_by_code={5: 12}),
            ],
        ),
        statuses=statuses,
        routings={
            "ctr": Routing(labels={"stable": 42}),
            "ranker": Routing(default_version=7, canary_version=8, canary_weight=0.05),
        },
        canary_progress={"ranker": "142 of 1,000 requests, rule: p90 to p999 at most 2 times"},
        arenas=dict.fromkeys(serving, arena),
        batching={ServableId("ctr", 42): busy_batching()},
        swaps=_busy_swaps(clock),
    )


def failed_version(clock: Clock) -> ServableStatus:
    return status(
        "spelling",
        4,
        END,
        health=Health(
            StatusCode.DATA_LOSS,
            "spelling/4: restore: dense_3/kernel: crc32c of the checkpoint is 0x1f2e3d4c, computed "
            "0x99aa0b1c: variables.data-00000-of-00002 is damaged; copy the version again",
        ),
        changed_wall_ns=clock.wall_ns() - 271 * NS_PER_SECOND,
        failed_load_count=1,
        verdicts=(
            GateVerdict(
                gate="golden", mode="report", is_passed=False, reason="max |Δ| 0.31 > 0.01"
            ),
        ),
    )


def _served(servable_id: ServableId) -> FakeMethod:
    has_few = servable_id.name not in ("ctr", "embeddings")
    latency = latencies(640 if has_few else 30_112, 1_100_000, 3_300_000, 6_020_000)
    phase_us = {"queue": 32, "decode": 6, "run": 1_020, "encode": 12}
    if servable_id.name == "ctr":
        phase_us |= {"batch": 210, "run": 810}
    return FakeMethod(
        servable_id.name,
        servable_id.version,
        in_flight_count=3,
        latency_10s=latency,
        phase_us=phase_us,
    )


def _busy_swaps(clock: Clock) -> list[SwapRecord]:
    offset_ns = clock.wall_ns() - clock.now_ns()

    def ago(name: str, version: int, seconds: float, **changes: Any) -> SwapRecord:
        began_at_ns = clock.now_ns() - round(seconds * NS_PER_SECOND)
        return swap(name, version, began_at_ns, wall_offset_ns=offset_ns, **changes)

    running = ago("ctr", 43, 3, result=None, published_at_ns=None, ended_at_ns=None)
    failed = ago("spelling", 4, 273, result=SwapResult.LOAD_FAILED, published_at_ns=None)
    few: dict[str, Any] = {
        span: span_latency(400, 0.0061) for span in ("before", "during", "after")
    }
    reason = "DATA_LOSS: dense_3/kernel: crc32c does not match"
    lookalike = "audience_lookalike_expansion_eu_west"
    return [
        replace(running, stages=running.stages[:9], during=None, after=None),
        ago("embeddings", 12, 5),
        ago(lookalike, 20_260_101, 53, previous_version=None),
        replace(failed, stages=failed.stages[:6], reason=reason, **few),
        ago("ctr", 42, 423),
        ago("ranker", 8, 662, during=span_latency(8_400, 0.0142)),
    ]
