"""The place of a version that is written: `millpond delta` and the exports of deltas."""

from pathlib import Path

import pytest

from millpond.version_files import refuse_target
from serving.base.errors import FailedPrecondition
from serving.commands.cli import main


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories of versions, and `link`, a link to the first one."""
    found = tmp_path / "1", tmp_path / "2"
    for path in found:
        (path / "variables").mkdir(parents=True)
    (tmp_path / "link").symlink_to(found[0])
    return found


@pytest.mark.parametrize("place", ["1/inside", "2/variables/new/3", "link/inside", "2/../1/inside"])
def test_target_inside_a_source_is_refused(
    tmp_path: Path, versions: tuple[Path, Path], place: str
) -> None:
    with pytest.raises(FailedPrecondition, match="which is only read"):
        refuse_target(tmp_path / place, *versions)


def test_target_beside_its_sources_is_taken(tmp_path: Path, versions: tuple[Path, Path]) -> None:
    for place in ("3", "12", "new/1"):
        refuse_target(tmp_path / place, *versions)
    with pytest.raises(FailedPrecondition, match="exists already"):
        refuse_target(versions[1], *versions)


def test_target_below_a_link_in_a_circle_is_no_crash(
    tmp_path: Path, versions: tuple[Path, Path]
) -> None:
    """The write then fails with the error of the system."""
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refuse_target(tmp_path / "circle" / "3", *versions)


def test_delta_command_writes_into_no_version(
    tmp_path: Path, versions: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for version in versions:
        assert main(["delta", *map(str, versions), str(version / "inside")]) == 1
        assert f"{version}/inside lies inside {version}" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
