"""Opens the listening sockets that the supervisor keeps open while servers end and start."""

import os
from collections.abc import Callable, Mapping, Sequence
from socket import socket

from serving.base.errors import MillpondError
from serving.config.handed_sockets import handed_descriptors
from serving.config.listen_addresses import listen_addresses, listen_error
from serving.config.server_config import ServerConfig
from serving.http import listeners
from serving.supervisor.child_process import HeldSocket

GRPC, REST = "grpc", "rest"

Bind = Callable[[str, int], Sequence[socket]]


def hold_sockets(
    config: ServerConfig,
    environment: Mapping[str, str] = os.environ,
    bind: Bind = listeners.bind,
) -> list[HeldSocket]:
    """Opens a listening socket for each TCP address of gRPC and of HTTP.

    If a service manager has handed sockets to this process, they are used instead of the addresses. The
    sockets stay open until this process ends. Raises Unavailable or InvalidConfig.
    """
    handed = handed_descriptors(environment, os.getpid())
    held = [HeldSocket(item.number, REST if item.is_rest else GRPC) for item in handed]
    names = {item.name for item in held}
    if GRPC not in names:
        error = listen_error(listen_addresses(config))
        if error is not None:
            raise error
        held += _held(bind(config.host, config.port), GRPC)
    if REST not in names:
        held += _hold_http(config, bind)
    return held


def _hold_http(config: ServerConfig, bind: Bind) -> list[HeldSocket]:
    port = config.rest_api_port
    if port.number is None:
        return []
    try:
        return _held(bind(config.http_host, port.number), REST)
    except MillpondError:
        if port.is_required:
            raise
        # HTTP's default port is taken, so no socket is kept. The server logs that, and serves without HTTP.
        return []


def _held(opened: Sequence[socket], name: str) -> list[HeldSocket]:
    return [HeldSocket(item.detach(), name) for item in opened]
