"""Makes the parts that record and show the server's work."""

from collections.abc import Callable

from starlette.routing import BaseRoute

from serving.base.clock import Clock
from serving.data_plane.loads import SlabPool
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import GrpcServer
from serving.loading.batch_records import BatchRecords
from serving.loading.reservoirs import Reservoirs
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.monitoring.collector import MetricsExposition
from serving.monitoring.metrics_routes import metrics_routes
from serving.monitoring.monitored_parts import MonitoredParts, ProcessFigures
from serving.monitoring.otlp import OtlpExporter
from serving.monitoring.page_data import PageData
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
from serving.rpc.config_refusals import ConfigRefusals
from serving.rpc.health import HealthReporter
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


def make_routes(
    foundation: Foundation, parts: MonitoredParts, swaps: SwapTimeline
) -> list[BaseRoute]:
    """Returns the routes of the metrics, the swaps and the page."""
    return [
        *metrics_routes(MetricsExposition(parts), foundation.config.metrics_path),
        *swap_routes(swaps),
        *page_routes(PageData(parts)),
    ]


def make_monitored_parts(
    foundation: Foundation,
    control: ModelControl,
    *,
    requests: RequestParts,
    grpc: GrpcServer,
    swaps: SwapTimeline,
    slab_pool: SlabPool | None,
    batches: BatchRecords,
    reservoirs: Reservoirs,
    health: HealthReporter,
    refusals: ConfigRefusals,
    tracing: Tracing | NoTracing,
) -> MonitoredParts:
    return MonitoredParts(
        plane=foundation.data_plane,
        requests=requests.statistics,
        admission=requests.admission,
        budget=requests.memory.budget,
        grpc=grpc,
        monitor=control.monitor,
        streams=control.streams,
        served=control.served,
        reloader=control.reloader,
        pollers=control.pollers,
        swaps=swaps,
        batches=batches,
        reservoirs=reservoirs,
        slab_pool=slab_pool,
        health=health,
        refusals=refusals,
        tracing=tracing,
        process=ProcessFigures(
            dropped_line_count=dropped_line_count, restart_count=restart_count()
        ),
        model_memory_limit_bytes=foundation.config.model_memory_limit_bytes,
        build_info=foundation.data_plane.build_info(),
        clock=foundation.clock,
    )
