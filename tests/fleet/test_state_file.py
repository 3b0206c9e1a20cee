import shutil
from pathlib import Path

import pytest

from fleet.lead.coordinator import Coordinator
from fleet.lead.leadership import FileLeadership
from fleet.lead.state_file import StateFile
from fleet.rollout.wave_settings import WaveSettings
from serving.base.errors import DataLoss, FailedPrecondition
from tests.unit.fakes.clocks import FakeClock


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


def test_deleted_lock_lets_no_other_in(tmp_path: Path) -> None:
    first = StateFile(tmp_path)
    (tmp_path / "lock").unlink()
    with pytest.raises(FailedPrecondition, match="another coordinator"):
        StateFile(tmp_path)
    first.write("{}")
    assert first.read() == "{}"
    first.close()


def test_deleted_directory_is_not_written_anew(tmp_path: Path) -> None:
    place = tmp_path / "fleet"
    first = StateFile(place)
    first.write("{}")
    shutil.rmtree(place)
    second = StateFile(place)
    second.write('{"order": 1}')
    with pytest.raises(FileNotFoundError):
        first.write("{}")
    assert second.read() == '{"order": 1}'
    first.close()
    second.close()


def test_each_term_of_a_file_has_a_higher_number(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        leadership = FileLeadership(tmp_path)
        term = leadership.term()
        # A coordinator takes the state over before it acts.
        Coordinator(term.store, lambda grants: None, WaveSettings(), FakeClock())
        numbers.append(term.number)
        (tmp_path / "lock").unlink()
        leadership.stop()
    assert numbers == sorted({*numbers})


def test_file_that_is_not_text_is_data_loss(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_bytes(b"\xff\xfe{}")
    store = StateFile(tmp_path)
    with pytest.raises(DataLoss, match=r"fleet\.json"):
        store.read()
    store.close()
