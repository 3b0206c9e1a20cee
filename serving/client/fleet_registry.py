"""The registry of a fleet, as clients read it: over the coordinator's HTTP, or from a file."""

import http.client
import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from serving.base.errors import DataLoss, Unavailable
from serving.client.targets import FILE_SCHEME, HTTP_SCHEME, InvalidTargets

REGISTRY_PATH = "/fleet/servers"
"""The path of the registry in the coordinator's HTTP."""

READ_SECONDS = 2.0
"""The longest wait for the coordinator. It answers in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredServer:
    """A server that clients may reach. `versions` has the version that answers, by model.

    A server that is not ready answers no requests now, or the coordinator does not reach it. Clients
    send a draining server no further requests.
    """

    name: str
    grpc: str
    http: str = ""
    is_ready: bool = True
    is_draining: bool = False
    versions: Mapping[str, int] = field(default_factory=dict)


_KEYS = frozenset(item.name for item in fields(RegisteredServer))


class Registry(Protocol):
    """A place that has the registry's document. Its text names the place for people."""

    def read(self) -> str:
        """Returns the document. Raises OSError and Unavailable."""
        ...


@dataclass(frozen=True)
class HttpRegistry:
    """The registry of a coordinator. Each read is a connection of its own."""

    address: str

    def __str__(self) -> str:
        return f"the coordinator at {self.address}"

    def read(self) -> str:
        connection = http.client.HTTPConnection(self.address, timeout=READ_SECONDS)
        try:
            connection.request("GET", REGISTRY_PATH)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise Unavailable(f"HTTP {response.status} for {REGISTRY_PATH}")
            return response.read().decode()
        except http.client.HTTPException as error:
            raise Unavailable(f"no HTTP: {error!r}") from error
        finally:
            connection.close()


@dataclass(frozen=True)
class FileRegistry:
    """The file that a coordinator writes as its `registry_file`."""

    path: Path

    def __str__(self) -> str:
        return f"the registry {self.path}"

    def read(self) -> str:
        return self.path.read_text(encoding="utf-8")


def registry_of(target: str) -> Registry:
    """Returns the registry of `fleet://HOST:PORT` or `fleet+file:PATH`. Raises InvalidTargets."""
    if target.startswith(FILE_SCHEME):
        path = target.removeprefix(FILE_SCHEME).removeprefix("//")
        if path:
            return FileRegistry(Path(path))
    elif target.startswith(HTTP_SCHEME):
        address = target.removeprefix(HTTP_SCHEME).rstrip("/")
        if _is_host_and_port(address):
            return HttpRegistry(address)
    raise InvalidTargets(
        f"{target!r} names no fleet; give fleet://HOST:PORT, the address of its coordinator, or "
        "fleet+file:///PATH, its registry file"
    )


def parse_registry(text: str) -> tuple[RegisteredServer, ...]:
    """Returns the servers of a document. Raises DataLoss for another text.

    Unknown keys are ignored: a coordinator may be newer than its clients.
    """
    try:
        return tuple(
            RegisteredServer(**{key: row[key] for key in row.keys() & _KEYS})
            for row in json.loads(text)["servers"]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLoss(f"not the registry of a fleet: {error!r}") from error


def addresses_of(servers: Iterable[RegisteredServer]) -> tuple[str, ...]:
    """Returns the addresses of the servers that do not drain, in order. Resolves host names.

    They include servers that are not ready: gRPC watches the health of each server itself, and a
    server that the coordinator has lost may still answer clients. Raises OSError for an unknown host.
    """
    rows = sorted(
        (server for server in servers if not server.is_draining), key=lambda row: row.name
    )
    return tuple(dict.fromkeys(_resolved(row.grpc) for row in rows))


def _is_host_and_port(address: str) -> bool:
    try:
        parts = urlsplit(f"//{address}")
        return bool(parts.hostname) and parts.port is not None and parts.netloc == address
    except ValueError:
        return False


def _resolved(address: str) -> str:
    """Returns IP:PORT for HOST:PORT, preferring IPv4: one gRPC channel has addresses, and no names."""
    if address.startswith("unix:"):
        return address
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    family, *_, place = min(found, key=lambda item: item[0] is not socket.AF_INET)
    ip = str(place[0])
    return f"{ip}:{port}" if family is socket.AF_INET else f"[{ip}]:{port}"
