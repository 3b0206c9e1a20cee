"""Metrics of the process: slabs, request memory, admission, page faults, configuration, build."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from serving.data_plane.loads import SlabPoolStatistics
from serving.data_plane.plane import RequestMemoryStatistics
from serving.loading.memory_fit import UNLIMITED_BYTES
from serving.monitoring import metric_families as families
from serving.monitoring.metric_families import MetricFamily
from serving.monitoring.metric_samples import Samples
from serving.monitoring.metric_sources import MetricSources, PageFaults

_SLAB_FIGURES: Mapping[MetricFamily, Callable[[SlabPoolStatistics], int]] = {
    families.SLABS_IN_USE: lambda pool: pool.in_use_count,
    families.SLABS_SPARE: lambda pool: pool.spare_count,
    families.SLABS_QUARANTINED: lambda pool: pool.quarantined_count,
    families.SLAB_IN_USE_BYTES: lambda pool: pool.in_use_bytes,
    families.SLAB_SPARE_BYTES: lambda pool: pool.spare_bytes,
    families.SLAB_SPARE_RESIDENT_BYTES: lambda pool: pool.spare_resident_bytes,
    families.SLAB_SURPLUS_BYTES: lambda pool: pool.surplus_resident_bytes,
    families.SLAB_QUARANTINED_BYTES: lambda pool: pool.quarantined_bytes,
}

_MEMORY_FIGURES: Mapping[MetricFamily, Callable[[RequestMemoryStatistics], int]] = {
    families.REQUEST_MEMORY_IN_USE: lambda memory: memory.in_use_bytes,
    families.REQUEST_MEMORY_PEAK: lambda memory: memory.in_use_bytes_peak,
    families.REQUEST_MEMORY_ALLOCATIONS: lambda memory: memory.allocation_count,
}


def process_metrics(sources: MetricSources) -> Iterator[Metric]:
    """Yields the metrics of the process. Without a slab pool, the slab families have no samples."""
    pool = sources.slab_pool() if sources.slab_pool is not None else None
    for family, read in _SLAB_FIGURES.items():
        samples = Samples(family)
        if pool is not None:
            samples.add((), read(pool))
        yield samples.metric
    memory = sources.request_memory()
    for family, read_memory in _MEMORY_FIGURES.items():
        yield _single(family, read_memory(memory))
    yield from _memory_left(sources)
    yield _page_faults(sources.page_faults())
    yield _single(families.IN_FLIGHT_REQUESTS, sources.admission.in_flight_count)
    yield _single(families.REFUSED_REQUESTS, sources.admission.refused_count)
    yield _single(families.GRPC_CONNECTIONS, sources.grpc.connection_count)
    yield _by_label(families.GRPC_LIMITS_REACHED, sources.grpc.limit_counts)
    yield _single(families.UNDER_WAY_BYTES, sources.budget.in_use_bytes)
    yield _single(families.UNDER_WAY_LIMIT, sources.budget.limit_bytes)
    yield _single(families.REFUSED_FOR_MEMORY, sources.budget.refused_count)
    yield _single(families.RUNS_ENDED_BY_MEMORY, sources.runs_ended_by_memory())
    yield _single(families.SUPERVISOR_RESTARTS, sources.restart_count())
    yield _single(families.CONFIG_CHANGES, sources.config_change_count())
    yield _single(families.CONFIG_REFUSED, int(sources.is_config_refused()))
    yield _by_label(families.SPANS_DROPPED, sources.spans_dropped())
    yield _single(families.LOG_LINES_DROPPED, sources.log_lines_dropped())
    yield _build(sources.build_info)


def _single(family: MetricFamily, value: int) -> Metric:
    samples = Samples(family)
    samples.add((), value)
    return samples.metric


def _memory_left(sources: MetricSources) -> Iterator[Metric]:
    available, limit = Samples(families.MEMORY_AVAILABLE), Samples(families.MODEL_MEMORY_LIMIT)
    available_bytes = sources.memory_available_bytes()
    if available_bytes < UNLIMITED_BYTES:
        available.add((), available_bytes)
    if sources.model_memory_limit_bytes:
        limit.add((), sources.model_memory_limit_bytes)
    yield available.metric
    yield limit.metric


def _page_faults(faults: PageFaults) -> Metric:
    samples = Samples(families.PAGE_FAULTS)
    samples.add(("minor",), faults.ru_minflt)
    samples.add(("major",), faults.ru_majflt)
    return samples.metric


def _by_label(family: MetricFamily, counts: Mapping[str, int]) -> Metric:
    samples = Samples(family)
    for label, count in counts.items():
        samples.add((label,), count)
    return samples.metric


def _build(info: Mapping[str, str]) -> Metric:
    """Returns the build metric. The build info's key `millpond` is the label `version`."""
    samples = Samples(families.BUILD)
    keys = ("millpond", *families.BUILD.labels[1:])
    samples.add([info.get(key, "") for key in keys], 1)
    return samples.metric
