from pathlib import Path

import pytest

from tests.integration import kept_exports
from tests.integration.kept_exports import kept_export


class Exporter:
    """Writes how often it was called."""

    def __init__(self) -> None:
        self.call_count = 0

    def __call__(self, directory: Path) -> None:
        self.call_count += 1
        (directory / "model").write_text(f"{self.call_count}")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A folder and a file of a repository of its own."""
    monkeypatch.setattr(kept_exports, "REPOSITORY", tmp_path)
    monkeypatch.setattr(kept_exports, "DIRECTORY", tmp_path / "build")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.py").write_text("a")
    (tmp_path / "b.py").write_text("b")
    return ("folder", "b.py")


def test_export_of_same_sources_is_kept(sources: tuple[str, ...]) -> None:
    make = Exporter()
    kept = kept_export("m", make, sources)
    assert kept_export("m", make, sources) == kept
    assert (kept / "model").read_text() == "1"


@pytest.mark.parametrize("changed", ["folder/a.py", "folder/new.py", "b.py"])
def test_export_of_changed_source_is_made_again(
    sources: tuple[str, ...], tmp_path: Path, changed: str
) -> None:
    make = Exporter()
    old = kept_export("m", make, sources)
    (tmp_path / changed).write_text("changed")
    assert (kept_export("m", make, sources) / "model").read_text() == "2"
    assert not old.exists()


def test_export_of_another_stamp_is_made_again(sources: tuple[str, ...]) -> None:
    make = Exporter()
    for stamp in ("1", "2"):
        kept_export("m", make, sources, stamp=stamp)
    assert make.call_count == 2


def test_export_that_failed_is_made_again(sources: tuple[str, ...]) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").touch()
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        kept_export("m", fail, sources)
    kept = kept_export("m", Exporter(), sources)
    assert [path.name for path in kept.iterdir()] == ["model"]


def test_exports_of_two_names_are_both_kept(sources: tuple[str, ...]) -> None:
    first = kept_export("m", Exporter(), sources)
    second = kept_export("m-2", Exporter(), sources)
    assert first.exists()
    assert second.exists()
