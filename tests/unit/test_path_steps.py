import os
from pathlib import Path

import pytest

from serving.source.path_steps import LINK_COUNT_MAX, path_steps


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store" / "m").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    return tmp_path


def test_path_without_links_passes_its_parents(root: Path) -> None:
    steps = path_steps(str(root / "store" / "m"))
    assert (steps.end, steps.links) == (str(root / "store" / "m"), frozenset())
    assert {"/", str(root), str(root / "store")} <= steps.directories
    assert steps.decisive_directories == {steps.end}


def test_path_over_links_passes_both_ways(root: Path) -> None:
    (root / "links" / "a").symlink_to("../store")
    (root / "b").symlink_to(root / "links" / "a" / "m")
    steps = path_steps(str(root / "b"))
    assert steps.end == str(root / "store" / "m")
    assert steps.links == {str(root / "b"), str(root / "links" / "a")}
    assert {str(root / "links"), str(root / "store")} <= steps.directories
    assert steps.decisive_directories == {steps.end, str(root), str(root / "links")}


def test_dots_after_a_link_are_those_of_its_end(root: Path) -> None:
    (root / "links" / "a").symlink_to(root / "store" / "m")
    path = str(root / "links" / "a" / ".." / "." / "m")
    assert path_steps(path).end == os.path.realpath(path) == str(root / "store" / "m")


def test_relative_path_begins_at_the_working_directory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "links")
    assert path_steps("../store/m").end == str(root / "store" / "m")


def test_circle_of_links_raises(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        path_steps(str(root / "a"))


def test_path_follows_as_many_links_as_the_kernel(root: Path) -> None:
    (root / "0").symlink_to("store")
    for number in range(1, LINK_COUNT_MAX + 1):
        (root / str(number)).symlink_to(str(number - 1))
    assert path_steps(str(root / str(LINK_COUNT_MAX - 1))).end == str(root / "store")
    with pytest.raises(OSError, match="symbolic links"):
        os.listdir(root / str(LINK_COUNT_MAX))
    with pytest.raises(OSError, match="symbolic links"):
        path_steps(str(root / str(LINK_COUNT_MAX)))


def test_path_that_leads_nowhere_raises(root: Path) -> None:
    (root / "a").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        path_steps(str(root / "a"))
