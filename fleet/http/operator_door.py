"""The door for the operators of a fleet: a UNIX socket that only the coordinator's user can open.

Every client that reaches the HTTP of a coordinator may read the status, the registry and the metrics. Requests
that change the fleet must come through this door. If the configuration gives the door a TCP address, each
client that reaches that address may operate the fleet.
"""

import os
import socket
from pathlib import Path

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.config.config import host_and_port
from serving.base.errors import OperatorError
from serving.http.listeners import BACKLOG, bind
from serving.server.admin_listener import OFF, UNIX_PREFIX
from serving.server.admin_sockets import FLEET_SUFFIX, AdminSocket, default_socket_path

OPERATOR = "millpond.operator"
"""The key that marks the ASGI scope of a request that came through the door."""

_SETTING = "[coordinator] operators = "
_REMEDY = f'give another address: {_SETTING}"HOST:PORT", "unix:PATH" or "{OFF}"'

_log = structlog.get_logger(__name__)


class OperatorDoor:
    """The listening sockets of the door, from `open` to `close`. One thread at a time."""

    def __init__(self, wanted: str) -> None:
        """`wanted` is the setting: "", "off", "unix:PATH" or HOST:PORT."""
        self._wanted = wanted
        self._socket: AdminSocket | None = None
        self.address = ""
        """The address of the door, for `--target`; "" while the door is not open."""

    def open(self, http_port: int) -> list[socket.socket]:
        """Opens the door, and returns its listeners; none if the door is off.

        The port of HTTP, `http_port`, becomes part of the default socket's name, so that two coordinators of
        one user do not collide. If the user has no directory for that socket, logs this and opens no door.
        Raises InvalidConfig and Unavailable if the configured address cannot be used.
        """
        if self._wanted == OFF:
            return []
        if self._wanted and not self._wanted.startswith(UNIX_PREFIX):
            listeners = bind(*host_and_port(self._wanted), _REMEDY)
            self.address = f"{self._wanted.rpartition(':')[0]}:{listeners[0].getsockname()[1]}"
            return listeners
        path = self._path(http_port)
        if path is None:
            _log.warning(
                "fleet_operators_off", reason="no run directory can be used", remedy=_REMEDY
            )
            return []
        return [self._listen_at(path)]

    def close(self) -> None:
        """Removes the socket's file. The HTTP server that got the listeners closes them itself."""
        if self._socket is not None:
            self._socket.release()

    def _path(self, http_port: int) -> Path | None:
        if self._wanted:
            return Path(self._wanted.removeprefix(UNIX_PREFIX))
        return default_socket_path(http_port, os.getpid(), FLEET_SUFFIX)

    def _listen_at(self, path: Path) -> socket.socket:
        self._socket = AdminSocket(path, _SETTING)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._socket.claim().removeprefix(UNIX_PREFIX))
            listener.listen(BACKLOG)
            self._socket.publish()
        except OperatorError:
            listener.close()
            raise
        self.address = f"{UNIX_PREFIX}{path}"
        return listener


def tcp_port(wanted: str) -> int | None:
    """The TCP port of a door; None if the door is not at a TCP address, or its port is 0."""
    if wanted in ("", OFF) or wanted.startswith(UNIX_PREFIX):
        return None
    return host_and_port(wanted)[1] or None


class OperatorEntry:
    """Marks each request that comes through the door, and passes it on to the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        await self._app({**scope, OPERATOR: True}, receive, send)
