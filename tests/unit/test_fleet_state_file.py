from pathlib import Path

import pytest

from serving.base.errors import DataLoss, FailedPrecondition
from serving.fleet.state_file import StateFile


def test_state_file_returns_what_was_written(tmp_path: Path) -> None:
    store = StateFile(tmp_path / "fleet")
    assert store.read() is None
    store.write("{}")
    store.close()
    assert StateFile(tmp_path / "fleet").read() == "{}"


def test_second_coordinator_is_refused(tmp_path: Path) -> None:
    first = StateFile(tmp_path)
    with pytest.raises(FailedPrecondition, match="another coordinator"):
        StateFile(tmp_path)
    first.close()
    StateFile(tmp_path).close()


def test_file_that_is_not_text_is_data_loss(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_bytes(b"\xff\xfe{}")
    store = StateFile(tmp_path)
    with pytest.raises(DataLoss, match=r"fleet\.json"):
        store.read()
    store.close()
