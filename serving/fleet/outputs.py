"""The files that a coordinator keeps for clients and proxies: the registry, and HAProxy's configuration."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from serving.client.fleet_registry import RegisteredServer
from serving.fleet.config import FleetServer, HaproxyFiles
from serving.fleet.haproxy import Backend, haproxy_text
from serving.fleet.registry import registry_document, write_text
from serving.fleet.reports import Sighting

HAPROXY_MODE = 0o600

_log = structlog.get_logger(__name__)


def registered(
    servers: Sequence[FleetServer],
    sightings: Mapping[str, Sighting],
    is_lost: Callable[[str], bool],
) -> list[RegisteredServer]:
    """Returns the servers with an address for clients, and what is known of them. Pure.

    A server that has not reported is not ready.
    """
    rows = []
    for server in servers:
        sighting = sightings.get(server.name)
        report = sighting.report if sighting else None
        if not server.grpc:
            continue
        versions = {
            name: model.default_version
            for name, model in (report.models if report else {}).items()
            if model.default_version is not None
        }
        rows.append(
            RegisteredServer(
                name=server.name,
                grpc=server.grpc,
                http=server.http,
                is_ready=bool(versions) and not is_lost(server.name),
                is_draining=sighting is not None and sighting.is_draining,
                versions=versions,
            )
        )
    return rows


def reload_haproxy(pid_file: str) -> None:
    """Makes HAProxy's master read its configuration. Raises OSError, and ValueError for another file.

    The new worker takes the listeners of the old one, which ends its requests first.
    """
    os.kill(int(Path(pid_file).read_text().strip()), signal.SIGUSR2)


class Outputs:
    """Writes each file when its text changes. A failure is logged once, and repeated at the next call.

    One thread.
    """

    def __init__(
        self,
        registry_file: str,
        haproxy: HaproxyFiles | None,
        reload: Callable[[str], None] = reload_haproxy,
    ) -> None:
        self._registry_file = registry_file
        self._haproxy = haproxy
        self._reload = reload
        self._written: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self.registry = registry_document(())
        """The registry's document of the last call."""

    def update(self, servers: Sequence[RegisteredServer]) -> None:
        """Writes the files of these servers."""
        self.registry = registry_document(servers)
        if self._registry_file:
            self._write(self._registry_file, self.registry, self._write_registry)
        if self._haproxy is not None:
            backends = [
                Backend(name=row.name, address=row.grpc, is_draining=row.is_draining)
                for row in servers
            ]
            self._write(
                self._haproxy.file,
                haproxy_text(backends, self._haproxy.settings),
                self._write_haproxy,
            )

    def _write(self, file: str, text: str, write: Callable[[str], None]) -> None:
        if self._written.get(file) == text:
            return
        try:
            write(text)
        except (OSError, ValueError) as error:
            if self._failed.get(file) != str(error):
                _log.warning("fleet_file_not_written", file=file, reason=str(error))
            self._failed[file] = str(error)
            return
        self._failed.pop(file, None)
        self._written[file] = text

    def _write_registry(self, text: str) -> None:
        write_text(Path(self._registry_file), text)

    def _write_haproxy(self, text: str) -> None:
        assert self._haproxy is not None
        write_text(Path(self._haproxy.file), text, mode=HAPROXY_MODE)
        if self._haproxy.pid_file:
            self._reload(self._haproxy.pid_file)
            _log.info("haproxy_reloaded", file=self._haproxy.file)
