"""Makes the parts that record the work of a server and show it: tracing, metrics and the page."""

from starlette.routing import BaseRoute

from serving.data_plane.requests import GrpcServer
from serving.monitoring.collector import MetricsExposition
from serving.monitoring.metrics_routes import metrics_routes
from serving.monitoring.monitored_parts import MonitoredParts, ProcessFigures
from serving.monitoring.otlp import OtlpExporter
from serving.monitoring.page_data import PageData
from serving.monitoring.page_routes import page_routes
from serving.monitoring.swap_routes import swap_routes
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
from serving.server.models import Models
from serving.server.request_parts import RequestParts
from serving.server.supervised import restart_count
from serving.server.versions import Versions


def make_tracing(foundation: Foundation) -> Tracing | NoTracing:
    """Makes the tracing. It does nothing if the flags ask for neither spans nor the log of slow requests.

    Raises InvalidConfig if OpenTelemetry is configured but not installed.
    """
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


def make_routes(foundation: Foundation, parts: MonitoredParts) -> list[BaseRoute]:
    """Makes the routes of the metrics, the swaps and the page."""
    return [
        *metrics_routes(MetricsExposition(parts), foundation.config.metrics_path),
        *swap_routes(parts.swaps),
        *page_routes(PageData(parts)),
    ]


def make_monitored_parts(
    foundation: Foundation,
    versions: Versions,
    models: Models,
    *,
    requests: RequestParts,
    grpc: GrpcServer,
    health: HealthReporter,
    refusals: ConfigRefusals,
    tracing: Tracing | NoTracing,
) -> MonitoredParts:
    """Collects the parts whose figures the metrics and the page show."""
    return MonitoredParts(
        plane=foundation.data_plane,
        requests=requests.statistics,
        admission=requests.admission,
        budget=requests.memory.budget,
        grpc=grpc,
        monitor=versions.monitor,
        streams=versions.streams,
        served=models.served,
        reloader=models.reloader,
        pollers=models.pollers,
        swaps=versions.swaps,
        batches=versions.batches,
        reservoirs=versions.reservoirs,
        request_logs=versions.request_logs,
        slab_pool=versions.slab_pool,
        accelerators=() if versions.accelerator is None else versions.accelerator.accelerators,
        tuning_of=versions.tuning_of,
        gpu=versions.gpu,
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
