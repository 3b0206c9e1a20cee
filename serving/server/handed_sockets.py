"""Takes over listening sockets from the process that started this one (`serving.config.handed_sockets`)."""

import os
import socket
from collections.abc import MutableMapping

from serving.base.errors import InvalidConfig
from serving.config.handed_sockets import (
    REMEDY,
    VARIABLES,
    HandedDescriptor,
    HandedSocket,
    handed_descriptors,
    with_handed_sockets,
)
from serving.config.server_config import ServerConfig

_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def take_handed_sockets(
    config: ServerConfig, environment: MutableMapping[str, str] = os.environ
) -> ServerConfig:
    """Takes over the sockets that were handed to this process, and returns `config` with them.

    Call it once, after the last exec, because it removes the variables of the sockets from `environment`, and
    makes the sockets close at an exec. LISTEN_PID still names this process then, because an exec keeps the
    process id. Raises InvalidConfig if a descriptor is not a listening socket, or if a flag contradicts it.
    """
    try:
        descriptors = handed_descriptors(environment, os.getpid())
    finally:
        for variable in VARIABLES:
            environment.pop(variable, None)
    return with_handed_sockets(config, [_take(descriptor) for descriptor in descriptors])


def _take(descriptor: HandedDescriptor) -> HandedSocket:
    try:
        holder = socket.socket(fileno=descriptor.number)
    except OSError as error:
        raise InvalidConfig(f"{descriptor} was handed in: {error.strerror}; {REMEDY}") from error
    try:
        is_stream = holder.type == socket.SOCK_STREAM and holder.family in _FAMILIES
        if not is_stream or not holder.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise InvalidConfig(f"{descriptor} was handed in, and does not listen; {REMEDY}")
        holder.set_inheritable(False)
        address = holder.getsockname()
        if holder.family == socket.AF_UNIX:
            # The name of an abstract socket begins with a zero byte, which is shown as "@".
            return HandedSocket(descriptor, path=os.fsdecode(address).replace("\0", "@"))
        return HandedSocket(descriptor, host=address[0], port=address[1])
    finally:
        holder.detach()
