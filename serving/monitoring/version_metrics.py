"""Metrics of versions and models: states, stages, gates, swaps, routing, arenas, reservoirs."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from serving.base.clock import NS_PER_SECOND
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LoadStage,
    ServableId,
    ServableState,
    ServableStatus,
    UnloadStage,
)
from serving.data_plane.servables import ArenaStatistics
from serving.loading.reservoirs import Reservoirs
from serving.manager.state_monitor import Statuses
from serving.manager.streams import Streams
from serving.monitoring import metric_families as families
from serving.monitoring.metric_families import (
    ENDED_SECONDS_MAX,
    LATEST_COUNT_MAX,
    WHOLE_COUNT_MAX,
    MetricFamily,
)
from serving.monitoring.metric_samples import Samples, family_metrics
from serving.monitoring.monitored_parts import MonitoredParts
from serving.monitoring.swap_record import SwapResult
from serving.rpc.health import HealthView


def shown_statuses(statuses: Statuses, now_ns: int) -> list[ServableStatus]:
    """The statuses without versions that ended or failed ENDED_SECONDS_MAX ago or earlier. Pure."""
    before_ns = now_ns - round(ENDED_SECONDS_MAX * NS_PER_SECOND)
    return [
        status
        for versions in statuses.values()
        for status in versions
        if status.state is not END or status.state_changed_ns > before_ns
    ]


def latest_changes(statuses: Sequence[ServableStatus]) -> list[ServableStatus]:
    """The statuses of the versions that have all of their series, in their order. Pure."""
    if len(statuses) <= WHOLE_COUNT_MAX:
        return [*statuses]
    latest = heapq.nlargest(LATEST_COUNT_MAX, statuses, key=lambda item: item.state_changed_ns)
    ids = {status.id for status in latest}
    return [status for status in statuses if status.id in ids]


def version_metrics(
    parts: MonitoredParts, statuses: Sequence[ServableStatus], latest: Sequence[ServableStatus]
) -> Iterator[Samples]:
    """Yields the metrics of versions and models.

    `statuses` has the versions to show. The figures of loads and unloads, and series at 0 that no alert
    needs, are shown for `latest` alone.
    """
    whole = {status.id for status in latest}
    yield _states(statuses, whole)
    yield _healths(statuses, whole)
    yield _failed_loads(statuses, whole)
    yield _stages(families.LOAD_STAGE, LoadStage, latest)
    yield _stages(families.UNLOAD_STAGE, UnloadStage, latest)
    yield _verdicts(latest)
    available = [status.id for status in statuses if status.state is AVAILABLE]
    yield _routing_shares(parts.streams, available)
    yield from _arenas(parts, available, whole)
    latest_models = {status.id.name for status in latest}
    yield _swaps(parts.swaps.counts(), statuses, latest_models)
    view = parts.health.view()
    yield _readiness(view)
    yield _blocked(view.models, parts.streams)
    yield _stuck(view.models, parts.pollers.stuck_keys, latest_models)
    yield from _reservoirs(parts.reservoirs, latest_models)


def _identity(servable_id: ServableId) -> tuple[str, str]:
    return servable_id.name, str(servable_id.version)


def _states(statuses: Sequence[ServableStatus], whole: Collection[ServableId]) -> Samples:
    samples = Samples(families.SERVABLE_STATE)
    for status in statuses:
        for state in ServableState if status.id in whole else (status.state,):
            samples.add((*_identity(status.id), state.name), int(status.state is state))
    return samples


def _healths(statuses: Sequence[ServableStatus], whole: Collection[ServableId]) -> Samples:
    samples = Samples(families.SERVABLE_HEALTH)
    for status in statuses:
        if status.health != HEALTHY or status.id in whole:
            samples.add((*_identity(status.id), status.health.code.name), 1)
    return samples


def _failed_loads(statuses: Sequence[ServableStatus], whole: Collection[ServableId]) -> Samples:
    samples = Samples(families.FAILED_LOADS)
    for status in statuses:
        if status.failed_load_count or status.id in whole:
            samples.add(_identity(status.id), status.failed_load_count)
    return samples


def _stages(
    family: MetricFamily,
    kind: type[LoadStage] | type[UnloadStage],
    statuses: Sequence[ServableStatus],
) -> Samples:
    samples = Samples(family)
    for status in statuses:
        for stage, seconds in status.stage_seconds.items():
            if isinstance(stage, kind):
                samples.add((*_identity(status.id), stage.value), seconds)
    return samples


def _verdicts(statuses: Sequence[ServableStatus]) -> Samples:
    samples = Samples(families.GATE_PASSED)
    for status in statuses:
        # By gate, so that a gate that ran twice has one series.
        for verdict in {verdict.gate: verdict for verdict in status.verdicts}.values():
            values = (*_identity(status.id), verdict.gate, verdict.mode)
            samples.add(values, int(verdict.is_passed))
    return samples


def _routing_shares(streams: Streams, available: Sequence[ServableId]) -> Samples:
    samples = Samples(families.ROUTING_SHARE)
    for name in dict.fromkeys(servable_id.name for servable_id in available):
        routing, default_version = streams.routing(name), streams.answering(name)
        canary_share = 0.0
        if routing.canary_version is not None:
            canary_share = routing.canary_weight
            samples.add((name, str(routing.canary_version)), canary_share)
        if default_version not in (None, routing.canary_version):
            samples.add((name, str(default_version)), 1 - canary_share)
    return samples


_ARENA_FAMILIES = (
    families.ARENA_ALLOCATED,
    families.ARENA_ACTIVE_UNUSED,
    families.ARENA_RETAINED,
    families.ARENA_SLAB,
    families.ARENA_RESIDENT,
)


def _arenas(
    parts: MonitoredParts, available: Sequence[ServableId], whole: Collection[ServableId]
) -> Iterator[Samples]:
    arenas = ((servable_id, parts.arena(servable_id)) for servable_id in available)
    figures = (
        (servable_id, _arena_figures(arena)) for servable_id, arena in arenas if arena is not None
    )
    yield from family_metrics(
        _ARENA_FAMILIES,
        (
            (_identity(servable_id), values if servable_id in whole else _without_0(values))
            for servable_id, values in figures
        ),
    )


def _without_0(values: Mapping[MetricFamily, int]) -> Mapping[MetricFamily, int]:
    """The values that are not 0. A sum over models is the same without the others."""
    return {family: value for family, value in values.items() if value}


def _arena_figures(arena: ArenaStatistics) -> Mapping[MetricFamily, int]:
    slab_bytes = (
        arena.allocated_bytes
        + arena.active_unused_bytes
        + arena.retained_bytes
        + arena.unused_bytes
    )
    return {
        families.ARENA_ALLOCATED: arena.allocated_bytes,
        families.ARENA_ACTIVE_UNUSED: arena.active_unused_bytes,
        families.ARENA_RETAINED: arena.retained_bytes,
        families.ARENA_SLAB: slab_bytes,
        families.ARENA_RESIDENT: arena.slab_resident_bytes,
    }


_ALERTED = frozenset({SwapResult.LOAD_FAILED, SwapResult.REFUSED, SwapResult.ROLLED_BACK})
"""The results that alerts count (deploy/prometheus/alert_rules.yml)."""


def _swaps(
    counts: Mapping[tuple[str, str], int],
    statuses: Sequence[ServableStatus],
    latest_models: Collection[str],
) -> Samples:
    """The swap counts. Results start at 0, so that increase() counts the first one: all results of the
    models of the latest changes, and those that alerts count of every model.
    """
    samples = Samples(families.SWAPS)
    models = [*(model for model, _ in counts), *(status.id.name for status in statuses)]
    for model in dict.fromkeys(models):
        for result in SwapResult:
            count = counts.get((model, result.value), 0)
            if count > 0 or result in _ALERTED or model in latest_models:
                samples.add((model, result.value), count)
    return samples


def _blocked(models: Iterable[str], streams: Streams) -> Samples:
    samples = Samples(families.VERSION_BLOCKED)
    for model in models:
        for version, block in sorted(streams.blocks(model).items()):
            samples.add((model, str(version), block.by.value), 1)
    return samples


def _stuck(
    models: Iterable[str], stuck: Collection[str], latest_models: Collection[str]
) -> Samples:
    samples = Samples(families.SOURCE_STUCK)
    for model in models:
        if model in stuck or model in latest_models:
            samples.add((model,), int(model in stuck))
    return samples


def _readiness(view: HealthView) -> Samples:
    """The decision on each configured model that `/readyz?model=` shows."""
    samples = Samples(families.MODEL_READY)
    for model in view.models:
        samples.add((model,), int(view.is_model_serving(model)))
    return samples


def _reservoirs(reservoirs: Reservoirs, latest_models: Collection[str]) -> Iterator[Samples]:
    requests, sizes = Samples(families.RESERVOIR_REQUESTS), Samples(families.RESERVOIR_BYTES)
    for model, reservoir in reservoirs.by_name().items():
        figures = reservoir.statistics()
        if figures.request_count > 0 or model in latest_models:
            requests.add((model,), figures.request_count)
            sizes.add((model,), figures.request_bytes)
    yield requests
    yield sizes
