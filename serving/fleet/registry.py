"""The registry of a fleet: a JSON document of its servers, for clients and proxies that look for one."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from serving.base.directory_files import opened_directory, replace_file
from serving.client.fleet_registry import RegisteredServer

FILE_MODE = 0o644
"""Clients of other users read the registry: it has addresses, and nothing that is secret."""


def registry_document(servers: Iterable[RegisteredServer]) -> str:
    """Returns the document, with the servers by name. The same servers give the same text."""
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
