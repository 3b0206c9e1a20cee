"""Reserves gRPC's port between the start of the process and the start of the gRPC server.

The port may open only when the models have been loaded. The reservation finds out at once, before TensorFlow
is loaded, if another process has the port. Until the port opens, connections are refused, because the
reserving socket is bound but does not listen. A socket that was handed to the process needs no reservation,
because it has its port already.

The socket has no SO_REUSEADDR if possible, because Linux lets two sockets share an address if both have that
option and neither listens. So without the option no second server can bind the port. The gRPC server itself
always sets the option, so `let_go` sets it on the reserving socket just before the gRPC server binds. If
connections of an earlier server still linger on the port, only a socket with the option can bind it. Then
the reservation is not exclusive, and only the start of the gRPC server finds out if the port is in use.
"""

import socket
from collections.abc import Sequence
from contextlib import suppress

from serving.config.listen_addresses import ListenAddresses, listen_error


class PortReservation:
    """The sockets that reserve a port. One thread at a time."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = tuple(sockets)

    @classmethod
    def take(cls, addresses: ListenAddresses) -> "PortReservation":
        """Reserves the TCP port of `addresses`.

        Reserves nothing for port 0, because the gRPC server will choose a free port, nor if sockets were
        handed in. Raises Unavailable if another process has the port, and InvalidConfig if the address
        itself is wrong.
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
        """Lets the gRPC server bind the port too. Call `close` once the gRPC server listens."""
        for holder in self._sockets:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def close(self) -> None:
        """Releases the port. A second call does nothing."""
        for holder in self._sockets:
            holder.close()


def _bound(family: int, address: object) -> socket.socket | None:
    """Binds a socket to one address of the host; None if that fails.

    A failure is no error, because a socket on any other address of the host is enough.
    """
    for reuses_address in (0, 1):
        holder = socket.socket(family, socket.SOCK_STREAM)
        with suppress(OSError):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses_address)
            holder.bind(address)  # type: ignore[arg-type]
            return holder
        holder.close()
    return None
