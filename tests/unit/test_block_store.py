"""The supervisor's changes to the file of blocked versions."""

from pathlib import Path

from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.manager.blocked_version_rows import FILE_NAME
from serving.supervisor.block_store import BlockStore
from serving.supervisor.crash_page import MarkedVersion

BLOCK = BlockedVersion(by=BlockedBy.CRASH, reason="r", since_wall_ns=1, not_before_wall_ns=2)


def test_added_blocks_are_read_back(tmp_path: Path):
    store = BlockStore(tmp_path / "state")
    assert store.read() == {}
    assert store.add({MarkedVersion("m", 1): BLOCK}) == ""
    assert store.add({MarkedVersion("m", 2): BLOCK, MarkedVersion("n", 1): BLOCK}) == ""
    assert store.read() == {"m": {1: BLOCK, 2: BLOCK}, "n": {1: BLOCK}}


def test_damaged_file_is_left_as_it_is(tmp_path: Path):
    path = tmp_path / FILE_NAME
    path.write_text("{")
    assert FILE_NAME in BlockStore(tmp_path).add({MarkedVersion("m", 1): BLOCK})
    assert path.read_text() == "{"


def test_directory_that_cannot_be_written_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    assert BlockStore(tmp_path / "file").add({MarkedVersion("m", 1): BLOCK}) != ""
