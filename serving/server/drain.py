"""Drain: lets the running requests of a server end when it stops."""

import threading

import structlog

from serving.base.clock import NS_PER_SECOND, Clock, pause
from serving.data_plane.requests import GrpcServer
from serving.http.listener import HttpListener
from serving.server.admin_listener import AdminListener

REPORT_SECONDS_MAX = 5.0
"""The longest wait of a fleet's member for its coordinator, which asks once a second. Without one, two
checks of HAProxy and gRPC's watch of health find in this time that the server does not serve."""

READERS_SECONDS = 2.0
"""The time after a report until HAProxy and clients have left a server that drains. The coordinator writes its
files within a second (`poll_seconds`), and then HAProxy starts a process that reads its file."""

_log = structlog.get_logger(__name__)


class DrainNotice:
    """Keeps a member of a fleet serving until its coordinator has reported the drain to others.

    Otherwise a server with short requests would be gone before its coordinator polls it again, and
    requests that a proxy still sends it would fail.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Guards the member below.
        self._changed = threading.Condition()
        self._is_reported = False

    def note_report(self) -> None:
        """Called after each report that shows the drain. Any thread."""
        with self._changed:
            self._is_reported = True
            self._changed.notify_all()

    def wait(self, drain_seconds: float) -> None:
        """Waits until READERS_SECONDS after a report, or for REPORT_SECONDS_MAX without one.

        Each of both waits is `drain_seconds` at most: an operator who gives the requests no time has no time
        for this.
        """
        patience_ns = int(min(REPORT_SECONDS_MAX, drain_seconds) * NS_PER_SECOND)
        end_ns = self._clock.now_ns() + patience_ns
        with self._changed:
            while not self._is_reported and self._clock.now_ns() < end_ns:
                self._clock.wait(self._changed, (end_ns - self._clock.now_ns()) / NS_PER_SECOND)
            is_reported = self._is_reported
        if is_reported:
            pause(self._clock, min(READERS_SECONDS, drain_seconds))
        else:
            _log.warning("drain_not_reported", reason="no coordinator has polled this server")


def drain(
    drain_seconds: float,
    *,
    grpc: GrpcServer,
    admin: AdminListener,
    http: HttpListener,
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
    if not grpc.shutdown_http(remaining_seconds()):
        _log.warning("http_requests_cut_short", drain_seconds=drain_seconds)
    http.stop()
