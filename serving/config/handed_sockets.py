"""Listening sockets that the parent process hands in, in the manner of sd_listen_fds(3). Pure.

The environment names the process that they are for (LISTEN_PID), their number (LISTEN_FDS) and
their names (LISTEN_FDNAMES). They are the descriptors from 3 on. A descriptor named `rest` is the
HTTP port's; one named `grpc`, or without a name of its own, is gRPC's. systemd names a descriptor
after its socket unit by default, so such a name counts as none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serving.base.errors import InvalidConfig
from serving.config.server_config import HttpPort, ServerConfig

VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
"""The variables that a process removes, so that its children do not take its sockets."""

REMEDY = (
    "hand in listening stream sockets over TCP or UNIX (in systemd: ListenStream= and Accept=no), "
    "or unset LISTEN_FDS"
)

_FIRST_DESCRIPTOR = 3
# Listeners::kCountMax in native/rpc/listeners.h.
_COUNT_MAX = 256

_GRPC, _REST = "grpc", "rest"
# The names that sd_listen_fds_with_names(3) gives to a descriptor without a name.
_NO_NAMES = ("", "unknown")


@dataclass(frozen=True)
class HandedDescriptor:
    """A descriptor that was handed in, for HTTP if `is_rest`, and otherwise for gRPC."""

    number: int
    name: str = ""
    is_rest: bool = False

    def __str__(self) -> str:
        return f"descriptor {self.number}" + (f" ({self.name})" if self.name else "")


@dataclass(frozen=True)
class HandedSocket:
    """A listening socket and its address: a host and a port, or a UNIX socket's `path`."""

    descriptor: HandedDescriptor
    host: str = ""
    port: int = 0
    path: str = ""


def handed_descriptors(
    environment: Mapping[str, str], process_id: int
) -> tuple[HandedDescriptor, ...]:
    """The descriptors that are handed to the process `process_id`.

    Raises InvalidConfig if the variables have wrong values.
    """
    if "LISTEN_PID" not in environment or "LISTEN_FDS" not in environment:
        return ()
    if _number(environment, "LISTEN_PID") != process_id:
        return ()
    count = _number(environment, "LISTEN_FDS")
    if count > _COUNT_MAX:
        raise InvalidConfig(f"LISTEN_FDS={count}: hand in {_COUNT_MAX} sockets or fewer")
    names = [""] * count
    if "LISTEN_FDNAMES" in environment and count > 0:
        names = environment["LISTEN_FDNAMES"].split(":")
    if len(names) != count:
        raise InvalidConfig(
            f"LISTEN_FDNAMES={environment['LISTEN_FDNAMES']} has {len(names)} names, and "
            f"LISTEN_FDS={count}; give each descriptor one name, or unset LISTEN_FDNAMES"
        )
    return tuple(_descriptor(number, name) for number, name in enumerate(names, _FIRST_DESCRIPTOR))


def _number(environment: Mapping[str, str], variable: str) -> int:
    text = environment[variable]
    if not (text.isascii() and text.isdigit()):
        raise InvalidConfig(f"{variable}={text!r} is not a number; correct it, or unset it")
    return int(text)


def _descriptor(number: int, name: str) -> HandedDescriptor:
    if name not in (_GRPC, _REST, *_NO_NAMES) and not name.endswith(".socket"):
        raise InvalidConfig(
            f"LISTEN_FDNAMES names descriptor {number} {name!r}; name it {_GRPC} or {_REST} (in "
            "systemd: FileDescriptorName=), because other ports cannot be handed in"
        )
    return HandedDescriptor(number, name, is_rest=name == _REST)


def with_handed_sockets(config: ServerConfig, sockets: Sequence[HandedSocket]) -> ServerConfig:
    """`config` with the sockets in place of the addresses of gRPC, of HTTP or of both.

    Raises InvalidConfig if a flag contradicts them.
    """
    grpc = [socket for socket in sockets if not socket.descriptor.is_rest]
    rest = [socket for socket in sockets if socket.descriptor.is_rest]
    changes: dict[str, Any] = {}
    if grpc:
        _check_path("--grpc_socket_path", config.grpc_socket_path, grpc)
        first = _first(grpc)
        # HTTP keeps the host of the flag.
        changes["rest_api_port"] = replace(config.rest_api_port, host=config.host)
        changes["host"] = _host(first)
        changes["port"] = first.port
        changes["grpc_descriptors"] = _numbers(grpc)
    if rest:
        changes["rest_api_port"] = _http_port(config, rest)
    return replace(config, **changes)


def _check_path(flag: str, path: str, sockets: Sequence[HandedSocket]) -> None:
    for socket in sockets:
        if socket.path and socket.path == path:
            raise InvalidConfig(
                f"{flag}={path} is the path of {socket.descriptor}, which was handed in; remove the "
                "flag"
            )


def _http_port(config: ServerConfig, sockets: Sequence[HandedSocket]) -> HttpPort:
    if config.rest_api_port.number is None:
        raise InvalidConfig(
            f"--rest_api_port=0 turns HTTP off, and {sockets[0].descriptor} was handed in for it; "
            "remove the flag or the socket"
        )
    _check_path("--rest_api_socket_path", config.rest_api_socket_path, sockets)
    first = _first(sockets)
    return HttpPort(first.port, host=_host(first), descriptors=_numbers(sockets))


def _first(sockets: Sequence[HandedSocket]) -> HandedSocket:
    """The first socket over TCP, or the first one if there is none."""
    return next((socket for socket in sockets if socket.port), sockets[0])


def _host(socket: HandedSocket) -> str:
    return socket.host or f"unix:{socket.path}"


def _numbers(sockets: Sequence[HandedSocket]) -> tuple[int, ...]:
    return tuple(socket.descriptor.number for socket in sockets)
