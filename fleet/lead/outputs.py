"""The files that a coordinator keeps for clients and proxies: the registry, and HAProxy's configuration."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog

from fleet.config.config import FleetServer, HaproxyFiles
from fleet.files.haproxy import Backend, haproxy_text
from fleet.files.haproxy_process import HaproxyProcess
from fleet.files.registry import FILE_MODE, RegisteredServer, registry_document, write_text
from fleet.rollout.reports import Sighting

HAPROXY_MODE = 0o600

_log = structlog.get_logger(__name__)


def registered(
    servers: Sequence[FleetServer],
    sightings: Mapping[str, Sighting],
    lost: Collection[str],
) -> list[RegisteredServer]:
    """The registry's entries: one for each server with an address for clients. Pure.

    A server is ready if it answers with a version and is not `lost`. So a server that has not reported is
    not ready.
    """
    rows = []
    for server in servers:
        sighting = sightings.get(server.name)
        report = sighting.report if sighting else None
        if not server.grpc:
            continue
        versions = {
            name: model.default_version for name, model in (report.models if report else {}).items()
        }
        has_version = any(version is not None for version in versions.values())
        rows.append(
            RegisteredServer(
                name=server.name,
                grpc=server.grpc,
                http=server.http,
                is_ready=has_version and server.name not in lost,
                is_draining=sighting is not None and sighting.is_draining,
                versions=versions,
            )
        )
    return rows


def has_looked(
    servers: Sequence[FleetServer],
    sightings: Mapping[str, Sighting],
    silent: Collection[str],
) -> bool:
    """True if each server with an address for clients has reported, is in `silent`, or is leaving. Pure.

    While this is False, a coordinator that has just started does not know which servers drain.
    """
    for server in servers:
        sighting = sightings.get(server.name)
        is_known = sighting is not None and (sighting.report is not None or sighting.is_leaving)
        if server.grpc and not is_known and server.name not in silent:
            return False
    return True


class Outputs:
    """Writes each file whenever its text changes. One thread.

    If a write fails, that is logged once, and the next `update` writes the file again. No error reaches the
    caller, because a fleet can be led without its files.
    """

    def __init__(
        self,
        registry_file: str,
        haproxy: HaproxyFiles | None,
        process: HaproxyProcess | None = None,
    ) -> None:
        """`process` is the running HAProxy; None: the one that `haproxy` names."""
        self._registry_file = registry_file
        self._haproxy = haproxy
        if process is None and haproxy is not None and haproxy.pid_file:
            process = HaproxyProcess(haproxy.pid_file, haproxy.settings.stats_socket)
        self._process = process
        self._written: dict[str, str] = {}
        self._taken = ""
        self._failed: dict[str, str] = {}
        self.registry = ""
        """The registry's document since the last `update`; "" if the servers were not known."""

    @property
    def problems(self) -> list[str]:
        """The files that cannot be written now, with the reasons, for people."""
        return [f"{file}: {reason}" for file, reason in self._failed.items()]

    def update(self, servers: Sequence[RegisteredServer] | None) -> None:
        """Writes the files for these servers. If `servers` is None, leaves the files as they are.

        None means that the servers are not known yet.
        """
        if servers is None:
            self.registry = ""
            return
        self.registry = registry_document(servers)
        if self._registry_file:
            with self._guarded(self._registry_file):
                self._write(self._registry_file, self.registry, FILE_MODE)
        if self._haproxy is not None:
            with self._guarded(self._haproxy.file):
                self._write_haproxy(self._haproxy, servers)

    @contextmanager
    def _guarded(self, file: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 (the servers need the coordinator more than this file)
            if self._failed.get(file) != str(error):
                _log.warning("fleet_file_not_written", file=file, reason=str(error))
            self._failed[file] = str(error)
        else:
            self._failed.pop(file, None)

    def _write_haproxy(self, haproxy: HaproxyFiles, servers: Sequence[RegisteredServer]) -> None:
        text = haproxy_text(
            [
                Backend(
                    name=row.name,
                    address=row.grpc,
                    is_draining=row.is_draining,
                    models=frozenset(row.versions),
                )
                for row in servers
            ],
            haproxy.settings,
        )
        self._write(haproxy.file, text, HAPROXY_MODE)
        if self._process is not None and self._taken != text and self._process.follow(text):
            self._taken = text

    def _write(self, file: str, text: str, mode: int) -> None:
        if self._written.get(file) != text:
            path = Path(file)
            # The directory may be below /run, which is empty after each start of the machine.
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_text(path, text, mode=mode)
            self._written[file] = text
