from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleet.config.config import FleetServer, HaproxyFiles
from fleet.files.haproxy import HaproxySettings
from fleet.files.haproxy_process import HaproxyProcess
from fleet.files.registry import RegisteredServer, parse_registry, registry_document
from fleet.lead.outputs import Outputs, has_looked, registered
from fleet.rollout.reports import ModelReport, ServerReport, Sighting
from tests.fleet.worlds.fleet import MODEL, serving

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
    rows = registered(SERVERS, sightings, ())
    assert [(row.name, row.is_ready, row.is_draining) for row in rows] == [
        ("a", True, True),
        ("b", False, False),
    ]
    assert rows[0].versions == {MODEL: 1}


def test_lost_server_is_not_ready() -> None:
    rows = registered(SERVERS[:1], {"a": Sighting(report(), 0)}, {"a"})
    assert not rows[0].is_ready


@pytest.mark.parametrize("is_leaving", [False, True])
def test_look_is_whole_once_each_server_is_known(is_leaving: bool) -> None:
    """A server is known if it has reported, is lost or leaves.

    A server without an address does not matter.
    """
    sightings = {
        "a": Sighting(report(), 0),
        "b": Sighting(None, 0, is_leaving=is_leaving),
        "hidden": Sighting(None, 0),
    }
    assert has_looked(SERVERS, sightings, ()) is is_leaving
    assert has_looked(SERVERS, sightings, {"b"})
    assert not has_looked(SERVERS, {}, ())


def test_model_without_a_version_is_listed() -> None:
    models = {MODEL: ModelReport()}
    sightings = {"a": Sighting(ServerReport(models=models), 0)}
    (row, _) = registered(SERVERS, sightings, ())
    assert (row.versions, row.is_ready) == ({MODEL: None}, False)
    assert parse_registry(registry_document([row])) == (row,)


class FakeProcess(HaproxyProcess):
    """A HAProxy that takes a text at the second look after it was written."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def follow(self, text: str) -> bool:
        self.texts.append(text)
        return self.texts.count(text) == 2


def outputs_in(directory: Path, **settings: Any) -> tuple[Outputs, FakeProcess]:
    process = FakeProcess()
    files = HaproxyFiles(
        file=str(directory / "haproxy.cfg"),
        pid_file="pid",
        settings=HaproxySettings(**settings),
    )
    return Outputs(str(directory / "servers.json"), files, process), process


def test_unchanged_servers_reload_nothing(tmp_path: Path) -> None:
    outputs, process = outputs_in(tmp_path)
    rows = registered(SERVERS, {"a": Sighting(report(), 0)}, ())
    for _ in range(5):
        outputs.update(rows)
    # HAProxy is looked at until it has taken the text, and then no more.
    assert len(process.texts) == 2
    assert parse_registry((tmp_path / "servers.json").read_text()) == tuple(rows)
    assert "server a 10.0.0.1:8500" in (tmp_path / "haproxy.cfg").read_text()


def test_draining_server_reloads_haproxy(tmp_path: Path) -> None:
    outputs, process = outputs_in(tmp_path)
    for is_draining in (False, True):
        sightings = {"a": Sighting(report(is_draining=is_draining), 0)}
        outputs.update(registered(SERVERS, sightings, ()))
    assert len({*process.texts}) == 2
    assert "10.0.0.1:8500 weight 0" in (tmp_path / "haproxy.cfg").read_text()


def test_unknown_servers_change_no_file(tmp_path: Path) -> None:
    """A coordinator that has just started knows less than the files."""
    outputs, _ = outputs_in(tmp_path)
    rows = registered(SERVERS, {"a": Sighting(report(), 0)}, ())
    assert outputs.registry == ""
    outputs.update(rows)
    text = (tmp_path / "servers.json").read_text()
    assert outputs.registry == text
    outputs.update(None)
    assert outputs.registry == ""
    assert (tmp_path / "servers.json").read_text() == text


def test_failed_write_is_repeated(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    directory.write_text("not a directory")
    outputs = Outputs(str(directory / "servers.json"), None)
    outputs.update([])
    assert len(outputs.problems) == 1
    directory.unlink()
    outputs.update([])
    assert (directory / "servers.json").exists()
    assert outputs.problems == []


def test_missing_directory_is_made_for_all_to_read(tmp_path: Path) -> None:
    Outputs(str(tmp_path / "a" / "b" / "servers.json"), None).update([])
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o755


def row(name: str, *models: str) -> RegisteredServer:
    return RegisteredServer(name=name, grpc="10.0.0.1:8500", versions=dict.fromkeys(models, 1))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([row("rack 1", "m")], "server name 'rack 1'"),
        ([row("a", "ctr"), row("b", "ads")], "do not have the same models"),
    ],
)
def test_text_that_cannot_be_made_ends_nothing(
    tmp_path: Path, rows: list[RegisteredServer], reason: str
) -> None:
    outputs, _ = outputs_in(tmp_path)
    outputs.update([row("a", "m")])
    before = (tmp_path / "haproxy.cfg").read_text()
    with capture_logs() as logs:
        for _ in range(3):
            outputs.update(rows)
    assert [entry["event"] for entry in logs] == ["fleet_file_not_written"]
    assert reason in outputs.problems[0]
    assert (tmp_path / "haproxy.cfg").read_text() == before
    assert parse_registry(outputs.registry) == tuple(rows)
    outputs.update([row("a", "m")])
    assert outputs.problems == []
