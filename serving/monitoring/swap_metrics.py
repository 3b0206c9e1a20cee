"""Metrics of each model's last swap: its duration and its effect on requests."""

from collections.abc import Iterator, Mapping, Sequence

from serving.base.clock import NS_PER_SECOND
from serving.monitoring import metric_families as families
from serving.monitoring.metric_samples import Samples
from serving.monitoring.swap_record import SpanLatency, SwapRecord, SwapResult


def swap_metrics(newest_first: Sequence[SwapRecord]) -> Iterator[Samples]:
    """Yields the metrics of `SwapTimeline.records`."""
    # Plain unloads are left out: one follows each swap if the previous version is kept for a while.
    swaps = [record for record in newest_first if record.result is not SwapResult.UNLOADED]
    yield _seconds(_last([record for record in swaps if record.ended_at_ns is not None]))
    # A swap that waits for its load has had no effect, so the swap before it is shown until then.
    begun = _last([record for record in swaps if record.load_started_at_ns is not None])
    yield from _latencies(begun)
    yield from _reads(begun)


def _last(newest_first: Sequence[SwapRecord]) -> Mapping[str, SwapRecord]:
    """The newest record of each model."""
    return {record.model: record for record in reversed(newest_first)}


def _seconds(swaps: Mapping[str, SwapRecord]) -> Samples:
    samples = Samples(families.SWAP_SECONDS)
    for model, swap in swaps.items():
        if swap.ended_at_ns is not None and swap.load_started_at_ns is not None:
            seconds = (swap.ended_at_ns - swap.load_started_at_ns) / NS_PER_SECOND
            samples.add((model,), seconds)
    return samples


def _latencies(swaps: Mapping[str, SwapRecord]) -> Iterator[Samples]:
    """Yields the figures of the parts of each swap, if it had requests. A part that is not over has none.

    A part without requests has its 0 beside the other parts, because rules take the least of them.
    """
    latencies, requests = Samples(families.SWAP_LATENCY), Samples(families.SWAP_REQUESTS)
    for model, swap in swaps.items():
        parts = {"before": swap.before, "during": swap.during, "after": swap.after}
        known = {part: latency for part, latency in parts.items() if latency is not None}
        if not any(latency.request_count for latency in known.values()):
            continue
        for part, latency in known.items():
            count = latency.request_count
            requests.add((model, part), count)
            latencies.add_quantiles((model, part), _quantiles(latency), request_count=count)
    yield latencies
    yield requests


def _reads(swaps: Mapping[str, SwapRecord]) -> Iterator[Samples]:
    """Yields the bytes that each swap read and found in memory. A model without tables has no series."""
    reads, in_full = Samples(families.SWAP_READ), Samples(families.SWAP_IN_FULL)
    for model, swap in swaps.items():
        if "kept_bytes" in swap.figures:
            reads.add((model, "disk"), swap.figures["restored_bytes"])
            reads.add((model, "memory"), swap.figures["kept_bytes"])
            # The first version of a model reads all of its variables, whatever it is.
            is_swap = swap.previous_version is not None
            in_full.add((model,), int(is_swap and "delta_restored_in_full" in swap.notes))
    yield reads
    yield in_full


def _quantiles(latency: SpanLatency) -> Mapping[str, float]:
    return {
        "0.5": latency.p50_seconds,
        "0.99": latency.p99_seconds,
        "0.999": latency.p999_seconds,
        "1.0": latency.max_seconds,
    }
