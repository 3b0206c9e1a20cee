"""Outcomes and runs of the load tests, made from plain numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadtest.measure.process_memory import Resident
from loadtest.measure.processor_time import CoreShares
from loadtest.measure.scenario import SwapRun
from loadtest.measure.segments import SegmentedRun, SegmentT
from loadtest.measure.setup import Setup
from loadtest.measure.swaps import Swap
from loadtest.measure.timeline import Span, SwapSpans
from loadtest.measure.turns import Turn
from loadtest.plan.plan import NOT_KEPT, Outcome, Reply

MS = 1_000_000
QUIET_CORES = CoreShares(server=0.8, generator=0.2, other=0, stolen=0)


def outcome_of(
    requests: Sequence[tuple[float, float, float]],
    codes: Sequence[int] = (),
    replies: Sequence[Reply] = (),
    reply_of: Sequence[int] = (),
) -> Outcome:
    """Returns an outcome with the scheduled, issued and completed ms of each request; the start is 0."""
    instants = np.array(requests, float).reshape(-1, 3) * MS
    scheduled_ns, issued_ns, completed_ns = instants.astype(np.int64).T
    return Outcome(
        scheduled_ns=scheduled_ns,
        issued_ns=issued_ns,
        completed_ns=completed_ns,
        codes=np.array(codes or [0] * len(requests), np.int32),
        reply_of=np.array(reply_of or [0] * len(requests), np.int32),
        replies=replies,
        started_ns=0,
        cpu_ns=0,
        is_realtime=True,
    )


def turn_of(
    latency_ms: float, *, count: int = 600, failed_count: int = 0, cores: CoreShares = QUIET_CORES
) -> Turn:
    """Returns a turn of a closed loop with one request in flight; the server needs 100 µs for each."""
    requests = [(0, i * latency_ms, (i + 1) * latency_ms) for i in range(count)]
    codes = [14] * failed_count + [0] * (count - failed_count)
    outcome = outcome_of(requests, codes, reply_of=[NOT_KEPT] * count)
    return Turn(outcome, 0, count * 100_000, cores)


def one_latency_each(segment_ms: int, latencies_ms: Sequence[float]) -> Outcome:
    """Returns an outcome with a request each ms; each of `latencies_ms` holds for a segment."""
    return outcome_of(
        [
            (at_ms, at_ms, at_ms + latency_ms)
            for number, latency_ms in enumerate(latencies_ms)
            for at_ms in range(number * segment_ms, (number + 1) * segment_ms)
        ]
    )


def segment_span(number: int, segment_ms: int) -> Span:
    """Returns the span of one segment among adjacent ones."""
    return Span(number * segment_ms * MS, (number + 1) * segment_ms * MS)


def segmented_run(
    outcome: Outcome, segments: Sequence[SegmentT], wrong_count: int = 0
) -> SegmentedRun[SegmentT]:
    """Returns a run whose cores were quiet."""
    cores = CoreShares(server=0.5, generator=0.05, other=0.01, stolen=0)
    return SegmentedRun(outcome=outcome, segments=segments, cores=cores, wrong_count=wrong_count)


def steady_outcome(request_count: int, latency_ms: float = 1) -> Outcome:
    """Returns an outcome with a request each ms, issued at once and answered after `latency_ms`."""
    return outcome_of([(ms, ms, ms + latency_ms) for ms in range(request_count)])


SETUP = Setup(
    preset="millpond",
    loaded="ctr",
    reloaded="ctr",
    rate_per_second=300,
    rows=100,
    table_rows=10,
    swaps=1,
    swap_interval_seconds=6,
    seed=1,
)
MEMORY = {
    "before": Resident(0, 100_000_000, 50_000_000),
    "one_version": Resident(1, 600_000_000, 550_000_000),
    "two_versions": Resident(2, 1_100_000_000, 1_050_000_000),
    "after_last_unload": Resident(3, 610_000_000, 560_000_000),
    "all_unloaded": None,
}


def swap_run(outcome: Outcome, **changes: Any) -> SwapRun:
    """Returns a run with one swap, from 8 to 10 s, and the second after it."""
    values: dict[str, Any] = {
        "outcome": outcome,
        "is_wrong": outcome.codes < 0,
        "spans": [SwapSpans(2, Span(8_000 * MS, 9_000 * MS), Span(9_500 * MS, 10_000 * MS))],
        "stages": [Swap("load", 2, {"restore": 0.5}), Swap("unload", 1, {"destroy": 0.25})],
        "steady_from_ns": 2_000 * MS,
        "memory": MEMORY,
        "arena_live_bytes": 0,
        "cores": CoreShares(server=0.5, generator=0.05, other=0.01, stolen=0),
    }
    return SwapRun(**{**values, **changes})


def slow_in_swap_outcome() -> Outcome:
    """Returns 12,000 requests, 1 ms apart: answered after 1 ms, and after 5 ms from 8 to 11 s."""
    return outcome_of([(ms, ms, ms + (5 if 8_000 <= ms <= 11_000 else 1)) for ms in range(12_000)])
