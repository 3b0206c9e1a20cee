"""The metrics of TensorFlow Serving under its names, for existing dashboards.

As in TensorFlow Serving they are of a model and not of a version. They cover all versions since the
start, so they never go down. `metric_families.LEFT_OUT` has the metrics that are left out, and why.
"""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.core.servable import END, HEALTHY, LoadStage, ServableStatus
from serving.data_plane.request_statistics import MethodStatistics
from serving.monitoring import metric_families as families
from serving.monitoring.metric_samples import Samples, edge_labels
from serving.monitoring.request_metrics import code_name
from serving.reload.served_models import ServedModels

_COUNTED: Mapping[str, tuple[str, str]] = {
    **{method: (method, "GRPC") for method in ("Predict", "Classify", "Regress")},
    **{f"Rest{method}": (method, "REST") for method in ("Predict", "Classify", "Regress")},
}
"""The labels `API` and `entrypoint` of each method. TensorFlow Serving records no other methods."""

RUNTIME = "TF1"
"""TensorFlow Serving's word for a session."""

_EDGE_COUNT = 33
_EDGES_MICROSECONDS = tuple(10 * 1.8**power for power in range(_EDGE_COUNT))
EDGES_NS = tuple(round(edge * 1_000) for edge in _EDGES_MICROSECONDS)
"""TensorFlow Serving's edges: from 10 µs, each 1.8 times the edge before."""

# Six digits, as TensorFlow Serving prints them.
_EDGE_LABELS = edge_labels([float(f"{edge:g}") for edge in _EDGES_MICROSECONDS])


def tensorflow_serving_metrics(
    model_methods: Sequence[MethodStatistics],
    latest: Iterable[ServableStatus],
    served: ServedModels,
) -> Iterator[Samples]:
    """Yields the metrics. `latest` has the versions whose warm-up is shown."""
    counted = [item for item in model_methods if item.method in _COUNTED]
    yield _request_count(counted)
    yield _request_latency(counted)
    yield _runtime_latency(counted)
    yield _warmup_latency(latest, served)


def _request_count(methods: Sequence[MethodStatistics]) -> Samples:
    """The requests of all methods: the metric has no label for methods."""
    counts: dict[tuple[str, str], int] = {}
    for item in methods:
        for code, count in item.count_by_code.items():
            key = (item.model, code_name(code))
            counts[key] = counts.get(key, 0) + count
    samples = Samples(families.TFS_REQUEST_COUNT)
    for key, count in counts.items():
        samples.add(key, count)
    return samples


def _request_latency(methods: Sequence[MethodStatistics]) -> Samples:
    samples = Samples(families.TFS_REQUEST_LATENCY)
    for item in methods:
        if StatusCode.OK not in item.count_by_code:
            continue
        figures = item.latency(StatusCode.OK)
        samples.add_histogram(
            (item.model, *_COUNTED[item.method]),
            _EDGE_LABELS,
            item.cumulative_counts(StatusCode.OK, EDGES_NS),
            count=figures.count,
            total=figures.sum_ns / 1_000,
        )
    return samples


def _runtime_latency(methods: Sequence[MethodStatistics]) -> Samples:
    """The latency of all entrypoints: the metric has no label for entrypoints."""
    samples = Samples(families.TFS_RUNTIME_LATENCY)
    for (model, api), items in _by_model_and_api(methods).items():
        counts = [item.phase_cumulative_counts("run", EDGES_NS) for item in items]
        figures = [item.phase("run") for item in items]
        samples.add_histogram(
            (model, api, RUNTIME),
            _EDGE_LABELS,
            [sum(at_most) for at_most in zip(*counts, strict=True)],
            count=sum(figure.count for figure in figures),
            total=sum(figure.sum_ns for figure in figures) / 1_000,
        )
    return samples


def _by_model_and_api(
    methods: Sequence[MethodStatistics],
) -> Mapping[tuple[str, str], Sequence[MethodStatistics]]:
    """Groups the methods that have run the model at least once."""
    found: dict[tuple[str, str], list[MethodStatistics]] = {}
    for item in methods:
        if item.phase("run").count > 0:
            found.setdefault((item.model, _COUNTED[item.method][0]), []).append(item)
    return found


def _warmup_latency(statuses: Iterable[ServableStatus], served: ServedModels) -> Samples:
    """Makes a histogram for each version's directory, which holds the last warm-up of the version.

    Several models may have one base path. Then the histogram holds the warm-up of each of them, because a
    series that a scrape has twice is lost.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for status in statuses:
        seconds = status.stage_seconds.get(LoadStage.WARM_UP)
        base = served.base_path(status.id.name)
        if seconds is None or base is None:
            continue
        path = posixpath.join(base, str(status.id.version))
        found.setdefault((path, _warmup_status(status)), []).append(seconds)
    samples = Samples(families.TFS_WARMUP_LATENCY)
    for labels, warm_ups in found.items():
        samples.add_histogram(
            labels,
            _EDGE_LABELS,
            [sum(each * NS_PER_SECOND <= edge_ns for each in warm_ups) for edge_ns in EDGES_NS],
            count=len(warm_ups),
            total=sum(warm_ups) * 1e6,
        )
    return samples


def _warmup_status(status: ServableStatus) -> str:
    """The code of the load's error if it failed in the warm-up, and otherwise OK."""
    is_last = list(status.stage_seconds)[-1] is LoadStage.WARM_UP
    is_failed = status.state is END and status.health != HEALTHY
    return status.health.code.name if is_last and is_failed else StatusCode.OK.name
