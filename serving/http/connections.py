"""HTTP connections: uvicorn's protocol, with limits on idle, slow and oversized clients."""

import asyncio
import json
from asyncio.events import TimerHandle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTION_EXTENSION = "millpond.connection"
"""The name of a request's connection among the extensions of its ASGI scope."""

FIRST_REQUEST_SECONDS = 1.0
"""How long a stop waits for the first request of a new connection. A client usually sends it right
after the handshake. A probe that only opens the port sends no request."""

_TRANSFER_ENCODING_REMEDY = "send 'chunked' alone, or Content-Length alone"


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """The limits of one client."""

    # The largest request line and headers together. Clients rarely send more than 8 KiB, because many
    # servers allow no more.
    head_bytes_max: int = 32 * 2**10
    # The time in which a head must arrive, from the start of the connection or from the first byte of
    # a later request. It is longer than three retransmissions take. It stops a client that sends one
    # byte a second (slow loris).
    head_seconds: float = 10.0
    # Longer than the 60 s for which balancers and Prometheus keep an idle connection, so that they
    # close it first. If the server closed it first, a request sent at the same moment would be lost.
    keep_alive_seconds: int = 75
    # A client that has taken nothing of its response for this long is gone or asleep.
    write_stall_seconds: float = 30.0
    # Half of the 1,024 descriptors that a process commonly has; gRPC has the others.
    connection_count_max: int = 512


class _Phase(Enum):
    """The part of a request that a connection's next byte belongs to."""

    BETWEEN = "between two requests"
    HEAD = "head"
    BODY = "body"


