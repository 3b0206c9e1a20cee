"""The thread that reports a server's changes: it is woken, because its own looks come late."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from serving.base.clock import NS_PER_SECOND, SystemClock
from serving.config.server_config import HttpPort, ServerConfig
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.model_config import ModelConfig
from serving.manager.blocked_version_rows import FILE_NAME, write_blocked_versions
from serving.server import service_notices
from serving.server.server import Server
from serving.source.notes import Note
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.worlds.whole_server import drop

PATIENCE_SECONDS = 30.0


class Supervisor:
    """A service manager: the datagrams that a server sends to its socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE_SECONDS)

    def close(self) -> None:
        self._socket.close()

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def wait_for(self, state: str) -> list[str]:
        """The states that came before `state`."""
        before: list[str] = []
        while state not in (came := self.next()):
            before += came
        return before


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    # The thread looks by itself only after the test.
    monkeypatch.setattr(service_notices, "STATUS_SECONDS", 2 * PATIENCE_SECONDS)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
    with closing(Supervisor(tmp_path / "n")) as supervisor:
        yield supervisor


def config_of(directory: Path, **settings: object) -> ServerConfig:
    return ServerConfig(
        models=(ModelConfig(name="m", base_path=str(directory / "m")),),
        **{  # type: ignore[arg-type]
            "rest_api_port": HttpPort(None),
            "port": 0,
            "listen_before_ready": True,
            "admin_address": "off",
            **settings,
        },
    )


def test_server_reports_when_it_is_ready_and_stops(tmp_path: Path, supervisor: Supervisor) -> None:
    drop(tmp_path / "m", 7)
    server = Server(config_of(tmp_path), native=FakePlane())
    server.start()
    assert "STATUS=1 of 1 models available" in supervisor.wait_for("READY=1")
    assert server.stop()
    assert supervisor.next() == ["STOPPING=1", "STATUS=draining"]


def test_server_reports_when_its_port_opens_late(tmp_path: Path, supervisor: Supervisor) -> None:
    drop(tmp_path / "m", 7)
    server = Server(config_of(tmp_path, listen_before_ready=False), native=FakePlane())
    server.start()
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    supervisor.wait_for("READY=1")
    server.request_stop("test")
    waiting.join()
    assert server.stop()


def test_refused_model_updates_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    not_before_wall_ns = SystemClock().wall_ns() + 60 * NS_PER_SECOND
    crash = BlockedVersion(by=BlockedBy.CRASH, not_before_wall_ns=not_before_wall_ns)
    (tmp_path / "state").mkdir()
    write_blocked_versions(tmp_path / "state" / FILE_NAME, {"m": {7: crash}})
    server = Server(
        config_of(tmp_path, state_directory=str(tmp_path / "state")), native=FakePlane()
    )
    is_updated = threading.Event()
    monkeypatch.setattr(server._status, "update", is_updated.set)
    server._service.start()
    server._versions.notes.set_models(["m"])
    only_blocked = Note.of("only_blocked_versions_found", versions=(7,))
    server._versions.notes.set_source_notes("m", [only_blocked])
    assert is_updated.wait(PATIENCE_SECONDS)
    assert server.stop()
