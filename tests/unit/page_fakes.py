"""What the live page reads, faked: figures that a test sets, and scenes that look like a real server's."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.clock import NS_PER_SECOND, Clock
from serving.errors import StatusCode
from serving.monitoring.page_data import ArenaBytes, PageSources, SwapJson
from serving.monitoring.request_statistics import HistoryPoint, LatencyFigures, MethodStatistics
from serving.servable import (
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

_MS = 1_000_000


@dataclass(frozen=True)
class FakeLatency:
    """`LatencyFigures`."""

    count: int = 0
    p50_ns: int = 0
    p99_ns: int = 0
    p999_ns: int = 0
    p90_ns: int = 0
    max_ns: int = 0
    sum_ns: int = 0


@dataclass(frozen=True)
class FakePoint:
    """`HistoryPoint`."""

    at_ns: int
    count: int = 0
    failed_count: int = 0
    latency: LatencyFigures = FakeLatency()


@dataclass(frozen=True)
class FakeMethod:
    """`MethodStatistics`; `latency_10s` is what its window holds, of `total`."""

    model: str
    version: int = 0
    method: str = "Predict"
    in_flight_count: int = 0
    ended_seconds: float | None = None
    count_by_code: Mapping[int, int] = field(default_factory=dict)
    latency_10s: LatencyFigures = FakeLatency()

    def latency(self, code: int) -> LatencyFigures:
        raise AssertionError(f"the page asks for no latency by code, {code}")

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> Sequence[int]:
        raise AssertionError(f"the page asks for no buckets, {code} {edges_ns}")

    def phase(self, phase: str, window_seconds: int | None = None) -> LatencyFigures:
        assert (phase, window_seconds) == ("total", 10)
        return self.latency_10s

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> Sequence[int]:
        raise AssertionError(f"the page asks for no buckets, {phase} {edges_ns}")


@dataclass
class FakeRequestStatistics:
    """`RequestStatistics`. `points` by model, None for all; `questions`: what `history` was asked."""

    points: dict[str | None, list[HistoryPoint]] = field(default_factory=dict)
    by_version: list[MethodStatistics] = field(default_factory=list)
    by_model: list[MethodStatistics] = field(default_factory=list)
    questions: list[tuple[str | None, int]] = field(default_factory=list)

    def methods(self) -> Sequence[MethodStatistics]:
        return self.by_version

    def model_methods(self) -> Sequence[MethodStatistics]:
        return self.by_model

    def history(self, model: str | None, since_ns: int = 0) -> Sequence[HistoryPoint]:
        self.questions.append((model, since_ns))
        return [point for point in self.points.get(model, []) if point.at_ns > since_ns]

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        raise AssertionError(f"swaps come with their figures, {model} {from_ns} {to_ns}")

    def cut(self) -> int:
        raise AssertionError("who looks on cuts nothing")


@dataclass(frozen=True)
class FakeArena:
    """The part of `_native.ArenaStatistics` that the page shows."""

    allocated_bytes: int
    slab_resident_bytes: int


@dataclass
class FakePageSources:
    """`sources()` reads what is in here at the moment of each poll."""

    statistics: FakeRequestStatistics = field(default_factory=FakeRequestStatistics)
    statuses: list[ServableStatus] = field(default_factory=list)
    routings: dict[str, Routing] = field(default_factory=dict)
    arenas: dict[ServableId, ArenaBytes] = field(default_factory=dict)
    swaps: list[dict[str, Any]] = field(default_factory=list)

    def sources(self) -> PageSources:
        return PageSources(
            statistics=self.statistics,
            statuses=self._statuses_by_model,
            routing=lambda name: self.routings.get(name, Routing()),
            arenas=lambda: self.arenas,
            swaps=self._swaps,
        )

    def _statuses_by_model(self) -> Mapping[str, tuple[ServableStatus, ...]]:
        by_model: dict[str, list[ServableStatus]] = {}
        for item in sorted(self.statuses, key=lambda item: item.id):
            by_model.setdefault(item.id.name, []).append(item)
        return {name: tuple(items) for name, items in by_model.items()}

    def _swaps(self) -> Sequence[SwapJson]:
        return self.swaps


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


def swap(name: str, version: int, began_at: float, **changes: Any) -> dict[str, Any]:
    """A published swap as `GET /v1/swaps` has it, with `changes`."""
    stages = _stages(began_at, [0.004, 0.09, 0.002, 0.03, 0.81, 0.06, 0.04, 0.21, 0.32, 0.15])
    end = stages[-1]["began_at"] + stages[-1]["seconds"]
    figures = {"p50_seconds": 0.0011, "p99_seconds": 0.0034, "max_seconds": 0.021}
    return {
        "id": f"{name}-{version}-{began_at:.0f}",
        "model": name,
        "version": version,
        "previous_version": version - 1,
        "result": "published",
        "reason": "",
        "began_at": began_at,
        "published_at": end,
        "ended_at": end + 0.2,
        "stages": [
            *stages,
            {"name": "quiesce", "began_at": end, "seconds": 0.03, "of": "unload"},
            {"name": "destroy", "began_at": end + 0.03, "seconds": 0.17, "of": "unload"},
        ],
        "parameter_bytes": 1_210_000_000,
        "slab_bytes": 1_250_000_000,
        "page_fault_count": 412,
        "cpu_seconds": 1.31,
        "latency": {
            "before": {"request_count": 42_000, "p999_seconds": 0.0061, **figures},
            "during": {"request_count": 8_400, "p999_seconds": 0.0064, **figures},
            "after": {"request_count": 41_500, "p999_seconds": 0.0060, **figures},
        },
        **changes,
    }


def _stages(began_at: float, lengths: Sequence[float]) -> list[dict[str, Any]]:
    stages = [{"name": "settle", "began_at": began_at, "seconds": 1.0, "of": "load"}]
    at = began_at + 1.0
    for stage, seconds in zip(LoadStage, lengths):
        stages.append({"name": stage.value, "began_at": at, "seconds": seconds, "of": "load"})
        at += seconds
    return stages


@dataclass
class LiveHistory(FakeRequestStatistics):
    """A point for every second of the last 15 minutes up to the clock's, the same at each call."""

    clock: Clock | None = None
    per_second: Mapping[str | None, float] = field(default_factory=dict)
    # Seconds since the epoch of the monotonic clock at which the tail was worse, as in a bad swap.
    spikes_ns: Sequence[int] = ()

    def history(self, model: str | None, since_ns: int = 0) -> Sequence[HistoryPoint]:
        assert self.clock is not None
        mean = self.per_second.get(model, 0.0)
        last = self.clock.now_ns() // NS_PER_SECOND
        first = max(since_ns // NS_PER_SECOND + 1, last - 899)
        return [self._point(second, mean) for second in range(first, last + 1)]

    def _point(self, second: int, mean: float) -> FakePoint:
        at_ns = second * NS_PER_SECOND
        if mean == 0:
            return FakePoint(at_ns)
        noise = random.Random(second).gauss
        count = max(0, round(mean * (1 + 0.15 * math.sin(second / 90)) + noise(0, mean * 0.03)))
        age_ns = min((at_ns - spike for spike in self.spikes_ns if at_ns >= spike), default=at_ns)
        spike = 9 * math.exp(-age_ns / (4 * NS_PER_SECOND)) if age_ns < 12 * NS_PER_SECOND else 0
        latency = FakeLatency(
            count=count * 10,
            p50_ns=round(1.1 * _MS * (1 + noise(0, 0.02))),
            p99_ns=round((3.2 + spike / 4) * _MS * (1 + noise(0, 0.05))),
            p999_ns=round((5.8 + spike) * _MS * (1 + abs(noise(0, 0.12)))),
        )
        return FakePoint(at_ns, count, 3 if second % 97 == 0 else 0, latency)


def busy_scene(clock: Clock) -> FakePageSources:
    """Five models: one in the middle of a swap, one with a canary, one whose new version failed."""
    now_ns, wall_ns = clock.now_ns(), clock.wall_ns()
    now = wall_ns / NS_PER_SECOND

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
    return FakePageSources(
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
        arenas={item: FakeArena(1_210_000_000, 1_250_000_000) for item in serving},
        swaps=_busy_swaps(now),
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
    latency = FakeLatency(640 if has_few else 30_112, 1_100_000, 3_300_000, 6_020_000)
    return FakeMethod(servable_id.name, servable_id.version, in_flight_count=3, latency_10s=latency)


def _busy_swaps(now: float) -> list[dict[str, Any]]:
    running = swap("ctr", 43, now - 3, result=None, published_at=None, ended_at=None)
    running["stages"] = running["stages"][:9]
    running["latency"] = {**running["latency"], "during": None, "after": None}
    failed = swap("spelling", 4, now - 273, result="load_failed", published_at=None)
    failed["stages"] = failed["stages"][:6]
    failed["reason"] = "DATA_LOSS: dense_3/kernel: crc32c does not match"
    failed["latency"] = {
        span: {**figures, "request_count": 400} for span, figures in failed["latency"].items()
    }
    bad = swap("ranker", 8, now - 662)
    bad["latency"]["during"]["p999_seconds"] = 0.0142
    return [
        running,
        swap("embeddings", 12, now - 5),
        swap("audience_lookalike_expansion_eu_west", 20_260_101, now - 53, previous_version=None),
        failed,
        swap("ctr", 42, now - 423),
        bad,
    ]


Scene = Callable[[Clock], FakePageSources]
