"""Makes the parts that answer over HTTP."""

import os
from collections.abc import Mapping, Sequence

import structlog
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from serving.config.server_config import HttpPort, ServerConfig
from serving.data_plane.requests import GrpcServer, HttpOptions, ServerCertificates
from serving.http.app import HttpSettings, make_http_app
from serving.http.front import HttpFront
from serving.http.hosts import host_rule, own_name
from serving.http.listener import HttpListener
from serving.kserve.inference_api import InferenceApi
from serving.kserve.questions import InferenceQuestions
from serving.manager.state_monitor import StateMonitor
from serving.reload.served_models import ServedModels
from serving.rest.asgi import PrefixRouter
from serving.rest.model_api import ModelApi, ModelQuestions
from serving.rpc.rare_calls import Handler
from serving.server.admin_parts import make_operator_access
from serving.server.foundation import Foundation
from serving.server.request_parts import RequestParts

_log = structlog.get_logger(__name__)

MODELS_PREFIX = "/v1/models"
"""The path prefix of TensorFlow Serving's REST API."""

PAGE_THREADS_PER_CORE = 4
"""The default number of threads for handlers that block, because they wait for a load or read long documents."""

HTTP_CONNECTION_COUNT_MAX = 2_000
"""The most HTTP connections at the same time.

If another one comes, an idle connection is closed for it, or else the connection whose body comes slowest.
"""


def http_options(
    config: ServerConfig, requests: RequestParts, certificates: ServerCertificates | None
) -> HttpOptions:
    """The options of HTTP for the data plane, which owns the connections."""
    names = host_rule(config.http_hosts, config.http_host, own_name()).names
    return HttpOptions(
        hosts=None if names is None else sorted(names),
        probe_paths=[config.metrics_path.lower()] if config.metrics_path else [],
        has_cors=config.rest_api_enable_cors_support,
        body_bytes_max=config.max_request_bytes,
        reply_bytes_max=requests.memory.limits.rest_reply_bytes_max,
        request_seconds_max=config.rest_api_timeout_in_ms / 1_000,
        connection_count_max=HTTP_CONNECTION_COUNT_MAX,
        certificates=certificates,
    )


def make_rest_applications(
    foundation: Foundation,
    *,
    get_model_status: Handler,
    inference_questions: InferenceQuestions,
    served: ServedModels,
    monitor: StateMonitor,
) -> dict[str, ASGIApp]:
    """Makes Python's part of TensorFlow Serving's REST API and of the open inference protocol.

    Returns an application for each, by the prefix of its paths.
    """
    config = foundation.config
    questions = ModelQuestions(
        get_model_status=get_model_status,
        served=served,
        monitor=monitor,
    )
    return {
        MODELS_PREFIX: ModelApi(questions),
        "/v2": InferenceApi(
            inference_questions,
            config.rest_api_timeout_in_ms / 1_000,
            check_control=make_operator_access(config).check_control,
        ),
    }


def make_http(
    foundation: Foundation,
    grpc: GrpcServer,
    routes: Sequence[BaseRoute],
    rest: Mapping[str, ASGIApp],
) -> HttpListener:
    """Makes HTTP with `routes`, and with the applications `rest` of `make_rest_applications`.

    It does not listen if the configuration switches HTTP off.
    """
    config = foundation.config
    port = config.rest_api_port
    if port.number and port.number == config.port and not port.descriptors:
        # The operator has given HTTP's default port to gRPC, and so does not expect HTTP there.
        _log.warning("http_off", reason=f"port {port} is gRPC's; use --rest_api_port")
        port = HttpPort(None)
    # Any other path below /v1 is answered as malformed, as in TensorFlow Serving.
    malformed = Mount("/v1", rest[MODELS_PREFIX])
    # The data plane adds the CORS headers and limits the bodies, so `HttpSettings` needs neither.
    settings = HttpSettings(timeout_seconds=config.rest_api_timeout_in_ms / 1_000)
    app = make_http_app([*routes, malformed], settings)
    front = HttpFront(
        PrefixRouter(rest, otherwise=app),
        grpc.take_http_call,
        blocking_thread_count=config.rest_api_num_threads or _default_thread_count(),
    )
    return HttpListener(
        host=config.http_host,
        port=port,
        socket_path=config.rest_api_socket_path,
        server=grpc,
        front=front,
    )


def _default_thread_count() -> int:
    return PAGE_THREADS_PER_CORE * len(os.sched_getaffinity(0))
