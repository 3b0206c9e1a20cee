"""The sockets on which HTTP is served.

This module imports no uvicorn, so that a start can check the port first.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
import termios

from serving.base.errors import InvalidConfig, Unavailable
from serving.config.server_config import HttpPort

BACKLOG = 1_024
"""The connections that the kernel keeps until a thread is scheduled."""

# A port that another process has, an address that the machine may get, a resolver that is away.
_TRANSIENT_ERRNOS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, socket.EAI_AGAIN})

_WILDCARDS = ("0.0.0.0", "::")

# asm/socket.h; Python's socket has no name for it.
_SO_ATTACH_FILTER = 26

# Classic BPF on a TCP header (linux/filter.h): drops a packet with SYN and without ACK.
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte of the flags
    (0x54, 0, 0, 0x12),  # and SYN | ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # keep
)


def check_port(host: str, port: HttpPort) -> None:
    """Binds and releases a port that was asked for by number. Raises the errors of `bind`."""
    if port.number and port.is_required and not port.descriptors:
        for listener in bind(host, port.number):
            listener.close()


REMEDY = "set --rest_api_port to another port, or to 0 for no HTTP"
"""The remedy if the REST port of a model server is taken."""


def bind(host: str, port: int, remedy: str = REMEDY) -> list[socket.socket]:
    """Listens on every address of `host`, as gRPC does. Port 0 takes a free port for all.

    Both wildcards mean IPv4 and IPv6, if the machine has IPv6. Raises Unavailable, or InvalidConfig
    if another start would fail too; the error ends with the `remedy`.
    """
    try:
        listeners = _bind_wildcards(port) if host in _WILDCARDS else _bind_each(host, port)
        return _without_delay(listeners)
    except OSError as error:
        error_class = Unavailable if error.errno in _TRANSIENT_ERRNOS else InvalidConfig
        raise error_class(
            f"cannot listen for HTTP on {host}:{port}: {_reason(error)}; {remedy}"
        ) from error


def _without_delay(listeners: list[socket.socket]) -> list[socket.socket]:
    for listener in listeners:
        # Connections inherit it. Without it each response would wait 40 ms for the client's
        # delayed acknowledgement, because its head and its body are two writes.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listeners


def refuse_handshakes(listener: socket.socket) -> None:
    """Makes the kernel start no more connections on a port that is about to close.

    A client that tries meanwhile gets no answer, and is refused at its next try, after the close.
    Handshakes that have begun go on, and `accept` returns their connections. Raises OSError if the
    kernel does not take the filter.
    """
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _DROP_SYN)
    instructions = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: the count, and a pointer to the instructions, which the kernel copies.
    program = struct.pack("@HP", len(_DROP_SYN), ctypes.addressof(instructions))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """Accepts the connections that wait on a listener that does not block."""
    accepted: list[socket.socket] = []
    while True:
        try:
            connection, _ = listener.accept()
        except ConnectionAbortedError:
            continue
        except OSError:
            # No connection waits, or no descriptor is left for one.
            return accepted
        connection.setblocking(False)
        accepted.append(connection)


def has_unread_bytes(descriptor: int) -> bool:
    """True if the kernel holds unread bytes of this connection."""
    count = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder) > 0


def _reason(error: OSError) -> str:
    # Python's own text repeats the address. The error for a name that is not found has a negative number.
    is_system = error.errno is not None and error.errno > 0
    return os.strerror(error.errno or 0) if is_system else error.strerror or str(error)


def _bind_wildcards(port: int) -> list[socket.socket]:
    if socket.has_dualstack_ipv6():
        address = ("::", port)
        try:
            return [
                socket.create_server(
                    address, family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
                )
            ]
        except OSError as error:
            # The kernel has IPv6, but the machine has it switched off.
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return _bind_each("0.0.0.0", port)


def _bind_each(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        # A name may resolve to the same address twice.
        for family, address in dict.fromkeys((item[0], item[4][0]) for item in found):
            listeners.append(
                socket.create_server((str(address), port), family=family, backlog=BACKLOG)
            )
            port = listeners[0].getsockname()[1]
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
