import os
import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.base.directory_files import (
    PRIVATE_FILE_MODE,
    opened_directory,
    opened_directory_of_name,
    replace_file,
)


def files_below(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if not path.is_dir()}


@given(
    st.lists(st.text("./~%a\\\0é\ud800", max_size=9), min_size=1, max_size=4, unique=True),
)
@example(["../../x", "/abs", "..", ".", "", "a/b", "a%2Fb", "x" * 999])
def test_each_name_has_one_private_file_inside(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
):
    outer = tmp_path_factory.mktemp("outer")
    inside = outer / "a" / "b" / "inside"
    for number, name in enumerate(names):
        with opened_directory_of_name(inside, name) as directory:
            replace_file(directory, "f", [b"%d" % number], PRIVATE_FILE_MODE)
    files = files_below(outer)
    assert {path.parent.parent for path in files} == {inside}
    assert sorted(path.read_bytes() for path in files) == [b"%d" % n for n in range(len(names))]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files} == {0o700}
    # Whoever lists the directory sees the names of the models.
    assert stat.S_IMODE(inside.stat().st_mode) == 0o700


def test_directory_that_was_there_keeps_its_mode(tmp_path: Path):
    inside = tmp_path / "inside"
    inside.mkdir()
    inside.chmod(0o750)
    with opened_directory_of_name(inside, "m"):
        assert stat.S_IMODE(inside.stat().st_mode) == 0o750


def test_entry_that_is_a_link_is_not_followed(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "m").symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError), opened_directory_of_name(inside, "m"):
        pass
    assert list(elsewhere.iterdir()) == []


def test_linked_file_is_replaced_not_overwritten(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    directory_path = tmp_path / "d"
    directory_path.mkdir()
    (directory_path / "f").symlink_to(victim)
    (directory_path / f".f.{os.getpid()}.partial").symlink_to(victim)
    with opened_directory(directory_path) as directory:
        replace_file(directory, "f", [b"new"], PRIVATE_FILE_MODE)
    assert victim.read_bytes() == b"kept"
    assert not (directory_path / "f").is_symlink()
    assert (directory_path / "f").read_bytes() == b"new"
    assert os.listdir(directory_path) == ["f"]


def test_failed_write_leaves_the_file_before(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"old")

    def chunks():
        yield b"new"
        raise OSError("disk full")

    with opened_directory(tmp_path) as directory, pytest.raises(OSError, match="disk full"):
        replace_file(directory, "f", chunks(), PRIVATE_FILE_MODE)
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"
