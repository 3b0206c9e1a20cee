"""Metrics of batches: how the requests of each signature share runs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from serving.base.clock import NS_PER_SECOND
from serving.core.servable import ServableStatus
from serving.data_plane.servables import SignatureBatching
from serving.monitoring import metric_families as families
from serving.monitoring.metric_families import MetricFamily
from serving.monitoring.metric_samples import Samples, edge_labels
from serving.monitoring.monitored_parts import MonitoredParts

_SIZE_EDGES = tuple(2**power for power in range(15))
"""The edges of the data plane's counts by rows and by requests. Its last class is unbounded."""

_TIME_EDGES_MICROSECONDS = tuple(2**power for power in range(21))
"""The edges of the data plane's counts by time, from 1 µs to 1 s. Its last class is unbounded."""

_MICROSECONDS_PER_SECOND = 1_000_000
_SIZE_LABELS = edge_labels(_SIZE_EDGES)
_TIME_LABELS = edge_labels(
    [microseconds / _MICROSECONDS_PER_SECOND for microseconds in _TIME_EDGES_MICROSECONDS]
)

_Labels = tuple[str, str, str]


def batch_metrics(parts: MonitoredParts, statuses: Sequence[ServableStatus]) -> Iterator[Samples]:
    """Yields the metrics of batches. `statuses` has the versions to show."""
    states = {
        (status.id.name, str(status.id.version), state.signature): state
        for status in statuses
        for state in parts.batches.of(status.id)
    }
    # A refused signature has no batches, unless it was batched at first.
    batched = {
        labels: state
        for labels, state in states.items()
        if state.is_on or state.figures.run_count > 0
    }
    yield _are_on(states)
    yield _rows_limits(batched)
    yield from _sizes(batched)
    yield from _times(batched)
    yield from _counts(batched)


def _add_classes(
    samples: Samples,
    labels: Sequence[str],
    edges: Sequence[str],
    counts: Sequence[int],
    *,
    total: float,
) -> None:
    """Adds a histogram from the counts of classes. Classes above the last edge become its last bucket."""
    cumulative = list(accumulate(counts))
    count = cumulative[-1] if cumulative else 0
    at_most = [*cumulative[: len(edges)], *[count] * (len(edges) - len(cumulative))]
    samples.add_histogram(labels, edges, at_most, count=count, total=total)


def _are_on(states: Mapping[_Labels, SignatureBatching]) -> Samples:
    samples = Samples(families.BATCHING_ON)
    for labels, state in states.items():
        # The runs of several signatures at once have no state of their own.
        if state.signature:
            samples.add(labels, int(state.is_on))
    return samples


def _rows_limits(batched: Mapping[_Labels, SignatureBatching]) -> Samples:
    samples = Samples(families.BATCH_ROWS_LIMIT)
    for labels, state in batched.items():
        samples.add(labels, state.joined_rows_max)
    return samples


def _sizes(batched: Mapping[_Labels, SignatureBatching]) -> Iterator[Samples]:
    rows, requests = Samples(families.BATCH_ROWS), Samples(families.BATCH_REQUESTS)
    for labels, state in batched.items():
        figures = state.figures
        _add_classes(rows, labels, _SIZE_LABELS, figures.by_rows, total=figures.row_count)
        edges = edge_labels([edge for edge in _SIZE_EDGES if edge <= state.joined_requests_max])
        _add_classes(requests, labels, edges, figures.by_requests, total=figures.request_count)
    yield rows
    yield requests


def _times(batched: Mapping[_Labels, SignatureBatching]) -> Iterator[Samples]:
    waits, runs = Samples(families.BATCH_WAIT), Samples(families.BATCH_RUN)
    for labels, state in batched.items():
        figures = state.figures
        _add_classes(
            waits, labels, _TIME_LABELS, figures.by_wait, total=figures.wait_ns / NS_PER_SECOND
        )
        _add_classes(
            runs, labels, _TIME_LABELS, figures.by_run, total=figures.run_ns / NS_PER_SECOND
        )
    yield waits
    yield runs


def _counts(batched: Mapping[_Labels, SignatureBatching]) -> Iterator[Samples]:
    families_read: Mapping[MetricFamily, str] = {
        families.BATCH_PADDING_ROWS: "padding_row_count",
        families.BATCH_FAILED: "failed_batch_count",
        families.BATCH_SPLIT_REQUESTS: "split_request_count",
    }
    for family, name in families_read.items():
        samples = Samples(family)
        for labels, state in batched.items():
            samples.add(labels, getattr(state.figures, name))
        yield samples
