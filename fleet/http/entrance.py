"""The entrance keeps the connections that have sent no request yet, or only probes.

Each HTTP server has two event loops on two threads. The first is the entrance: it accepts every connection
and answers probes. At the first other request of a connection, the entrance hands its socket to the second
loop, and the connection stays there. So probes have a thread and places of their own, and are answered even if
other requests fill the second loop.
"""

import os
import re
import socket
from collections.abc import Callable
from enum import Enum

from fleet.http.connections import ConnectionLimits, GuardedConnection, Phase, connection_class

Adopt = Callable[[socket.socket, bytes], None]
"""Takes over a connection, and the bytes that were read from it."""

LINE_BYTES_MAX = 1_024
"""The longest part of a request line that may still become a probe. No probe has a longer line."""

_METHODS = (b"GET ", b"HEAD ")
_PROBES = (b"/healthz", b"/metrics")
_HAS_BODY = re.compile(rb"\n(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)


class Kind(Enum):
    """The kinds of bytes at the start of a request."""

    UNKNOWN = "the start of a request that may be a probe"
    PROBE = "the whole head of a probe, and perhaps more"
    OTHER = "anything else"


def kind_of(received: bytes, head_bytes_max: int) -> Kind:
    """The kind of request with which `received` begins. Pure."""
    if not any(received.startswith(method[: len(received)]) for method in _METHODS):
        return Kind.OTHER
    line, line_end, _ = received.partition(b"\n")
    if not line_end:
        return Kind.UNKNOWN if len(line) < LINE_BYTES_MAX else Kind.OTHER
    path = line.split(b" ")[1].partition(b"?")[0]
    if path not in _PROBES:
        return Kind.OTHER
    end = head_end(received)
    if end == 0:
        return Kind.UNKNOWN if len(received) <= head_bytes_max else Kind.OTHER
    # A probe with a body goes to the second loop, because only that loop can find the end of a body.
    return Kind.OTHER if _HAS_BODY.search(received, 0, end) else Kind.PROBE


def head_end(received: bytes) -> int:
    """The length of the head with which `received` begins; 0 if its end has not arrived. Pure."""
    return received.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in received else 0


class EntranceConnection(GuardedConnection):
    """A connection at the entrance. At the first request that is no probe, hands itself to `adopt`."""

    @staticmethod
    def adopt(connection: socket.socket, received: bytes) -> None:
        """Takes the connection to the other loop."""
        raise NotImplementedError

    def resume_writing(self) -> None:
        """Implements asyncio.Protocol."""
        super().resume_writing()
        if self._unread:
            self._read_on()

    def _parse_received(self) -> None:
        """Overrides: parses the heads of probes only, one at a time."""
        # Waits until the client has taken the last response, because a handover loses the rest of it.
        if not self.is_idle or self.flow.write_paused:
            self.flow.pause_reading()
            return
        self.flow.resume_reading()
        kind = kind_of(self._unread, self.limits.head_bytes_max)
        if kind is Kind.OTHER:
            self._hand_over()
            return
        if kind is Kind.PROBE:
            end = head_end(self._unread)
            head, self._unread = self._unread[:end], self._unread[end:]
            self._parse(head)
        elif self._phase is Phase.BETWEEN:
            self._phase = Phase.HEAD
        if not self._is_refused:
            self._update_head_timer()

    def _enforce_connection_limit(self) -> bool:
        """Overrides: the acceptor has made a place."""
        return True

    def _should_make_place(self) -> bool:
        """Overrides: while all places are taken, a connection closes after its response, unless bytes of its next
        request are here, because that request would be lost.
        """
        is_full = len(self.connections) >= self.limits.connection_count_max
        return is_full and not self._unread and not self._has_unread_bytes

    @property
    def _had_its_time(self) -> bool:
        """Overrides: also after a response, a connection has SILENT_SECONDS for its next request.

        The entrance can afford that, because new connections can wait in the kernel.
        """
        return self._is_silence_over

    def _hand_over(self) -> None:
        self.transport.pause_reading()
        try:
            copy = os.dup(self.transport.get_extra_info("socket").fileno())
        except OSError:
            self._refuse(503, "the server has no descriptor for this connection; try again later")
            return
        received, self._unread = self._unread, b""
        # This closes only one of two descriptors of the connection. The other loop goes on with the copy.
        self.transport.abort()
        connection = socket.socket(fileno=copy)
        connection.setblocking(False)
        self.adopt(connection, received)


def entrance_class(
    limits: ConnectionLimits, is_stopping: Callable[[], bool], adopt: Adopt
) -> type[EntranceConnection]:
    """Makes the class of a server's connections at its entrance."""
    bases = (EntranceConnection, connection_class(limits, is_stopping))
    return type("Entrance", bases, {"adopt": staticmethod(adopt)})
