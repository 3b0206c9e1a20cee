"""The addresses of a server, and the reason and the remedy if it cannot listen on them."""

import errno
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.base.errors import InvalidConfig, MillpondError, Unavailable
from serving.config.server_config import ServerConfig

# The size of sockaddr_un's path without the terminating zero.
_SOCKET_PATH_BYTES_MAX = 107

_TRANSIENT_ERRNOS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})
_TRANSIENT_RESOLVER_ERRORS = frozenset({socket.EAI_AGAIN})


@dataclass(frozen=True, kw_only=True)
class ListenAddresses:
    """A TCP address, and a UNIX socket unless `socket_path` is empty.

    Handed-in sockets, `descriptors`, take the place of the TCP address.
    """

    host: str
    port: int
    socket_path: str = ""
    descriptors: tuple[int, ...] = ()

    @property
    def tcp(self) -> str:
        """The address as HOST:PORT, with an IPv6 host in brackets."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def of_grpc(self) -> list[str]:
        """The addresses in gRPC's notation, and `fd:N` for each descriptor."""
        main = [f"fd:{number}" for number in self.descriptors] or [self.tcp]
        return [*main, *([f"unix:{self.socket_path}"] if self.socket_path else [])]


def listen_addresses(config: ServerConfig) -> ListenAddresses:
    """The addresses of a server's gRPC port and socket."""
    return ListenAddresses(
        host=config.host,
        port=config.port,
        socket_path=config.grpc_socket_path,
        descriptors=config.grpc_descriptors,
    )


@dataclass(frozen=True)
class Obstacle:
    """The reason why the server cannot listen on one address, with the remedy.

    It is transient if a later start may succeed.
    """

    text: str
    is_transient: bool = False


@contextmanager
def reason_for_not_listening(addresses: ListenAddresses) -> Iterator[None]:
    """Wraps the start of a gRPC server and replaces its Unavailable by an error with the reason.

    Raises InvalidConfig if another start would fail too.
    """
    try:
        yield
    except Unavailable as error:
        reason = listen_error(addresses)
        if reason is None:
            raise
        raise reason from error


def listen_error(addresses: ListenAddresses) -> MillpondError | None:
    """The error that explains why a server cannot listen on `addresses`, or None if it can.

    Binds each address for a moment.
    """
    obstacles = list(_obstacles(addresses))
    if not obstacles:
        return None
    message = "; ".join(f"cannot listen on {obstacle.text}" for obstacle in obstacles)
    is_transient = all(obstacle.is_transient for obstacle in obstacles)
    return Unavailable(message) if is_transient else InvalidConfig(message)


def _obstacles(addresses: ListenAddresses) -> Iterator[Obstacle]:
    if not addresses.descriptors and (obstacle := _tcp_obstacle(addresses)) is not None:
        yield obstacle
    if addresses.socket_path:
        obstacle = socket_path_obstacle("--grpc_socket_path", addresses.socket_path)
        if obstacle is not None:
            yield obstacle


def _tcp_obstacle(addresses: ListenAddresses) -> Obstacle | None:
    """The reason why no address of the host can be bound; None if one can, which is enough for the gRPC
    server.
    """
    try:
        found = socket.getaddrinfo(
            addresses.host, addresses.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        return Obstacle(
            f"{addresses.tcp}: --host={addresses.host} cannot be resolved "
            f"({getattr(error, 'strerror', None) or error}); "
            "use an address of this machine, or 0.0.0.0 for all",
            getattr(error, "errno", None) in _TRANSIENT_RESOLVER_ERRORS,
        )
    bind_error = _bind_error(found)
    return None if bind_error is None else _tcp_reason(addresses, bind_error)


def bind_reason(host: str, port: int) -> str:
    """The reason why a TCP address cannot be listened on now; "" if it can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        return f"{host} cannot be resolved ({getattr(error, 'strerror', None) or error})"
    bind_error = _bind_error(found)
    if bind_error is None:
        return ""
    if bind_error.errno == errno.EADDRINUSE:
        return f"port {port} is already in use"
    return os.strerror(bind_error.errno or 0)


def _bind_error(found: Iterable[tuple[Any, ...]]) -> OSError | None:
    """The first error of binding the addresses `found`; None if one of them can be bound."""
    first_error: OSError | None = None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # The gRPC server sets it too. With it, a port whose last server has just ended counts as
                # free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            first_error = first_error or error
        else:
            return None
    return first_error


def _tcp_reason(addresses: ListenAddresses, error: OSError) -> Obstacle:
    if error.errno == errno.EADDRINUSE:
        text = (
            f"port {addresses.port} is already in use; "
            "set --port to another port, or to 0 for a free one"
        )
    elif error.errno == errno.EADDRNOTAVAIL:
        text = (
            f"--host={addresses.host} is not an address of this machine; "
            "use one of its addresses, or 0.0.0.0 for all"
        )
    elif error.errno in (errno.EACCES, errno.EPERM):
        text = (
            f"this user may not use port {addresses.port}; set --port to another port, usually 1024 "
            "or above, or give the process CAP_NET_BIND_SERVICE"
        )
    else:
        text = f"{error.strerror}; check --host and --port"
    return Obstacle(f"{addresses.tcp}: {text}", error.errno in _TRANSIENT_ERRNOS)


def socket_path_obstacle(flag: str, text: str) -> Obstacle | None:
    """The reason why a server cannot have the UNIX socket that `flag` names, or None if it can."""
    path, length_bytes = Path(text), len(os.fsencode(text))
    if length_bytes > _SOCKET_PATH_BYTES_MAX:
        reason = (
            f"the path has {length_bytes} bytes, and the path of a UNIX socket may have "
            f"{_SOCKET_PATH_BYTES_MAX}; use a shorter path"
        )
    elif not path.parent.is_dir():
        reason = f"{path.parent} is not a directory; create it, or use another path"
    elif _is_other_file(path):
        reason = "the path has a file that is not a socket; delete it, or use another path"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        reason = f"this user may not write into {path.parent}; change its permissions, or use another path"
    else:
        return None
    return Obstacle(f"{flag}={text}: {reason}")


def _is_other_file(path: Path) -> bool:
    """True if `path` exists and is not a socket. (The data plane replaces a socket.)"""
    try:
        return not stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
