"""Metrics of requests, as the data plane has recorded them: counts, latencies and phases."""

from collections.abc import Collection, Iterator, Sequence

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.data_plane.request_statistics import PHASES, LatencyFigures, MethodStatistics
from serving.monitoring import metric_families as families
from serving.monitoring.metric_samples import Samples, edge_labels
from serving.monitoring.native_histogram import EDGES_NS, native_histogram

# The edges are a quarter apart: ten round numbers in each decade (the preferred numbers R10). With the
# infinite bucket there are 65 buckets, so 67 series for each method and code of a version. A request to
# the smallest models takes 6 µs, and after 10 s clients have given up.
_STEPS = (100, 125, 160, 200, 250, 315, 400, 500, 630, 800)
LATENCY_EDGES_NS = (
    *(5_000, 6_300, 8_000),
    *(step * 10**power for power in range(2, 8) for step in _STEPS),
    10 * NS_PER_SECOND,
)
_EDGE_LABELS = edge_labels([edge_ns / NS_PER_SECOND for edge_ns in LATENCY_EDGES_NS])

WINDOW_SECONDS = 10
"""The window of quantiles, here and on the page, whose charts have the same (`kFigureNs` in
native/metrics/model_history.h). It is long enough for a p999 of a few hundred requests a second, and short
enough to show a swap."""

_ALWAYS_SHOWN = "Predict"
"""The method whose counts begin at 0 with the version. Otherwise rate() would miss the first requests
after a swap."""

_PARTS = tuple(phase for phase in PHASES if phase != "total")


def request_metrics(
    methods: Sequence[MethodStatistics],
    whole: Collection[tuple[str, int]],
    *,
    is_native: bool = False,
) -> Iterator[Samples]:
    """Yields the metrics of requests. `is_native` adds the latency as a native histogram.

    The latencies and the requests in flight of the versions in `whole` are shown before the first request.
    """
    yield _counts(methods)
    yield _latencies(
        [item for item in methods if item.count_by_code or (item.model, item.version) in whole],
        is_native=is_native,
    )
    yield _quantiles(methods)
    yield _phases(methods)
    yield _in_flight(methods, whole)


def code_name(code: int) -> str:
    """The name of a gRPC status code, or the number if it has no name."""
    try:
        return StatusCode(code).name
    except ValueError:
        return str(code)


def _identity(item: MethodStatistics) -> tuple[str, str]:
    """Model and version; "" for a request that names no model or reached no version."""
    return (item.model, str(item.version) if item.model and item.version >= 0 else "")


def _codes(item: MethodStatistics) -> list[int]:
    codes = set(item.count_by_code)
    if item.model and item.version >= 0 and item.method == _ALWAYS_SHOWN:
        codes.add(StatusCode.OK)
    return sorted(codes)


def _counts(methods: Sequence[MethodStatistics]) -> Samples:
    samples = Samples(families.REQUESTS)
    for item in methods:
        counts = item.count_by_code
        for code in _codes(item):
            values = (*_identity(item), item.method, code_name(code))
            samples.add(values, counts.get(code, 0))
    return samples


def _latencies(methods: Sequence[MethodStatistics], *, is_native: bool) -> Samples:
    samples = Samples(families.REQUEST_LATENCY)
    for item in methods:
        for code in _codes(item):
            values = (*_identity(item), item.method, code_name(code))
            figures = item.latency(code)
            seconds = figures.sum_ns / NS_PER_SECOND
            if is_native:
                counts = item.cumulative_counts(code, EDGES_NS)
                histogram = native_histogram(counts, count=figures.count, sum_seconds=seconds)
                samples.add_native_histogram(values, histogram)
            counts = item.cumulative_counts(code, LATENCY_EDGES_NS)
            samples.add_histogram(values, _EDGE_LABELS, counts, count=figures.count, total=seconds)
    return samples


def _quantiles(methods: Sequence[MethodStatistics]) -> Samples:
    samples = Samples(families.REQUEST_LATENCY_QUANTILES)
    for item in methods:
        _add_quantiles(
            samples, (*_identity(item), item.method), item.phase("total", WINDOW_SECONDS)
        )
    return samples


def _phases(methods: Sequence[MethodStatistics]) -> Samples:
    samples = Samples(families.REQUEST_PHASE)
    for item in methods:
        for phase in _PARTS:
            since_load = item.phase(phase)
            if since_load.count == 0:
                continue
            values = (*_identity(item), item.method, phase)
            _add_quantiles(samples, values, item.phase(phase, WINDOW_SECONDS))
            samples.add_total(values, since_load.count, since_load.sum_ns / NS_PER_SECOND)
    return samples


def _add_quantiles(samples: Samples, values: Sequence[str], figures: LatencyFigures) -> None:
    quantiles_ns = {
        "0.5": figures.p50_ns,
        "0.9": figures.p90_ns,
        "0.99": figures.p99_ns,
        "0.999": figures.p999_ns,
        "1.0": figures.max_ns,
    }
    seconds = {quantile: ns / NS_PER_SECOND for quantile, ns in quantiles_ns.items()}
    samples.add_quantiles(values, seconds, request_count=figures.count)


def _in_flight(methods: Sequence[MethodStatistics], whole: Collection[tuple[str, int]]) -> Samples:
    """The requests in flight. Each method of a version has the figure of all its methods."""
    samples = Samples(families.SERVABLE_HANDLES)
    by_version = {
        _identity(item): item.in_flight_count
        for item in methods
        if item.model
        and item.version >= 0
        and (item.in_flight_count or item.count_by_code or (item.model, item.version) in whole)
    }
    for identity, in_flight_count in by_version.items():
        samples.add(identity, in_flight_count)
    return samples
