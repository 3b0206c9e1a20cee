import os
from pathlib import Path

import pytest

from serving.client.fleet_registry import parse_registry
from serving.fleet.config import FleetServer, HaproxyFiles
from serving.fleet.outputs import Outputs, registered, reload_haproxy
from serving.fleet.reports import ServerReport, Sighting
from tests.unit.worlds.fleet import MODEL, serving

SERVERS = (
    FleetServer(name="a", admin="h:1", grpc="10.0.0.1:8500"),
    FleetServer(name="b", admin="h:2", grpc="10.0.0.2:8500"),
    FleetServer(name="hidden", admin="h:3"),
)


def report(*, is_draining: bool = False) -> ServerReport:
    models = {MODEL: serving(1, found=frozenset({1}))}
    return ServerReport(models=models, is_draining=is_draining)


def test_registered_servers_have_an_address() -> None:
    sightings = {"a": Sighting(report(is_draining=True), 0), "b": Sighting(None, 0)}
    rows = registered(SERVERS, sightings, lambda name: False)
    assert [(row.name, row.is_ready, row.is_draining) for row in rows] == [
        ("a", True, True),
        ("b", False, False),
    ]
    assert rows[0].versions == {MODEL: 1}


def test_lost_server_is_not_ready() -> None:
    rows = registered(SERVERS[:1], {"a": Sighting(report(), 0)}, lambda name: True)
    assert not rows[0].is_ready


def test_unchanged_servers_reload_nothing(tmp_path: Path) -> None:
    reloads: list[str] = []
    files = HaproxyFiles(file=str(tmp_path / "haproxy.cfg"), pid_file="pid")
    outputs = Outputs(str(tmp_path / "servers.json"), files, reloads.append)
    rows = registered(SERVERS, {"a": Sighting(report(), 0)}, lambda name: False)
    outputs.update(rows)
    outputs.update(rows)
    assert reloads == ["pid"]
    assert parse_registry((tmp_path / "servers.json").read_text()) == tuple(rows)
    assert "server a 10.0.0.1:8500" in (tmp_path / "haproxy.cfg").read_text()


def test_draining_server_reloads_haproxy(tmp_path: Path) -> None:
    reloads: list[str] = []
    files = HaproxyFiles(file=str(tmp_path / "haproxy.cfg"), pid_file="pid")
    outputs = Outputs("", files, reloads.append)
    for is_draining in (False, True):
        sightings = {"a": Sighting(report(is_draining=is_draining), 0)}
        outputs.update(registered(SERVERS, sightings, lambda name: False))
    assert reloads == ["pid", "pid"]
    assert "10.0.0.1:8500 weight 0" in (tmp_path / "haproxy.cfg").read_text()


def test_failed_write_is_repeated(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    outputs = Outputs(str(directory / "servers.json"), None)
    outputs.update([])
    directory.mkdir()
    outputs.update([])
    assert (directory / "servers.json").exists()


@pytest.mark.parametrize("text", ["", "x"])
def test_pid_file_of_another_kind_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pid"
    path.write_text(text)
    with pytest.raises(ValueError, match="invalid literal"):
        reload_haproxy(str(path))


def test_reload_signals_the_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pid"
    path.write_text("4711\n")
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    reload_haproxy(str(path))
    assert [pid for pid, _ in signals] == [4711]