class GuardedConnection(HttpToolsProtocol):
    """One connection, on the HTTP thread. Refuses with 400, 408, 431 or 503, and then closes.

    If there are too many connections, a new connection replaces the connection that has been idle
    longest, so that idle clients do not keep probes out. Answers 503 only if every connection is busy
    with a request.
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._phase = _Phase.BETWEEN
        self._head_bytes = 0
        self._idle_since = 0.0
        self._received = b""
        self._head_timer: TimerHandle | None = None
        self._stall_timer: TimerHandle | None = None
        self._silence_timer: TimerHandle | None = None
        # Called once the client is gone; set by the request that is being answered.
        self.on_lost: Callable[[], None] | None = None

    @staticmethod
    def is_stopping() -> bool:
        """Returns True if each response closes its connection, because the port is about to close."""
        return False

    @property
    def has_whole_request(self) -> bool:
        """True if the last byte received ended a request."""
        return self._phase is _Phase.BETWEEN

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered. A request counts once its head is complete."""
        # uvicorn's annotation leaves out that `cycle` is None before the first request.
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    @property
    def idle_since(self) -> float:
        """The end of its last response, or its start, in seconds of the event loop's clock."""
        return self._idle_since

    async def wait_until_sent(self) -> None:
        """Waits until the kernel has every byte written, or the client is gone."""
        await self.flow.drain()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Implements asyncio.Protocol."""
        super().connection_made(transport)
        # Pauses writing as soon as the kernel has not accepted every byte. So the stall timer also
        # covers the bytes that are left when the connection closes.
        transport.set_write_buffer_limits(high=0)
        self._idle_since = self.loop.time()
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_timed_out)
        if not self._enforce_connection_limit():
            busy = f"all {self.limits.connection_count_max} connections are busy; try again later"
            self._refuse(503, busy)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implements asyncio.Protocol."""
        self._end_head_timer()
        self._end_stall_timer()
        self._end_silence_timer()
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Implements uvicorn's protocol for a stop of the server.

        Still answers a request whose head has begun to arrive, and the first request of a new
        connection.
        """
        is_new = self.cycle is None
        if self._phase is _Phase.HEAD:
            return
        if not is_new or self.transport.is_closing():
            super().shutdown()
            return
        self._silence_timer = self.loop.call_later(FIRST_REQUEST_SECONDS, self._close_if_silent)

    def data_received(self, data: bytes) -> None:
        """Implements asyncio.Protocol."""
        if self.transport.is_closing():
            return
        if self._phase is _Phase.BETWEEN:
            self._head_bytes = 0
        was_body = self._phase is _Phase.BODY
        self._received = data
        super().data_received(data)
        self._received = b""
        if self.transport.is_closing():
            return
        if self._phase is _Phase.HEAD and not was_body:
            # Counts bytes that the parser has not reported: it buffers an unfinished name or value.
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes_max:
                self._refuse_head()
                return
        self._update_head_timer()

    def pause_writing(self) -> None:
        """Implements asyncio.Protocol: the client is slower than the response."""
        super().pause_writing()
        self._end_stall_timer()
        self._stall_timer = self.loop.call_later(
            self.limits.write_stall_seconds, self.transport.abort
        )

    def resume_writing(self) -> None:
        """Implements asyncio.Protocol."""
        self._end_stall_timer()
        super().resume_writing()

    def on_message_begin(self) -> None:
        """Implements the parser's callback."""
        self._phase = _Phase.HEAD
        super().on_message_begin()
        # ASGI's place for a server's own additions.
        self.scope["extensions"] = {CONNECTION_EXTENSION: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        """Implements the parser's callback."""
        self._phase = _Phase.BODY
        head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if head_bytes > self.limits.head_bytes_max:
            self._refuse_head()
        elif fault := transfer_encoding_fault(self.headers):
            self._refuse(400, fault)
        else:
            super().on_headers_complete()
            if self.is_stopping():
                # uvicorn closes the connection after the response, and announces it to the client.
                self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Implements the parser's callback. Drops the body of a refused request."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Implements the parser's callback."""
        self._phase = _Phase.BETWEEN
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Implements uvicorn's callback: a whole response was written."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Implements uvicorn's protocol: the bytes received are not HTTP."""
        if not self.transport.is_closing():
            # The parser does not report the header that it refuses, so this searches the received
            # bytes for it.
            is_head = self._phase is _Phase.HEAD
            is_encoding = is_head and b"transfer-encoding" in self._received.lower()
            fault = f"invalid use of Transfer-Encoding; {_TRANSFER_ENCODING_REMEDY}"
            self._refuse(400, fault if is_encoding else msg)

    # --- Bounds -----------------------------------------------------------------------------------

    def _enforce_connection_limit(self) -> bool:
        """Closes the connection that has been idle longest if there are too many connections.

        Returns False if there are too many and none of them is idle.
        """
        others = [
            other
            for other in self.connections
            if isinstance(other, GuardedConnection)
            and other is not self
            and not other.transport.is_closing()
        ]
        if len(others) < self.limits.connection_count_max:
            return True
        idlest = longest_idle(others)
        if idlest is None:
            return False
        idlest.transport.close()
        return True

    def _update_head_timer(self) -> None:
        # Bytes that arrive on an idle connection belong to the head of a request, or to a body that is
        # not read.
        if not self.is_idle:
            self._end_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_timed_out)

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self._phase is _Phase.HEAD and not self.transport.is_closing():
            self._refuse(408, f"no complete request in {self.limits.head_seconds:g} s")
        else:
            self.transport.close()

    def _close_if_silent(self) -> None:
        self._silence_timer = None
        if self._phase is _Phase.BETWEEN and self.is_idle:
            self.transport.close()

    def _refuse_head(self) -> None:
        bytes_max = self.limits.head_bytes_max
        self._refuse(
            431, f"the request line and headers are longer than {bytes_max} bytes; shorten them"
        )

    def _refuse(self, status: int, message: str) -> None:
        """Answers without the application, and closes."""
        body = json.dumps({"error": message}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        # Writes nothing if a response is under way to a client that pipelines: the refusal would land
        # in the middle of it.
        if self.is_idle:
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _end_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_silence_timer(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None

    def _end_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def transfer_encoding_fault(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Returns why a body with these headers cannot be read, with the remedy; "" if it can. Pure.

    If a server and a proxy disagree about the end of a body, one client's bytes can be read as another
    client's request. So only `chunked` is accepted, which every proxy supports.
    """
    encodings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if not encodings:
        return ""
    if [value.strip(b" \t").lower() for value in encodings] == [b"chunked"]:
        return ""
    given = b", ".join(encodings).decode("latin-1")
    return f"Transfer-Encoding {given!r} is not supported; {_TRANSFER_ENCODING_REMEDY}"


def connection_class(
    limits: ConnectionLimits, is_stopping: Callable[[], bool] = lambda: False
) -> type[GuardedConnection]:
    """Returns the class of one server's connections.

    While `is_stopping` returns True, each response closes its connection.
    """
    members = {"limits": limits, "is_stopping": staticmethod(is_stopping)}
    return type("LimitedConnection", (GuardedConnection,), members)


def longest_idle(connections: Iterable[GuardedConnection]) -> GuardedConnection | None:
    """Returns the connection that has been idle longest; None if every connection is busy. Pure."""
    idle = [connection for connection in connections if connection.is_idle]
    return min(idle, key=lambda connection: connection.idle_since, default=None)
