"""Drains a server that stops: lets its running requests end."""

import threading

import structlog

from serving.base.clock import NS_PER_SECOND, Clock, pause
from serving.data_plane.requests import GrpcServer
from serving.http.listener import HttpListener
from serving.server.admin_listener import AdminListener

REPORT_SECONDS_MAX = 5.0
"""The longest that a member of a fleet waits until its coordinator asks for a report, as it does each second.

If no coordinator runs, HAProxy's checks and clients that watch gRPC's health find the drain in this time.
"""

READERS_SECONDS = 2.0
"""The time that HAProxy and clients need, after a report, to leave a server that drains.

The coordinator writes its files within a second (`poll_seconds`). Then HAProxy starts a process that reads
its file.
"""

_log = structlog.get_logger(__name__)


class DrainNotice:
    """Lets a member of a fleet serve on until proxies and clients know that it drains.

    Without this wait, a server with short requests would be gone before its coordinator polls it again, and
    the requests that a proxy still sends it would fail.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Guards `_is_reported`.
        self._changed = threading.Condition()
        self._is_reported = False

    def note_report(self) -> None:
        """Notes that the coordinator has got a report that shows the drain. Any thread."""
        with self._changed:
            self._is_reported = True
            self._changed.notify_all()

    def wait(self, drain_seconds: float) -> None:
        """Waits up to REPORT_SECONDS_MAX for a report, and after a report for READERS_SECONDS more.

        Each of these waits takes `drain_seconds` at most, because an operator who gives requests no time does
        not want to wait here either.
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

    Requests over gRPC end first, because HTTP should report the drain until then.
    """
    end_ns = clock.now_ns() + int(drain_seconds * NS_PER_SECOND)

    def remaining_seconds() -> float:
        return max(0, end_ns - clock.now_ns()) / NS_PER_SECOND

    if not grpc.shutdown(drain_seconds):
        _log.warning("requests_cut_short", drain_seconds=drain_seconds)
    # The listener for operators stops only now, so that they can watch the drain.
    admin.stop()
    if not grpc.shutdown_http(remaining_seconds()):
        _log.warning("http_requests_cut_short", drain_seconds=drain_seconds)
    http.stop()
