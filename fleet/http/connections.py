"""HTTP connections: uvicorn's protocol, with limits on clients that are idle, slow or send too much."""

import asyncio
import json
from asyncio.events import TimerHandle
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fleet.http.heads import TRANSFER_ENCODING_REMEDY, head_fault, without_upgrade
from serving.http.listeners import has_unread_bytes

FIRST_REQUEST_SECONDS = 1.0
"""The longest that a stop waits for the first request of a new connection.

A client usually sends its first request right after the handshake. A probe that only opens the port sends
no request.
"""

SILENT_SECONDS = 0.3
"""A new connection that has been silent for this long may lose its place to another connection.

It must not lose its place earlier, because a client usually sends its first request right after the
handshake, and that request would be lost.
"""

READ_BYTES_MAX = 32 * 2**10
"""The bytes that are read from one connection before the other connections get their turn."""

PIECE_BYTES = 2**10
"""The bytes that the parser gets at a time. A body of known length is one piece.

The parser cannot stop within a piece. So a piece is small enough to have few heads, and few requests have to
wait behind the request that is being answered.
"""

PIPELINED_COUNT_MAX = 16
"""The requests that may wait behind the request that is being answered. Further bytes wait unread."""

CHUNK_FRAMING_BYTES = 24
"""The bytes that a chunk may have beside its data: its size, two line ends, and a short extension."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """The limits on the connections of an HTTP server."""

    # The most bytes of a request line and its headers together. Clients rarely send more than 8 KiB, because
    # many servers allow no more. The trailers and chunk extensions of one body have the same limit.
    head_bytes_max: int = 32 * 2**10
    # The most headers of a request. Proxies and meshes add a few dozen. The number is limited because a short
    # header takes a hundred times its bytes in memory.
    field_count_max: int = 200
    # The time in which a head must arrive, from the start of the connection or the first byte of a later
    # request. It stops clients that send a byte a second (slow loris), and is long enough for three
    # retransmissions.
    head_seconds: float = 10.0
    # The time after which an idle connection is closed. Balancers and Prometheus close idle connections after
    # 60 s. They should do so first, because a request that is sent just when the server closes is lost.
    keep_alive_seconds: int = 75
    # The time after which a connection is closed if its client takes no byte of a response.
    write_stall_seconds: float = 30.0
    # The most connections. It is half of the 1,024 descriptors that a process commonly has.
    connection_count_max: int = 512


class Phase(Enum):
    """The part of a request to which the next byte of a connection belongs."""

    BETWEEN = "between two requests"
    HEAD = "head"
    BODY = "body"


class GuardedConnection(HttpToolsProtocol):
    """One connection, on one loop's thread. Refuses with 400, 408, 431, 501 or 503, and then closes.

    If there are too many connections, a new connection replaces the connection that has been idle longest. A
    connection whose first request may be on its way does not count as idle here. If no connection is idle, the
    new connection replaces the connection whose body comes slowest. If there is no such connection either, the
    new connection gets a 503.

    Requests are answered in their order, also if a client sends many before it reads (pipelining). A
    refusal comes after the answers to the requests before it. Upgrade is ignored (RFC 9110, 7.8).
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._phase = Phase.BETWEEN
        # The members up to `_has_message_ended` are about the request that is being received.
        self._head_bytes = 0
        self._body_bytes_left = 0
        self._framing_bytes = 0
        self._body_piece_count = 0
        self._is_head_repeated = False
        self._has_message_ended = False
        # Bytes that were received and are not parsed yet.
        self._unread = b""
        # The bytes that the parser has now.
        self._piece: bytes | memoryview = b""
        # The requests without an answer, in the order in which they came.
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._body_begin = 0.0
        self._body_received_bytes = 0
        # The response that refuses a request. It is sent once the requests before that one are answered.
        self._refusal: bytes | None = None
        self._idle_since = 0.0
        self._head_timer: TimerHandle | None = None
        self._stall_timer: TimerHandle | None = None
        self._silence_timer: TimerHandle | None = None

    @staticmethod
    def is_stopping() -> bool:
        """True if each response should close its connection, because the port is about to close."""
        return False

    def begin_with(self, received: bytes) -> None:
        """Gives a new connection the bytes that were read from its socket before."""
        self._unread = received

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered. A request counts from the end of its head on."""
        # uvicorn's annotation hides that `cycle` is None before the first request.
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    @property
    def idle_since(self) -> float:
        """The time at which the last response ended, or the connection began, on the event loop's clock."""
        return self._idle_since

    @property
    def body_rate(self) -> float | None:
        """The bytes per second at which the body of its only request comes.

        None if it waits for no body, has waited for less than SILENT_SECONDS, or has bytes to read.
        """
        waits = self._phase is Phase.BODY and len(self._unanswered) == 1
        if not waits or self.cycle.response_started or self.flow.read_paused:
            return None
        seconds = self.loop.time() - self._body_begin
        if seconds < SILENT_SECONDS or self._has_unread_bytes:
            return None
        return self._body_received_bytes / seconds

    def give_place_up(self) -> None:
        """Gives up its place: refuses the request whose body it waits for."""
        count = self.limits.connection_count_max
        self._refuse(
            408,
            f"the request's body came slowest while all {count} connections were busy; send it again",
        )

    @property
    def is_silent(self) -> bool:
        """True if no request is being answered, and it is unlikely that a request is on its way.

        A connection with unread bytes is not silent, because closing it would lose its client's request.
        """
        return self.is_idle and self._had_its_time and not self._has_unread_bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Implements asyncio.Protocol."""
        super().connection_made(transport)
        # With this limit, asyncio calls `pause_writing` as soon as the kernel has not accepted every byte. So
        # the stall timer also covers the last bytes before the connection closes.
        transport.set_write_buffer_limits(high=0)
        # asyncio's transport reads `max_size` bytes at a time.
        transport.max_size = READ_BYTES_MAX  # type: ignore[attr-defined]
        self._idle_since = self.loop.time()
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_timed_out)
        if not self._enforce_connection_limit():
            busy = f"all {self.limits.connection_count_max} connections are busy; try again later"
            self._refuse(503, busy)
        elif self._unread:
            self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implements asyncio.Protocol."""
        self._end_head_timer()
        self._end_stall_timer()
        self._end_silence_timer()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Implements uvicorn's protocol for a stop of the server.

        Still answers a request whose head has begun to arrive, and the first request of a new
        connection.
        """
        is_new = self.cycle is None
        if self._phase is Phase.HEAD:
            return
        if not is_new or self.transport.is_closing():
            super().shutdown()
            return
        self._silence_timer = self.loop.call_later(FIRST_REQUEST_SECONDS, self._close_if_silent)

    def data_received(self, data: bytes) -> None:
        """Implements asyncio.Protocol."""
        if self._is_refused:
            return
        self._unread += data
        self._read_on()

    def pause_writing(self) -> None:
        """Implements asyncio.Protocol, which calls it if the client is slower than the response."""
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
        self._phase = Phase.HEAD
        self._head_bytes = 0
        self._body_bytes_left = 0
        self._framing_bytes = 0
        self._body_piece_count = 0
        self._body_received_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Implements the parser's callback. Drops trailers, which no application here reads."""
        if self._is_refused or self._phase is Phase.BODY:
            return
        super().on_header(name, value)
        if len(self.headers) > self.limits.field_count_max:
            self._refuse(
                431, f"the request has more than {self.limits.field_count_max} headers; send fewer"
            )

    def on_headers_complete(self) -> None:
        """Implements the parser's callback."""
        if self._is_refused:
            return
        method, version = self.parser.get_method(), self.parser.get_http_version()
        head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if head_bytes > self.limits.head_bytes_max:
            self._refuse_head()
        elif method == b"CONNECT":
            self._refuse(501, "CONNECT is not supported; this server is no proxy")
        elif fault := head_fault(version, self.url, self.headers):
            self._refuse(400, fault)
        elif self.parser.should_upgrade():
            self._is_head_repeated = True
        else:
            super().on_headers_complete()
            self._phase = Phase.BODY
            lengths = [value for name, value in self.headers if name == b"content-length"]
            self._body_bytes_left = int(lengths[0]) if lengths else 0
            self._unanswered.append(self.cycle)
            self._body_begin = self.loop.time()
            if self.is_stopping() or self._should_make_place():
                # uvicorn says so in the response, and then closes the connection.
                self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Implements the parser's callback. Drops the body of a refused request."""
        self._body_bytes_left -= len(body)
        self._framing_bytes -= len(body)
        self._body_piece_count += 1
        self._body_received_bytes += len(body)
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Implements the parser's callback."""
        if self._is_refused or self._is_head_repeated:
            return
        self._phase = Phase.BETWEEN
        self._has_message_ended = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Implements uvicorn's callback, which comes after a whole response was written."""
        self._unanswered.popleft()
        self._idle_since = self.loop.time()
        super().on_response_complete()
        self._send_due_refusal()
        if self._is_refused:
            return
        if self._unread:
            self._read_on()
        elif self._phase is Phase.HEAD:
            self._update_head_timer()

    # --- Parsing ----------------------------------------------------------------------------------

    @property
    def _is_refused(self) -> bool:
        """True if the connection was refused or is closing, so that nothing more is read."""
        return self._refusal is not None or self.transport.is_closing()

    def _read_on(self) -> None:
        """Parses the received bytes, and ends the timer of an idle connection."""
        self._unset_keepalive_if_required()
        self._parse_received()

    def _parse_received(self) -> None:
        """Parses the received bytes, until PIPELINED_COUNT_MAX requests wait."""
        received, at = memoryview(self._unread), 0
        while (
            at < len(received) and not self._is_refused and len(self.pipeline) < PIPELINED_COUNT_MAX
        ):
            piece = received[at : at + max(PIECE_BYTES, self._body_bytes_left)]
            at += len(piece)
            self._parse_counting(piece)
        self._unread = bytes(received[at:])
        if self._is_refused:
            self._unread = b""
            return
        if self._unread:
            # Reading goes on at the end of the next response.
            self.flow.pause_reading()
        self._update_head_timer()

    def _parse_counting(self, piece: memoryview) -> None:
        """Parses a piece. Refuses the request if its head, or the framing of its body's chunks, is too long.

        It counts the bytes that the parser gets, because the parser reports a header only once the header is
        complete.
        """
        phase = self._phase
        self._has_message_ended = False
        if phase is Phase.BODY:
            self._framing_bytes += len(piece)
        self._parse(piece)
        if self._is_refused:
            return
        if self._phase is Phase.HEAD and not self._has_message_ended:
            self._head_bytes += len(piece)
            if self._head_bytes > self.limits.head_bytes_max:
                self._refuse_head()
        elif self._phase is phase is Phase.BODY:
            allowed = self.limits.head_bytes_max + CHUNK_FRAMING_BYTES * self._body_piece_count
            if self._framing_bytes > allowed:
                self._refuse(
                    431, "the body's trailers and chunk extensions are too long; leave them out"
                )

    def _parse(self, piece: bytes | memoryview) -> None:
        self._piece = piece
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._is_head_repeated = False
            if not self._is_refused:
                self._repeat_head(memoryview(piece)[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse_syntax()
        self._piece = b""

    def _repeat_head(self, rest: memoryview) -> None:
        """Parses the head of a request once more, without its Upgrade header, and then `rest`.

        The parser ends a request with Upgrade after its head, and takes the body for the next request. So the
        parser must not see that header.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        head = without_upgrade(method, self.url, version, self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        for piece in (head, rest):
            if piece and not self._is_refused:
                self._parse(piece)

    # --- Bounds -----------------------------------------------------------------------------------

    def _enforce_connection_limit(self) -> bool:
        """Closes another connection if there are too many. Returns False if no other can be closed."""
        others = [other for other in self.connections if other is not self]
        return make_place(others, self.limits.connection_count_max)

    def _should_make_place(self) -> bool:
        """True if the response should close the connection, because other connections wait for its place."""
        return False

    @property
    def _had_its_time(self) -> bool:
        # A client that has had an answer expects the server to close the connection at some time. The
        # annotation of `cycle` is wrong (see `is_idle`).
        return self.cycle is not None or self._is_silence_over  # type: ignore[unreachable]

    @property
    def _is_silence_over(self) -> bool:
        return self.loop.time() - self._idle_since >= SILENT_SECONDS

    @property
    def _has_unread_bytes(self) -> bool:
        connection = self.transport.get_extra_info("socket")
        # A client that does not take its responses may send forever, so its bytes do not count.
        if connection is None or self.flow.write_paused:
            return False
        return has_unread_bytes(connection.fileno())

    def _update_head_timer(self) -> None:
        # The timer runs while the connection is idle, because bytes that arrive then belong to a head, or to a
        # body that is not read.
        if not self.is_idle:
            self._end_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_timed_out)

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self._phase is Phase.HEAD and not self.transport.is_closing():
            self._refuse(408, f"no complete request in {self.limits.head_seconds:g} s")
        else:
            self.transport.close()

    def _close_if_silent(self) -> None:
        self._silence_timer = None
        if self._phase is Phase.BETWEEN and self.is_idle:
            self.transport.close()

    def _refuse_head(self) -> None:
        bytes_max = self.limits.head_bytes_max
        self._refuse(
            431, f"the request line and headers are longer than {bytes_max} bytes; shorten them"
        )

    def _refuse_syntax(self) -> None:
        """Refuses bytes that are not HTTP, or for which a callback of the parser has raised an error."""
        # The parser does not name the header that it refuses, so the bytes are searched for it.
        is_head = self._phase is Phase.HEAD
        if is_head and b"transfer-encoding" in bytes(self._piece).lower():
            self._refuse(400, f"invalid use of Transfer-Encoding; {TRANSFER_ENCODING_REMEDY}")
        elif self._phase is Phase.BODY:
            self._refuse(
                400, "the body's chunks are not HTTP; send their sizes as RFC 9112, 7.1 says"
            )
        else:
            self._refuse(400, "Invalid HTTP request received.")

    def _refuse(self, status: int, message: str) -> None:
        """Answers instead of the application, after the answers to earlier requests, and then closes."""
        if self._is_refused:
            return
        body = json.dumps({"error": message}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        if self._phase is Phase.BODY and not self._withdraw_request():
            self.transport.close()
            return
        self._refusal = head.encode() + body
        self._end_head_timer()
        self.flow.pause_reading()
        self._send_due_refusal()

    def _withdraw_request(self) -> bool:
        """Keeps the application from answering the request whose body is refused.

        Returns False if the application has begun to answer it.
        """
        cycle = self.cycle
        if cycle.response_started:
            return False
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
        cycle.disconnected = True
        cycle.message_event.set()
        self._unanswered.pop()
        return True

    def _send_due_refusal(self) -> None:
        if self._refusal is None or self._unanswered or self.transport.is_closing():
            return
        self.transport.write(self._refusal)
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


def connection_class(
    limits: ConnectionLimits, is_stopping: Callable[[], bool]
) -> type[GuardedConnection]:
    """Makes the class of one server's connections.

    While `is_stopping` returns True, each response closes its connection.
    """
    members = {"limits": limits, "is_stopping": staticmethod(is_stopping)}
    return type("LimitedConnection", (GuardedConnection,), members)


def make_place(connections: Iterable[asyncio.Protocol], count_max: int) -> bool:
    """Closes a connection if there are `count_max`: the longest idle one, or else the one with the slowest body.

    Returns False if no connection can be closed. Then there is no place for one more.
    """
    present = [
        connection
        for connection in connections
        if isinstance(connection, GuardedConnection) and not connection.transport.is_closing()
    ]
    if len(present) < count_max:
        return True
    if (idlest := longest_idle(present)) is not None:
        idlest.transport.close()
        return True
    if (slowest := slowest_body(present)) is not None:
        slowest.give_place_up()
        return True
    return False


def longest_idle(connections: Iterable[GuardedConnection]) -> GuardedConnection | None:
    """The silent connection that has been idle longest; None if there is none. Pure."""
    silent = [connection for connection in connections if connection.is_silent]
    return min(silent, key=lambda connection: connection.idle_since, default=None)


def slowest_body(connections: Iterable[GuardedConnection]) -> GuardedConnection | None:
    """The connection whose client sends its body slowest; None if there is none. Pure."""
    rates = {connection: connection.body_rate for connection in connections}
    slow = {connection: rate for connection, rate in rates.items() if rate is not None}
    return min(slow, key=slow.__getitem__, default=None)
