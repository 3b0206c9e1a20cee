from pathlib import Path

import pytest

from serving.core.granted_versions import GrantedVersion
from serving.reload.grants import FILE_NAME, Grants
from tests.unit.fakes.clocks import FakeClock


class Selections:
    """The versions that sources may select, as they were set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[int]]] = []

    def set_granted(self, name: str, versions: frozenset[int]) -> None:
        self.calls.append((name, versions))


def test_server_without_a_grant_selects_nothing() -> None:
    grants = Grants(None, Selections().set_granted, FakeClock())
    assert (grants.granted("m"), grants.versions("m")) == (None, frozenset())


def test_grant_reaches_the_source() -> None:
    selections = Selections()
    grants = Grants(None, selections.set_granted, FakeClock())
    assert grants.grant("m", 7, 1) == GrantedVersion(7, 1)
    assert selections.calls == [("m", frozenset({7}))]
    assert grants.versions("m") == {7}


def test_withdrawn_grant_leaves_nothing_to_select(tmp_path: Path) -> None:
    selections = Selections()
    grants = Grants(tmp_path, selections.set_granted, FakeClock())
    grants.grant("m", 7, 1)
    assert grants.grant("m", None, 2) == GrantedVersion(None, 2)
    assert selections.calls[-1] == ("m", frozenset())
    again = Grants(tmp_path, Selections().set_granted, FakeClock())
    assert (again.granted("m"), again.versions("m")) == (GrantedVersion(None, 2), frozenset())


def test_stale_grant_changes_nothing() -> None:
    selections = Selections()
    grants = Grants(None, selections.set_granted, FakeClock())
    grants.grant("m", 7, 5)
    assert grants.grant("m", 8, 4) == GrantedVersion(7, 5)
    assert len(selections.calls) == 1


def test_repeated_grant_is_taken_once() -> None:
    selections = Selections()
    grants = Grants(None, selections.set_granted, FakeClock())
    grants.grant("m", 7, 5)
    assert grants.grant("m", 7, 6) == GrantedVersion(7, 6)
    assert len(selections.calls) == 1


def test_grant_survives_a_restart(tmp_path: Path) -> None:
    Grants(tmp_path / "state", Selections().set_granted, FakeClock()).grant("m", 7, 5)
    again = Grants(tmp_path / "state", Selections().set_granted, FakeClock())
    assert again.granted("m") == GrantedVersion(7, 5)
    assert again.grant("m", 6, 4) == GrantedVersion(7, 5)


@pytest.mark.parametrize("text", ["", "[]", '{"granted_versions": 3}'])
def test_unreadable_file_counts_as_no_grant(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert Grants(tmp_path, Selections().set_granted, FakeClock()).granted("m") is None


def test_grant_holds_without_a_disk(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    grants = Grants(file / "state", Selections().set_granted, FakeClock())
    assert grants.grant("m", 7, 5) == GrantedVersion(7, 5)
    assert grants.versions("m") == {7}


def test_grant_remembers_since_when_it_is_in_effect() -> None:
    clock = FakeClock()
    grants = Grants(None, Selections().set_granted, clock)
    began_ns = clock.now_ns()
    grants.grant("m", 7, 1)
    clock.advance(5)
    assert grants.grant("m", 7, 2).since_ns == began_ns
    assert grants.grant("m", 8, 3).since_ns == clock.now_ns()
