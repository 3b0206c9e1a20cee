"""The registry of a fleet, as clients read it: over the coordinator's HTTP, or from a file."""

import http.client
import json
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import structlog

from serving.base.errors import DataLoss, Unavailable
from serving.client.targets import FILE_SCHEME, HTTP_SCHEME, InvalidTargets

REGISTRY_PATH = "/fleet/servers"
"""The path of the registry in the coordinator's HTTP."""

READ_SECONDS = 2.0
"""The longest wait for the coordinator. It answers in milliseconds."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredServer:
    """A server that clients may reach. `versions` has the version that answers, by model.

    A model without a version yet has None. Without any model, the models of the server are not known.
    A server that is not ready answers no requests now, or the coordinator does not reach it. Clients
    send a draining server no further requests.
    """

    name: str
    grpc: str
    http: str = ""
    is_ready: bool = True
    is_draining: bool = False
    versions: Mapping[str, int | None] = field(default_factory=dict)


class NotListedYet(Unavailable):
    """The coordinator has just started, and does not know all of its servers yet: ask again."""


_KEYS = frozenset(item.name for item in fields(RegisteredServer))


class Registry(Protocol):
    """A place that has the registry's document. Its text names the place for people."""

    def read(self) -> str:
        """Returns the document. Raises OSError and Unavailable, NotListedYet among them."""
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
            if response.status == http.client.SERVICE_UNAVAILABLE:
                raise NotListedYet(f"HTTP {response.status}: {response.read(200).decode()}")
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
            RegisteredServer(**{key: row[key] for key in _checked(row).keys() & _KEYS})
            for row in json.loads(text)["servers"]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLoss(f"not the registry of a fleet: {error!r}") from error


def _checked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    texts = (row["name"], row["grpc"])
    if not all(isinstance(text, str) for text in texts) or not isinstance(
        row.get("versions", {}), dict
    ):
        raise TypeError(f"server {row!r}")
    return row


@dataclass(frozen=True, slots=True)
class Routes:
    """The addresses for the calls of each model.

    `lists` has the addresses of all servers first, and then those of each further set of servers. `places`
    has a model's list, by its place, if not all servers have the model. Other models go to all.
    """

    lists: tuple[tuple[str, ...], ...] = ((),)
    places: Mapping[str, int] = field(default_factory=dict)

    def place(self, model: str) -> int:
        return self.places.get(model, 0)


Resolve = Callable[[RegisteredServer], str]
"""Returns the address of a server as IP:PORT; "" if it cannot be resolved."""


def routes_of(servers: Iterable[RegisteredServer], resolve: Resolve) -> Routes:
    """Returns the routes to the servers that do not drain, in the order of their names.

    They include servers that are not ready: gRPC watches the health of each server itself, and a
    server that the coordinator has lost may still answer clients. A server whose models are not known is in
    the list of all. If all servers of a model drain, its calls still go there: another server would
    answer that it does not have the model.
    """
    rows = [
        (server, address)
        for server in sorted(servers, key=lambda server: server.name)
        if (address := resolve(server))
    ]
    staying = [row for row in rows if not row[0].is_draining]
    everyone = _addresses(staying)
    models = {frozenset(server.versions) for server, _ in rows if server.versions}
    if len(models) < 2:
        return Routes((everyone,))
    places: dict[str, int] = {}
    lists = {everyone: 0}
    for model in sorted(frozenset().union(*models)):
        addresses = _addresses(row for row in staying if model in row[0].versions) or _addresses(
            row for row in rows if model in row[0].versions
        )
        places[model] = lists.setdefault(addresses, len(lists))
    return Routes(tuple(lists), {model: place for model, place in places.items() if place})


def _addresses(rows: Iterable[tuple[RegisteredServer, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(address for _, address in rows))


class Resolver:
    """Resolves the host names of servers. Logs a name that cannot be resolved once, until it can be."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def __call__(self, server: RegisteredServer) -> str:
        """Returns the server's address as IP:PORT; "" if it cannot be resolved."""
        try:
            address = _resolved(server.grpc)
        # ValueError: a label of a name is too long, or it is no text of a name at all.
        except (OSError, ValueError) as error:
            if server.grpc not in self._failed:
                self._failed.add(server.grpc)
                _log.warning(
                    "fleet_server_skipped",
                    server=server.name,
                    address=server.grpc,
                    reason=str(error),
                )
            return ""
        self._failed.discard(server.grpc)
        return address


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
