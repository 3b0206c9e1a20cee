"""Makes the parts that record and show the server's work."""

from collections.abc import Callable, Mapping
from functools import partial

from starlette.routing import BaseRoute

from serving.base.clock import Clock
from serving.core.servable import ServableId
from serving.data_plane.loads import SlabPool
from serving.data_plane.plane import DataPlane
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import GrpcServer
from serving.data_plane.servables import ArenaStatistics, RequestReservoirStatistics, Servable
from serving.loading.batch_records import BatchRecords
from serving.loading.reservoirs import Reservoirs
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import StreamStatus
from serving.manager.streams import Streams
from serving.monitoring.collector import MetricsExposition
from serving.monitoring.metric_sources import MetricSources
from serving.monitoring.metrics_routes import metrics_routes
from serving.monitoring.otlp import OtlpExporter
from serving.monitoring.page_data import PageData, page_sources
from serving.monitoring.page_routes import page_routes
from serving.monitoring.swap_record import SwapRecord
from serving.monitoring.swap_routes import swap_routes
from serving.monitoring.swap_timeline import SwapTimeline
from serving.monitoring.tracing import (
    BUFFERED_REQUESTS_MAX,
    REQUESTS_PER_SECOND_MAX,
    NoExporter,
    NoTracing,
    Tracing,
)
from serving.rpc.health import HealthView
from serving.server.foundation import Foundation
from serving.server.logs import dropped_line_count
from serving.server.model_parts import ModelControl
from serving.server.request_parts import RequestParts
from serving.server.supervised import restart_count


def make_swap_timeline(
    statistics: RequestStatistics,
    monitor: StateMonitor,
    streams: Streams,
    slab_pool: SlabPool | None,
    clock: Clock,
    *,
    on_over: Callable[[SwapRecord], None],
) -> SwapTimeline:
    def is_slab_due() -> bool:
        return slab_pool is not None and slab_pool.statistics().surplus_resident_bytes > 0

    swaps = SwapTimeline(
        statistics,
        status=monitor.status,
        answering=streams.answering,
        is_slab_due=is_slab_due,
        clock=clock,
    )
    monitor.add_listener(swaps.on_status)
    swaps.add_listener(on_over)
    return swaps


def make_tracing(foundation: Foundation) -> Tracing | NoTracing:
    """Raises InvalidConfig if OpenTelemetry is configured but not installed."""
    if not foundation.config.is_tracing:
        return NoTracing()
    exporter = (
        OtlpExporter(
            foundation.config.otlp_endpoint, version=foundation.data_plane.build_info()["millpond"]
        )
        if foundation.config.otlp_endpoint
        else NoExporter()
    )
    return Tracing(
        foundation.data_plane.SpanBuffer(
            capacity=BUFFERED_REQUESTS_MAX, per_second_max=REQUESTS_PER_SECOND_MAX
        ),
        exporter,
        slow_seconds=foundation.config.slow_request_log_seconds,
        clock=foundation.clock,
    )


def make_metric_sources(
    foundation: Foundation,
    control: ModelControl,
    *,
    requests: RequestParts,
    grpc: GrpcServer,
    swaps: SwapTimeline,
    slab_pool: SlabPool | None,
    batches: BatchRecords,
    reservoirs: Reservoirs,
    health: Callable[[], HealthView],
    is_config_refused: Callable[[], bool],
    spans_dropped: Callable[[], Mapping[str, int]],
) -> MetricSources:
    return MetricSources(
        requests=requests.statistics,
        admission=requests.admission,
        budget=requests.memory.budget,
        grpc=grpc,
        runs_ended_by_memory=foundation.data_plane.runs_ended_by_memory,
        statuses=control.monitor.statuses,
        swap_counts=swaps.counts,
        arena=partial(arena_statistics, foundation.data_plane, control.streams.servable),
        batching=batches.of,
        slab_pool=None if slab_pool is None else slab_pool.statistics,
        request_memory=foundation.data_plane.request_memory_statistics,
        reservoirs=partial(reservoir_statistics, reservoirs),
        routing=control.streams.routing,
        default_version=control.streams.answering,
        base_path=control.served.base_path,
        config_change_count=lambda: control.reloader.applied_count,
        is_config_refused=is_config_refused,
        swaps=swaps.records,
        blocked_versions=control.streams.blocks,
        restart_count=restart_count,
        models_ready=partial(models_ready, health),
        model_memory_limit_bytes=foundation.config.model_memory_limit_bytes,
        spans_dropped=spans_dropped,
        log_lines_dropped=dropped_line_count,
        stuck_sources=lambda: control.pollers.stuck_keys,
        build_info=foundation.data_plane.build_info(),
        clock=foundation.clock,
    )


def make_routes(
    foundation: Foundation,
    metrics: MetricSources,
    swaps: SwapTimeline,
    *,
    reasons: Callable[[], Mapping[str, str | None]],
    stream_status: Callable[[str], StreamStatus | None],
) -> list[BaseRoute]:
    """Returns the routes of the metrics, the swaps and the page.

    `reasons` returns why models are not ready.
    """

    def canary_progress(name: str) -> str:
        status = stream_status(name)
        return status.canary_progress if status else ""

    sources = page_sources(metrics, swaps.records, reasons, canary_progress)
    page = PageData(sources, foundation.clock, metrics.build_info["millpond"])
    return [
        *metrics_routes(MetricsExposition(metrics), foundation.config.metrics_path),
        *swap_routes(swaps),
        *page_routes(page),
    ]


def models_ready(health: Callable[[], HealthView]) -> Mapping[str, bool]:
    """Returns for each configured model the decision that `/readyz?model=` shows."""
    view = health()
    return {name: view.is_model_serving(name) for name in view.models}


def arena_statistics(
    plane: DataPlane,
    servable: Callable[[ServableId], Servable | None],
    servable_id: ServableId,
) -> ArenaStatistics | None:
    """Returns the figures of a version's arena; None if it has no arena or is not loaded."""
    loaded = servable(servable_id)
    if loaded is None:
        return None
    try:
        return loaded.arena_statistics()
    except plane.StatusError:
        return None  # It was destroyed after the look-up.


def reservoir_statistics(reservoirs: Reservoirs) -> Mapping[str, RequestReservoirStatistics]:
    """Returns the figures of each model's reservoir, by model."""
    return {name: reservoir.statistics() for name, reservoir in reservoirs.by_name().items()}
