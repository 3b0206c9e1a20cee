"""The port of HTTP: the data plane listens on it, and Python answers what is no run of a model."""

import os
from collections.abc import Sequence
from socket import AF_UNIX, socket

import structlog

from serving.base.errors import InvalidConfig, OperatorError
from serving.config.listen_addresses import socket_path_obstacle
from serving.config.server_config import HttpPort
from serving.data_plane.requests import GrpcServer
from serving.http.front import JOIN_SECONDS, HttpFront
from serving.http.listeners import bind

OWN_DESCRIPTOR = "own-fd"
"""The kind of an address that is a listening socket, which the data plane closes."""

_log = structlog.get_logger(__name__)


class HttpListener:
    """Opens the port, and starts and stops what answers there. Each once.

    `GrpcServer.shutdown_http` closes the port, before `stop`.
    """

    def __init__(
        self,
        *,
        host: str,
        port: HttpPort,
        socket_path: str = "",
        server: GrpcServer,
        front: HttpFront,
    ) -> None:
        """HTTP is also served on the UNIX socket `socket_path`, unless that is ""."""
        self._host = host
        self._wanted = port
        self._socket_path = socket_path
        self._server = server
        self._front = front
        self._port: int | None = None

    @property
    def port(self) -> int | None:
        """The TCP port; None before `start`, and if there is none."""
        return self._port

    def start(self) -> None:
        """Binds the port, unless its sockets were handed in, and answers from now on.

        Raises the errors of `bind` if the port was asked for; otherwise logs a warning. Raises
        InvalidConfig if there can be no UNIX socket at its path.
        """
        # The path comes first: if it fails, the data plane has not taken over the other sockets.
        addresses = [*self._unix_addresses(), *self._tcp_addresses()]
        if not addresses:
            return
        try:
            self._server.start_http(addresses)
        except BaseException:
            _close(addresses)
            raise
        self._front.start()

    def stop(self) -> None:
        """Answers nothing more. Returns at once; `join` waits."""
        self._front.stop()

    def join(self, timeout_seconds: float = JOIN_SECONDS) -> bool:
        """Waits for the threads' end; returns False if a handler still runs at the timeout."""
        return self._front.join(timeout_seconds)

    def _unix_addresses(self) -> list[str]:
        if not self._socket_path:
            return []
        obstacle = socket_path_obstacle("--rest_api_socket_path", self._socket_path)
        if obstacle is not None:
            raise InvalidConfig(f"cannot listen for HTTP on {obstacle.text}")
        return [f"unix:{self._socket_path}"]

    def _tcp_addresses(self) -> list[str]:
        """The sockets of the port, which the data plane takes over; none if there need be none."""
        if self._wanted.descriptors:
            ports = [port for port in map(_port_of, self._wanted.descriptors) if port is not None]
            self._port = ports[0] if ports else None
            return [f"fd:{descriptor}" for descriptor in self._wanted.descriptors]
        if self._wanted.number is None:
            return []
        try:
            sockets = bind(self._host, self._wanted.number)
        except OperatorError as error:
            if self._wanted.is_required:
                raise
            _log.warning("http_off", reason=error.message)
            return []
        self._port = sockets[0].getsockname()[1]
        return [f"{OWN_DESCRIPTOR}:{listener.detach()}" for listener in sockets]


def _close(addresses: Sequence[str]) -> None:
    """Closes the sockets that were bound here, and that the data plane has not taken over."""
    for address in addresses:
        kind, _, number = address.partition(":")
        if kind == OWN_DESCRIPTOR:
            os.close(int(number))


def _port_of(descriptor: int) -> int | None:
    """The port of a listening socket; None for a UNIX socket."""
    listener = socket(fileno=descriptor)
    try:
        return None if listener.family == AF_UNIX else int(listener.getsockname()[1])
    finally:
        listener.detach()
