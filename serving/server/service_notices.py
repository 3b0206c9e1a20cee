"""Sends notices to the service manager: that a server is ready, its status, and that it still answers."""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from serving.base.service_manager import ServiceManager

STATUS_SECONDS = 5.0
"""The status line is made again at least this often. A change of a model's state is reported at once."""

PROBE_SECONDS = 2.0
"""The longest that a probe waits for an answer."""

# The client's preface of HTTP/2, and an empty SETTINGS frame (RFC 9113, sections 3.4 and 6.5).
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """The state of a server, as its service manager should see it."""

    is_ready: bool
    model_count: int
    unavailable: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The status line."""
        ready_count = self.model_count - len(self.unavailable)
        line = f"{ready_count} of {self.model_count} models available"
        if not self.unavailable:
            return line
        more = len(self.unavailable) - 3
        others = f" and {more} more" if more > 0 else ""
        return f"{line}; not available: {', '.join(self.unavailable[:3])}{others}"


class ServiceNotices:
    """Reports each change of a server's state, and WATCHDOG=1 while the server answers. One thread."""

    def __init__(
        self,
        manager: ServiceManager,
        state: Callable[[], ServiceState],
        is_answering: Callable[[], bool],
    ) -> None:
        self._manager = manager
        self._state = state
        self._is_answering = is_answering
        self._is_ready = False
        self._status = ""

    def wait_seconds(self) -> float | None:
        """The time until `report` should be called again; None if there is no service manager."""
        if not self._manager.is_there:
            return None
        watchdog_seconds = self._manager.watchdog_seconds
        if watchdog_seconds is None:
            return STATUS_SECONDS
        # A third of the limit, so that the service manager does not end the server for one late answer.
        return min(STATUS_SECONDS, watchdog_seconds / 3)

    def report(self) -> None:
        """Sends all that has changed since the last call, and WATCHDOG=1 if the server answers."""
        if not self._manager.is_there:
            return
        state = self._state()
        if state.text != self._status:
            self._status = state.text
            self._manager.notify(STATUS=self._status)
        if state.is_ready and not self._is_ready:
            self._is_ready = True
            self._manager.notify(READY=1)
        if self._manager.watchdog_seconds is not None and self._is_answering():
            self._manager.notify(WATCHDOG=1)

    def report_stop(self) -> None:
        """Reports that the server drains."""
        self._manager.notify(STOPPING=1, STATUS="draining")


def answers_http(host: str, port: int, *, has_tls: bool) -> bool:
    """True if the server answers `/healthz` with 200.

    A port with TLS answers 400, because the request is plain. That also shows that a request thread
    answers.
    """
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    expected = b" 400 " if has_tls else b" 200 "
    return expected in _answer(host, port, request)[:16]


def answers_grpc(host: str, port: int) -> bool:
    """True if a request thread answers a new connection.

    With TLS the answer is an alert, which shows just as well that a thread answers.
    """
    return bool(_answer(host, port, _HTTP2_HELLO))


def _answer(host: str, port: int, request: bytes) -> bytes:
    """The first bytes of the answer; b"" if none comes in time."""
    with suppress(OSError), socket.create_connection((local(host), port), PROBE_SECONDS) as own:
        own.sendall(request)
        return own.recv(64)
    return b""


def local(host: str) -> str:
    """The address at which this machine reaches its own listener on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
