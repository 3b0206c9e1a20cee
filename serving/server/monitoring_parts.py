"""Makes the parts that record and show the server's work."""

from collections.abc import Callable, Mapping

from serving.base.clock import Clock
from serving.data_plane.loads import SlabPool
from serving.data_plane.request_statistics import RequestStatistics
from serving.manager.router import Router
from serving.manager.state_monitor import StateMonitor
from serving.monitoring.metric_sources import MetricSources
from serving.monitoring.otlp import OtlpExporter
from serving.monitoring.page_data import PageData, page_sources
from serving.monitoring.swap_record import SwapRecord
from serving.monitoring.swap_timeline import SwapTimeline
from serving.monitoring.tracing import (
    BUFFERED_REQUESTS_MAX,
    REQUESTS_PER_SECOND_MAX,
    NoExporter,
    NoTracing,
    Tracing,
)
from serving.server.foundation import Foundation


def make_swap_timeline(
    statistics: RequestStatistics,
    monitor: StateMonitor,
    router: Router,
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
        answering=router.answering,
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


def make_page_data(
    metrics: MetricSources,
    swaps: SwapTimeline,
    reasons: Callable[[], Mapping[str, str | None]],
    clock: Clock,
) -> PageData:
    sources = page_sources(metrics, swaps.records, reasons)
    return PageData(sources, clock, metrics.build_info["millpond"])
