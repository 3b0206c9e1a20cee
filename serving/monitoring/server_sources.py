"""Where a server's metrics come from: MetricSources of its parts."""

import resource
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from serving.base.clock import Clock
from serving.core.servable import ServableId
from serving.data_plane.loads import SlabPool
from serving.data_plane.plane import DataPlane
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import BudgetCounts
from serving.data_plane.servables import ArenaStatistics, RequestReservoirStatistics, Servable
from serving.loading.reservoirs import Reservoirs
from serving.manager.router import Router
from serving.manager.state_monitor import StateMonitor
from serving.monitoring.metric_sources import AdmissionCounts, MetricSources
from serving.monitoring.swap_record import SwapRecord
from serving.rpc.health import HealthView


def server_sources(
    plane: DataPlane,
    requests: RequestStatistics,
    admission: AdmissionCounts,
    budget: BudgetCounts,
    *,
    monitor: StateMonitor,
    servable: Callable[[ServableId], Servable | None],
    router: Router,
    base_path: Callable[[str], str | None],
    slab_pool: SlabPool | None,
    reservoirs: Reservoirs,
    swap_counts: Callable[[], Mapping[tuple[str, str], int]],
    config_change_count: Callable[[], int],
    is_config_refused: Callable[[], bool],
    swaps: Callable[[], Sequence[SwapRecord]],
    health: Callable[[], HealthView],
    model_memory_limit_bytes: int,
    spans_dropped: Callable[[], Mapping[str, int]] = dict,
    log_lines_dropped: Callable[[], int] = lambda: 0,
    stuck_sources: Callable[[], Collection[str]] = frozenset,
    stuck_poller_count: Callable[[], int] = lambda: 0,
    clock: Clock,
) -> MetricSources:
    """`servable` is the manager's, `swap_counts` the swap timeline's `counts`, `base_path` that of the served
    models. `slab_pool` None: versions have no arenas. `swaps` is the swap timeline's `records`, `health` the
    health reporter's `view`, `spans_dropped` the tracing's `dropped_counts`,
    `log_lines_dropped` is `logs.dropped_line_count`, `stuck_sources` and `stuck_poller_count` are those of
    the `PollerPool`.
    """
    return MetricSources(
        requests=requests,
        admission=admission,
        budget=budget,
        runs_ended_by_memory=plane.runs_ended_by_memory,
        statuses=monitor.statuses,
        swap_counts=swap_counts,
        arena=partial(_arena, plane, servable),
        slab_pool=slab_pool.statistics if slab_pool is not None else None,
        request_memory=plane.request_memory_statistics,
        page_faults=partial(resource.getrusage, resource.RUSAGE_SELF),
        reservoirs=partial(_reservoir_statistics, reservoirs),
        routing=router.routing,
        default_version=router.answering,
        base_path=base_path,
        config_change_count=config_change_count,
        is_config_refused=is_config_refused,
        swaps=swaps,
        models_ready=partial(_models_ready, health),
        model_memory_limit_bytes=model_memory_limit_bytes,
        spans_dropped=spans_dropped,
        log_lines_dropped=log_lines_dropped,
        stuck_sources=stuck_sources,
        stuck_poller_count=stuck_poller_count,
        build_info=plane.build_info(),
        clock=clock,
    )


def _models_ready(health: Callable[[], HealthView]) -> Mapping[str, bool]:
    """The same decision as `/readyz?model=` shows."""
    view = health()
    return {name: view.is_model_serving(name) for name in view.models}


def _arena(
    plane: DataPlane,
    servable: Callable[[ServableId], Servable | None],
    servable_id: ServableId,
) -> ArenaStatistics | None:
    loaded = servable(servable_id)
    if loaded is None:
        return None
    try:
        return loaded.arena_statistics()
    except plane.StatusError:
        return None  # It was destroyed since we got it.


def _reservoir_statistics(reservoirs: Reservoirs) -> Mapping[str, RequestReservoirStatistics]:
    return {name: reservoir.statistics() for name, reservoir in reservoirs.by_name().items()}
