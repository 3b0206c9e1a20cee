"""The registry of a fleet: a JSON document of its servers, from which clients and proxies choose one."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from serving.base.directory_files import opened_directory, replace_file
from serving.base.errors import DataLoss

REGISTRY_PATH = "/fleet/servers"
"""The path of the registry in the coordinator's HTTP."""

FILE_MODE = 0o644
"""Clients of other users read the registry. It contains addresses and no secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredServer:
    """A server that clients may reach.

    `versions` has, by model, the version that answers by default; None if no version answers yet. If `versions`
    is empty, the models of the server are not known. `is_ready` is False if the server answers no requests now,
    or if the coordinator cannot reach it. Clients should send no further requests to a draining server.
    """

    name: str
    grpc: str
    http: str = ""
    is_ready: bool = True
    is_draining: bool = False
    versions: Mapping[str, int | None] = field(default_factory=dict)


_KEYS = frozenset(item.name for item in fields(RegisteredServer))


def parse_registry(text: str) -> tuple[RegisteredServer, ...]:
    """Parses the servers of a document. Raises DataLoss for another text.

    Ignores unknown keys, because a coordinator may be of a later release than its reader.
    """
    try:
        return tuple(
            RegisteredServer(**{key: row[key] for key in _checked(row).keys() & _KEYS})
            for row in json.loads(text)["servers"]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLoss(f"not the registry of a fleet: {error!r}") from error


def registry_document(servers: Iterable[RegisteredServer]) -> str:
    """The document as text. The same servers give the same text, whatever their order."""
    rows = [_row(server) for server in sorted(servers, key=lambda server: server.name)]
    return json.dumps({"servers": rows}, indent=1) + "\n"


def write_text(path: Path, text: str, *, mode: int = FILE_MODE) -> None:
    """Replaces a file as a whole: a reader sees the old or the new text. Raises OSError."""
    with opened_directory(path.parent) as directory:
        replace_file(directory, path.name, [text.encode()], mode)


def _row(server: RegisteredServer) -> dict[str, Any]:
    return {
        "name": server.name,
        "grpc": server.grpc,
        "http": server.http,
        "is_ready": server.is_ready,
        "is_draining": server.is_draining,
        "versions": dict(sorted(server.versions.items())),
    }


def _checked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    texts = (row["name"], row["grpc"])
    if not all(isinstance(text, str) for text in texts) or not isinstance(
        row.get("versions", {}), dict
    ):
        raise TypeError(f"server {row!r}")
    return row
