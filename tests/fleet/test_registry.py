from pathlib import Path

import pytest

from fleet.files.registry import RegisteredServer, parse_registry, registry_document, write_text
from serving.base.errors import DataLoss

SERVERS = (
    RegisteredServer(name="a", grpc="10.0.0.1:8500", versions={"ctr": 7}),
    RegisteredServer(name="b", grpc="10.0.0.2:8500", http="10.0.0.2:8501", is_draining=True),
)


def test_registry_survives_its_document() -> None:
    assert parse_registry(registry_document(SERVERS)) == SERVERS


def test_registry_does_not_depend_on_the_order() -> None:
    assert registry_document(SERVERS) == registry_document(SERVERS[::-1])


def test_registry_of_newer_coordinator_is_read() -> None:
    text = '{"servers": [{"name": "a", "grpc": "10.0.0.1:1", "zone": "b"}], "more": 1}'
    assert parse_registry(text) == (RegisteredServer(name="a", grpc="10.0.0.1:1"),)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", '{"servers": [1]}', '{"servers": [{"name": "a"}]}'),
        '{"servers": [{"name": "a", "grpc": 1}]}',
        '{"servers": [{"name": "a", "grpc": "h:1", "versions": ["m"]}]}',
    ],
)
def test_other_text_is_not_a_registry(text: str) -> None:
    with pytest.raises(DataLoss, match="not the registry of a fleet"):
        parse_registry(text)


def test_written_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    write_text(path, "old")
    before = path.stat().st_ino
    write_text(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_ino != before
    assert [*tmp_path.iterdir()] == [path]
