"""clang-tidy runs again on a file exactly when its result may differ."""

from pathlib import Path

import pytest
import run_clang_tidy

COMMAND = "clang++ -I."


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a source, a header of a header, and a header that no file includes."""
    monkeypatch.chdir(tmp_path)
    run_clang_tidy.included.cache_clear()
    Path(".clang-tidy").write_text("Checks: '*'")
    Path("a.cc").write_text('#include "a.h"\n#include <vector>\n')
    Path("a.h").write_text('#include "b.h"\n#include "a.h"\n#include "elsewhere.h"\n')
    Path("b.h").write_text("int b;")
    Path("other.h").write_text("int other;")
    return tmp_path


def digest(command: str = COMMAND) -> str:
    run_clang_tidy.included.cache_clear()
    return run_clang_tidy.digest(Path("a.cc"), command)


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize("name", ["a.cc", "a.h", "b.h", ".clang-tidy"])
def test_run_clang_tidy_again_after_a_change(name: str):
    before = digest()
    Path(name).write_text(Path(name).read_text() + "\n")
    assert digest() != before


@pytest.mark.usefixtures("sources")
def test_run_clang_tidy_again_for_other_flags():
    assert digest("clang++ -I. -DX") != digest()


@pytest.mark.usefixtures("sources")
def test_run_clang_tidy_once_if_nothing_changed():
    before = digest()
    Path("other.h").write_text("int changed;")
    Path("b.h").touch()
    assert digest() == before


def test_run_clang_tidy_stamps_what_passed(sources: Path, monkeypatch: pytest.MonkeyPatch):
    build = sources / "build"
    build.mkdir()
    (build / "compile_commands.json").write_text(
        f'[{{"file": "{sources}/a.cc", "command": "{COMMAND}"}}]'
    )
    source = Path("a.cc")
    pending = run_clang_tidy.changed(build, [source])
    assert set(pending) == {source}
    monkeypatch.setattr(run_clang_tidy, "CLANG_TIDY", "false")
    assert not run_clang_tidy.check(build, source, pending[source])
    assert run_clang_tidy.changed(build, [source]) == pending
    monkeypatch.setattr(run_clang_tidy, "CLANG_TIDY", "true")
    assert run_clang_tidy.check(build, source, pending[source])
    assert run_clang_tidy.changed(build, [source]) == {}
