"""Holds gRPC's port between the start of the process and the start of the gRPC server.

A port that is in use is found at once, before TensorFlow is loaded, although the port may open only
when the models have been loaded. Until then connections are refused: the socket is bound, but
does not listen. The port of a handed-in socket needs no reservation: the socket holds it.

The order of the two socket options matters. Linux lets two sockets share an address if both have
SO_REUSEADDR and neither listens, so a second server could bind the port too. Without the option the
port is exclusive. The gRPC server always sets the option, so `let_go` sets it here just before the
gRPC server binds. If connections of an earlier server still linger on the port, only a socket with
the option can bind it. The reservation is then not exclusive, and the start of the gRPC server
reports a port in use.
"""

import socket
from collections.abc import Sequence
from contextlib import suppress

from serving.config.listen_addresses import ListenAddresses, listen_error


class PortReservation:
    """The sockets that hold a port. One thread at a time."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = tuple(sockets)

    @classmethod
    def take(cls, addresses: ListenAddresses) -> "PortReservation":
        """Reserves the TCP port of `addresses`.

        Port 0 reserves nothing, because the gRPC server will take a free one. Neither do handed-in sockets.

        Raises Unavailable if another process has the port, and InvalidConfig if another start would
        fail too.
        """
        error = listen_error(addresses)
        if error is not None:
            raise error
        if addresses.port == 0 or addresses.descriptors:
            return cls(())
        found = socket.getaddrinfo(
            addresses.host, addresses.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = [_bound(item[0], item[4]) for item in dict.fromkeys(found)]
        return cls([item for item in bound if item is not None])

    def let_go(self) -> None:
        """Lets the gRPC server bind the port too; `close` follows once it listens."""
        for holder in self._sockets:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def close(self) -> None:
        """Releases the port. A second call does nothing."""
        for holder in self._sockets:
            holder.close()


def _bound(family: int, address: object) -> socket.socket | None:
    """A socket on one address of the host; None if it cannot be bound, because a socket on
    any other address of the host is enough.
    """
    for reuses_address in (0, 1):
        holder = socket.socket(family, socket.SOCK_STREAM)
        with suppress(OSError):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses_address)
            holder.bind(address)  # type: ignore[arg-type]
            return holder
        holder.close()
    return None
