"""Metrics of the process: slabs, request memory, admission, page faults, configuration, build."""

from collections.abc import Iterator, Mapping
from resource import struct_rusage

from prometheus_client import ProcessCollector

from serving.data_plane.loads import SlabPoolStatistics, TableStatistics
from serving.loading.memory_fit import UNLIMITED_BYTES
from serving.monitoring import metric_families as families
from serving.monitoring.metric_families import MetricFamily
from serving.monitoring.metric_samples import Samples, family_metrics
from serving.monitoring.monitored_parts import MonitoredParts

_SLAB_FAMILIES = (
    families.SLABS_IN_USE,
    families.SLABS_SPARE,
    families.SLABS_QUARANTINED,
    families.SLAB_IN_USE_BYTES,
    families.SLAB_SPARE_BYTES,
    families.SLAB_SPARE_RESIDENT_BYTES,
    families.SLAB_SURPLUS_BYTES,
    families.SLAB_QUARANTINED_BYTES,
)


_TABLE_FAMILIES = (
    families.TABLE_HELD_BYTES,
    families.TABLE_STANDBY_BYTES,
    families.TABLE_COPYING_BYTES,
    families.TABLES_DIRTY,
)

# It reads /proc only when it collects.
_STANDARD = ProcessCollector(registry=None)


def process_metrics(parts: MonitoredParts) -> Iterator[Samples]:
    """Yields the metrics of the process. Without a slab pool, the slab families have no samples."""
    pool = parts.slab_pool
    slabs = [] if pool is None else [((), _slab_figures(pool.statistics()))]
    yield from family_metrics(_SLAB_FAMILIES, slabs)
    tables = [] if pool is None else [((), _table_figures(pool.table_statistics()))]
    yield from family_metrics(_TABLE_FAMILIES, tables)
    memory = parts.plane.request_memory_statistics()
    yield _single(families.REQUEST_MEMORY_IN_USE, memory.in_use_bytes)
    yield _single(families.REQUEST_MEMORY_PEAK, memory.in_use_bytes_peak)
    yield _single(families.REQUEST_MEMORY_ALLOCATIONS, memory.allocation_count)
    yield from _memory_left(parts)
    yield _page_faults(parts.process.usage())
    yield _single(families.IN_FLIGHT_REQUESTS, parts.admission.in_flight_count)
    yield _single(families.REFUSED_REQUESTS, parts.admission.refused_count)
    yield _single(families.GRPC_CONNECTIONS, parts.grpc.connection_count)
    yield _by_label(families.GRPC_LIMITS_REACHED, parts.grpc.limit_counts)
    yield _single(families.UNDER_WAY_BYTES, parts.budget.in_use_bytes)
    yield _single(families.UNDER_WAY_LIMIT, parts.budget.limit_bytes)
    yield _single(families.REFUSED_FOR_MEMORY, parts.budget.refused_count)
    yield _single(families.RUNS_ENDED_BY_MEMORY, parts.plane.runs_ended_by_memory())
    yield _single(families.SUPERVISOR_RESTARTS, parts.process.restart_count)
    yield _single(families.CONFIG_CHANGES, parts.reloader.applied_count)
    yield _single(families.CONFIG_REFUSED, int(parts.refusals.first is not None))
    yield _by_label(families.SPANS_DROPPED, parts.tracing.dropped_counts())
    yield _single(families.LOG_LINES_DROPPED, parts.process.dropped_line_count())
    yield _build(parts.build_info)
    yield from _standard()


def _standard() -> Iterator[Samples]:
    """The figures that every exporter has under the same names; prometheus_client reads them."""
    values = {metric.name: metric.samples[0].value for metric in _STANDARD.collect()}
    for family in families.PROCESS_FAMILIES:
        samples = Samples(family)
        if family.base_name in values:
            samples.add((), values[family.base_name])
        yield samples


def _slab_figures(pool: SlabPoolStatistics) -> Mapping[MetricFamily, int]:
    return {
        families.SLABS_IN_USE: pool.in_use_count,
        families.SLABS_SPARE: pool.spare_count,
        families.SLABS_QUARANTINED: pool.quarantined_count,
        families.SLAB_IN_USE_BYTES: pool.in_use_bytes,
        families.SLAB_SPARE_BYTES: pool.spare_bytes,
        families.SLAB_SPARE_RESIDENT_BYTES: pool.spare_resident_bytes,
        families.SLAB_SURPLUS_BYTES: pool.surplus_resident_bytes,
        families.SLAB_QUARANTINED_BYTES: pool.quarantined_bytes,
    }


def _table_figures(tables: TableStatistics) -> Mapping[MetricFamily, int]:
    return {
        families.TABLE_HELD_BYTES: tables.held_bytes,
        families.TABLE_STANDBY_BYTES: tables.standby_bytes,
        families.TABLE_COPYING_BYTES: tables.copying_bytes,
        families.TABLES_DIRTY: tables.dirty_count,
    }


def _single(family: MetricFamily, value: int) -> Samples:
    samples = Samples(family)
    samples.add((), value)
    return samples


def _memory_left(parts: MonitoredParts) -> Iterator[Samples]:
    available, limit = Samples(families.MEMORY_AVAILABLE), Samples(families.MODEL_MEMORY_LIMIT)
    available_bytes = parts.process.available_bytes()
    if available_bytes < UNLIMITED_BYTES:
        available.add((), available_bytes)
    if parts.model_memory_limit_bytes:
        limit.add((), parts.model_memory_limit_bytes)
    yield available
    yield limit


def _page_faults(usage: struct_rusage) -> Samples:
    samples = Samples(families.PAGE_FAULTS)
    samples.add(("minor",), usage.ru_minflt)
    samples.add(("major",), usage.ru_majflt)
    return samples


def _by_label(family: MetricFamily, counts: Mapping[str, int]) -> Samples:
    samples = Samples(family)
    for label, count in counts.items():
        samples.add((label,), count)
    return samples


def _build(info: Mapping[str, str]) -> Samples:
    """Makes the build metric. The build info's key `millpond` is the label `version`."""
    samples = Samples(families.BUILD)
    keys = ("millpond", *families.BUILD.labels[1:])
    samples.add([info.get(key, "") for key in keys], 1)
    return samples
