"""A call of an operator to the coordinator of a fleet."""

import http.client
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from fleet.config.config import DEFAULT_LISTEN, is_host_and_port
from serving.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    InvalidConfig,
    MillpondError,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from serving.base.name_text import listed
from serving.server.admin_sockets import FLEET_SUFFIX, live_sockets, run_directories

_TIMEOUT_SECONDS = 10.0


def ask(
    target: str | None, method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Sends a request to the coordinator, and returns its reply.

    If `target` is None, finds the coordinator of this user on this machine. Raises NotFound, InvalidConfig,
    Unavailable, and the error with which the coordinator refuses.
    """
    address = _found_target(is_operation=body is not None) if target is None else target
    connection = connection_to(address)
    try:
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        response = connection.getresponse()
        reply: dict[str, Any] = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(
            f"no coordinator answers at {address} ({error}); start one (millpond fleet start), "
            "or give --target=unix:PATH or --target=HOST:PORT"
        ) from error
    finally:
        connection.close()
    if response.status == 200:
        return reply
    kinds: Mapping[int, type[MillpondError]] = {
        400: FailedPrecondition,
        403: PermissionDenied,
        404: NotFound,
        503: Unavailable,
    }
    raise kinds.get(response.status, InvalidArgument)(str(reply.get("error")))


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Implements HTTPConnection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connection_to(address: str) -> http.client.HTTPConnection:
    """Connects to a target. Raises InvalidArgument."""
    if address.startswith("unix:"):
        return _UnixConnection(address.removeprefix("unix:"))
    if not is_host_and_port(address):
        raise InvalidArgument(f"--target={address} is not HOST:PORT or unix:PATH")
    return http.client.HTTPConnection(address, timeout=_TIMEOUT_SECONDS)


def _found_target(*, is_operation: bool) -> str:
    """Finds the operators' door of this user's only coordinator on this machine.

    If there is no door, returns the default address, which may still answer requests that change nothing.
    Raises NotFound for an operation without a door, and InvalidConfig if there are several coordinators.
    """
    directories = run_directories(os.environ, os.geteuid())
    targets = [f"unix:{path}" for path in live_sockets(directories, FLEET_SUFFIX)]
    if len(targets) > 1:
        raise InvalidConfig(
            f"{len(targets)} coordinators of this user run on this machine; choose one: "
            f"{listed((f'--target={item}' for item in targets), ' or ')}"
        )
    if targets:
        return targets[0]
    if is_operation:
        raise NotFound(
            f"no coordinator of this user has a socket in {' or '.join(map(str, directories))}; start "
            "one (millpond fleet start), or give --target=unix:PATH or --target=HOST:PORT"
        )
    return DEFAULT_LISTEN
