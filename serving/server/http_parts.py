"""The parts that answer over HTTP."""

import os
from collections.abc import Mapping, Sequence

import structlog
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from serving.config.server_config import HttpPort, ServerConfig
from serving.data_plane.requests import ByteBudget, RestWorkers
from serving.data_plane.status_errors import statuses_as_errors
from serving.http.app import HttpSettings, make_http_app
from serving.http.connections import ConnectionLimits
from serving.http.descriptors import connection_count_max
from serving.http.hosts import HostGuard, host_rule, own_name
from serving.http.server import HTTP_NICE, HttpServer
from serving.kserve.inference_api import InferenceApi
from serving.kserve.questions import InferenceQuestions
from serving.loading.request_cores import RequestCores
from serving.manager.state_monitor import StateMonitor
from serving.reload.served_models import ServedModels
from serving.rest.asgi import PrefixRouter
from serving.rest.bridge import RestBridge
from serving.rest.model_api import ModelApi, ModelQuestions
from serving.rpc.rare_calls import Handler
from serving.server.admin_parts import make_operator_access
from serving.server.foundation import Foundation
from serving.server.request_parts import RequestParts

_log = structlog.get_logger(__name__)


MODELS_PREFIX = "/v1/models"
"""The path prefix of TensorFlow Serving's REST API."""

REST_THREADS_PER_CORE = 4
"""As many threads as TensorFlow Serving has. One running thread takes a core; the other threads
serve models whose requests wait. A core that this process may not run on does not count."""


REST_THREAD_COUNT_MIN = 2
"""With a single thread, one slow request would block all other requests."""


REST_SPARE_THREAD_COUNT = 2
"""The threads beside those that endless requests of one model can take: one for a second such model, and
one for all others. Without a model that takes all the rest they are idle."""

REST_WAITING_COUNT_MAX = 1_024
"""More than the connections that HTTP accepts, each of which has one request at a time."""


def make_rest_workers(
    foundation: Foundation,
    *,
    requests: RequestParts,
) -> RestWorkers:
    requested = foundation.config.rest_api_num_threads or _default_thread_count()
    used = max(REST_THREAD_COUNT_MIN, requested)
    if used > requested:
        _log.info("thread_count_raised", executor="rest", requested=requested, used=used)
    return foundation.data_plane.RestWorkers(
        requests.serving_map,
        thread_count=used,
        spare_count=REST_SPARE_THREAD_COUNT,
        nice=HTTP_NICE,
        waiting_count_max=REST_WAITING_COUNT_MAX,
        body_bytes_max=foundation.config.max_request_bytes,
        request_statistics=requests.statistics,
        spans=requests.spans,
        admission=requests.admission,
        reply_bytes_max=requests.memory.limits.rest_reply_bytes_max,
        budget=requests.memory.budget,
        first_version_wait_seconds=foundation.config.first_version_wait_seconds,
    )


def make_rest_bridge(
    foundation: Foundation, *, workers: RestWorkers, cores: RequestCores | None
) -> RestBridge:
    return RestBridge(
        workers,
        cores=cores,
        timeout_seconds=foundation.config.rest_api_timeout_in_ms / 1_000,
        status_error=foundation.data_plane.StatusError,
    )


def http_settings(config: ServerConfig, budget: ByteBudget) -> HttpSettings:
    return HttpSettings(
        timeout_seconds=config.rest_api_timeout_in_ms / 1_000,
        has_cors=config.rest_api_enable_cors_support,
        body_bytes_max=config.max_request_bytes,
        budget=budget,
    )


def make_rest_applications(
    foundation: Foundation,
    settings: HttpSettings,
    *,
    workers: RestWorkers,
    bridge: RestBridge,
    get_model_status: Handler,
    inference_questions: InferenceQuestions,
    served: ServedModels,
    monitor: StateMonitor,
) -> dict[str, ASGIApp]:
    """Makes the applications of TensorFlow Serving's REST API and of the open inference protocol.

    Each is under its path prefix.
    """
    questions = ModelQuestions(
        get_model_status=get_model_status,
        get_model_metadata=workers.get_model_metadata,
        served=served,
        monitor=monitor,
        status_error=foundation.data_plane.StatusError,
    )
    return {
        MODELS_PREFIX: ModelApi(bridge, questions, settings),
        "/v2": InferenceApi(
            bridge,
            inference_questions,
            settings,
            check_control=make_operator_access(foundation.config).check_control,
        ),
    }


def make_http_server(
    foundation: Foundation,
    settings: HttpSettings,
    routes: Sequence[BaseRoute],
    rest: Mapping[str, ASGIApp],
) -> HttpServer:
    """Makes the HTTP server for `routes` and for the `rest` of `make_rest_applications`.

    The server does not listen if the configuration switches HTTP off.
    """
    config = foundation.config
    port = config.rest_api_port
    if port.number and port.number == config.port and not port.descriptors:
        # It is HTTP's default port: an operator who gave it to gRPC does not expect HTTP there.
        _log.warning("http_off", reason=f"port {port} is gRPC's; use --rest_api_port")
        port = HttpPort(None)
    # Any other path below /v1 is answered as malformed, as in TensorFlow Serving.
    malformed = Mount("/v1", rest[MODELS_PREFIX])
    app = make_http_app([*routes, malformed], settings)
    return HttpServer(
        app,
        entry=HostGuard(
            PrefixRouter(rest, otherwise=app),
            host_rule(config.http_hosts, config.http_host, own_name()),
        ),
        host=config.http_host,
        port=port,
        limits=ConnectionLimits(
            connection_count_max=connection_count_max(ConnectionLimits.connection_count_max)
        ),
        blocking_thread_count=config.rest_api_num_threads or _default_thread_count(),
        probes=[config.metrics_path] if config.metrics_path else [],
        budget=settings.budget,
    )


def start_http(foundation: Foundation, http: HttpServer, workers: RestWorkers) -> None:
    """Starts the server and the workers that answer its requests. Raises Unavailable, InvalidConfig."""
    with statuses_as_errors(foundation.data_plane.StatusError):
        workers.start()
    try:
        http.start()
    finally:
        # Only the HTTP server gives the workers requests.
        if http.port is None:
            workers.shutdown(0)


def _default_thread_count() -> int:
    return REST_THREADS_PER_CORE * len(os.sched_getaffinity(0))
