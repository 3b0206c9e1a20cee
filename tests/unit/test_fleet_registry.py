from pathlib import Path

import pytest

from serving.base.errors import DataLoss
from serving.client.fleet_registry import RegisteredServer, parse_registry
from serving.fleet.registry import registry_document, write_text

SERVERS = (
    RegisteredServer(name="a", grpc="10.0.0.1:8500", versions={"ctr": 7}),
    RegisteredServer(name="b", grpc="10.0.0.2:8500", http="10.0.0.2:8501", is_draining=True),
)


def test_registry_survives_its_document() -> None:
    assert parse_registry(registry_document(SERVERS)) == SERVERS


def test_registry_does_not_depend_on_the_order() -> None:
    assert registry_document(SERVERS) == registry_document(SERVERS[::-1])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"servers": [{"name": "a"}]}'])
def test_other_text_is_not_a_registry(text: str) -> None:
    with pytest.raises(DataLoss):
        parse_registry(text)


def test_written_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    write_text(path, "old")
    before = path.stat().st_ino
    write_text(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_ino != before
    assert [*tmp_path.iterdir()] == [path]
