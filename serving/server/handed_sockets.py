"""Takes over the listening sockets that the process was started with (`serving.config.handed_sockets`)."""

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
    """Takes `config` with the sockets that were handed to this process.

    Removes their variables from `environment`, and closes the sockets to the process's children. So
    it is called once, after the last exec: LISTEN_PID names the process, which an exec keeps. Raises
    InvalidConfig if a descriptor is not a listening socket, or if a flag contradicts it.
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
            # The name of an abstract socket is bytes that begin with a zero.
            return HandedSocket(descriptor, path=os.fsdecode(address).replace("\0", "@"))
        return HandedSocket(descriptor, host=address[0], port=address[1])
    finally:
        holder.detach()
