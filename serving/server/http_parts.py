"""The parts that answer over HTTP."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from serving.config.server_config import HttpPort, ServerConfig
from serving.data_plane.plane import DataPlane
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import Admission, RestWorkers, SpanBuffer
from serving.data_plane.servables import ServingMap
from serving.http.app import HttpAppSettings, make_http_app
from serving.http.hosts import HostGuard, host_rule, own_name
from serving.http.server import HTTP_NICE, HttpServer
from serving.kserve.openapi import SCHEMAS as INFERENCE_SCHEMAS
from serving.kserve.openapi import inference_paths
from serving.loading.request_cores import RequestCores
from serving.rest.asgi import PrefixRouter, RestSettings
from serving.rest.bridge import RestBridge
from serving.rest.openapi import SCHEMAS as MODEL_SCHEMAS
from serving.rest.openapi import model_paths, openapi_document
from serving.rpc.request_memory import RequestMemory
from serving.server.foundation import Foundation

_log = structlog.get_logger(__name__)


REST_THREADS_PER_CORE = 4
"""As many threads as TensorFlow Serving has. One running thread takes a core; the other threads
serve models whose requests wait."""


REST_THREAD_COUNT_MIN = 2
"""With a single thread, one slow request would block all other requests."""


REST_WAITING_COUNT_MAX = 1_024
"""More than the connections that HTTP accepts, each of which has one request at a time."""


def make_rest_workers(
    foundation: Foundation,
    *,
    serving_map: ServingMap,
    request_statistics: RequestStatistics,
    spans: SpanBuffer | None,
    admission: Admission,
    memory: RequestMemory,
) -> RestWorkers:
    asked = foundation.config.rest_api_num_threads or REST_THREADS_PER_CORE * (os.cpu_count() or 1)
    used = max(REST_THREAD_COUNT_MIN, asked)
    if used > asked:
        _log.info("thread_count_raised", executor="rest", asked=asked, used=used)
    return foundation.data_plane.RestWorkers(
        serving_map,
        thread_count=used,
        nice=HTTP_NICE,
        waiting_count_max=REST_WAITING_COUNT_MAX,
        body_bytes_max=foundation.config.rest_api_max_body_bytes,
        request_statistics=request_statistics,
        spans=spans,
        admission=admission,
        reply_bytes_max=memory.limits.rest_reply_bytes_max,
        budget=memory.budget,
        first_version_wait_seconds=foundation.config.first_version_wait_seconds,
    )


def make_rest_bridge(
    foundation: Foundation, *, workers: RestWorkers, cores: RequestCores | None
) -> RestBridge:
    return RestBridge(
        workers,
        hold_cores=cores.hold if cores else lambda is_held: None,
        timeout_seconds=foundation.config.rest_api_timeout_in_ms / 1_000,
        status_error=foundation.data_plane.StatusError,
    )


def openapi(plane: DataPlane) -> dict[str, Any]:
    """Returns the OpenAPI document of both protocols."""
    return openapi_document(
        plane.build_info()["millpond"],
        {**model_paths(), **inference_paths()},
        {**MODEL_SCHEMAS, **INFERENCE_SCHEMAS},
    )


def rest_settings(config: ServerConfig, memory: RequestMemory) -> RestSettings:
    return RestSettings(
        timeout_seconds=config.rest_api_timeout_in_ms / 1_000,
        has_cors=config.rest_api_enable_cors_support,
        body_bytes_max=config.rest_api_max_body_bytes,
        budget=memory.budget,
    )


def make_http_server(
    config: ServerConfig,
    routes: Sequence[BaseRoute],
    rest: Mapping[str, ASGIApp],
    memory: RequestMemory,
) -> HttpServer:
    """Returns the HTTP server for `routes`, and for REST's applications by their path prefixes.

    The server does not listen if the configuration switches HTTP off.
    """
    port = config.rest_api_port
    if port.number and port.number == config.port:
        # It is HTTP's default port: an operator who gave it to gRPC does not expect HTTP there.
        _log.warning("http_off", reason=f"port {port} is gRPC's; use --rest_api_port")
        port = HttpPort(None)
    settings = HttpAppSettings(
        timeout_seconds=config.rest_api_timeout_in_ms / 1_000,
        has_cors=config.rest_api_enable_cors_support,
        body_bytes_max=config.rest_api_max_body_bytes,
        budget=memory.budget,
    )
    app = make_http_app(routes, settings)
    return HttpServer(
        app,
        entry=HostGuard(
            PrefixRouter(rest, otherwise=app),
            host_rule(config.http_hosts, config.host, own_name()),
        ),
        host=config.host,
        port=port,
        blocking_thread_count=config.rest_api_num_threads or 4 * (os.cpu_count() or 1),
    )
