"""The prose check of `make lint` finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import check_prose
import pytest


def check(tmp_path: Path, name: str, text: str) -> int:
    (tmp_path / name).write_text(text)
    return check_prose.main([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""What it does."""\n'),
        ("a.py", 'def f() -> None:\n    """Of a thing."""\n'),
        ("a.py", "# Those that end.\n"),
        ("a.py", "x = 1\n# A value, or None where\n# there is no value.\n"),
        ("a.pyi", "x = 1  # Who asks.\n"),
        ("a.h", "// What it does.\nint x;\n"),
        ("a.cc", "int x;  // Of a thing.\n"),
        ("a.cc", "// Zero where\n// nothing runs.\n"),
    ],
)
def test_check_prose_finds_a_bad_comment(tmp_path: Path, name: str, text: str) -> None:
    assert check(tmp_path, name, text) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Returns what it does."""\n'),
        ("a.py", 'x = "What it does"\n'),
        ("a.py", "# The place where the file lies.\n"),
        ("a.h", "// Returns zero if nothing runs.\nint x;\n"),
        ("a.cc", 'const char* x = "// no comment";\n'),
        ("a.txt", "What it does\n"),
    ],
)
def test_check_prose_takes_plain_text(tmp_path: Path, name: str, text: str) -> None:
    assert check(tmp_path, name, text) == 0


def test_check_prose_names_file_line_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(tmp_path, "a.py", "\n\n# What it does.\n")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / 'a.py'}:3: What it does.")
    assert "start with a verb" in line


def test_check_prose_table_counts_in_1000(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text("# Waits if full.\n\n# Waits twice.\n")

    assert check_prose.main(["--table", str(tmp_path)]) == 0

    assert "contains if            500.0" in capsys.readouterr().out
