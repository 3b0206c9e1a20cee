"""Drain: lets the running requests of a server end when it stops."""

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.data_plane.plane import GrpcServer
from serving.data_plane.requests import RestWorkers
from serving.http.server import RESPONSE_SECONDS, HttpServer
from serving.server.admin_listener import AdminListener

_log = structlog.get_logger(__name__)


def drain(
    drain_seconds: float,
    *,
    grpc: GrpcServer,
    admin: AdminListener,
    http: HttpServer,
    rest_workers: RestWorkers,
    clock: Clock,
) -> None:
    """Waits up to `drain_seconds` for the running requests, and then cuts them short.

    Requests over gRPC end first: until then HTTP reports the drain.
    """
    end_ns = clock.now_ns() + int(drain_seconds * NS_PER_SECOND)

    def remaining_seconds() -> float:
        return max(0, end_ns - clock.now_ns()) / NS_PER_SECOND

    if not grpc.shutdown(drain_seconds):
        _log.warning("requests_cut_short", drain_seconds=drain_seconds)
    # Only now: operators can watch the drain until here.
    admin.stop()
    # The port closes before the workers do, or they would refuse what still comes in there.
    http.stop(remaining_seconds() + RESPONSE_SECONDS)
    http.join(remaining_seconds())
    if not rest_workers.shutdown(remaining_seconds()):
        _log.warning("http_requests_cut_short", drain_seconds=drain_seconds)
