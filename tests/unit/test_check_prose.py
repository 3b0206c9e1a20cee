"""Tests of the prose check that `make lint` runs."""

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
        ("a.py", "# Whether it ends.\n"),
        ("a.py", "# False where the thread still runs.\n"),
        ("a.py", 'X = 1\n"""Of one request."""\n'),
        ("a.py", 'X = 1\n"""Zero, or one where possible."""\n'),
        ("a.py", 'def f() -> None:\n    """By the name of the method."""\n'),
        ("a.py", 'def f() -> None:\n    """How it ends."""\n'),
        ("a.py", 'def f() -> None:\n    """asyncio\'s."""\n'),
        ("a.py", 'def f() -> None:\n    """httptools\': the head is complete."""\n'),
        ("a.h", "// What it does.\nint x;\n"),
        ("a.cc", "int x;  // Of a thing.\n"),
        ("a.cc", "// Zero where\n// nothing runs.\n"),
        ("a.py", "# It waits. One that ends does not.\n"),
        ("a.py", 'def f() -> None:\n    """Two wait (a and b). The others run."""\n'),
        ("a.cc", "// The queue ends; those in it wait.\n"),
        ("a.h", "// So many wait at most.\nint x;\n"),
    ],
)
def test_check_prose_finds_a_bad_comment(tmp_path: Path, name: str, text: str) -> None:
    assert check(tmp_path, name, text) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Returns what it does."""\n'),
        ("a.py", 'x = "What it does"\n'),
        ("a.py", "# By name, because a map has no order.\n"),
        ("a.py", 'X = 1\n"""How long a call waits."""\n'),
        ("a.py", 'def f() -> None:\n    """uvicorn\'s server."""\n'),
        ("a.py", "# The place where the file lies.\n"),
        ("a.h", "// Returns zero if nothing runs.\nint x;\n"),
        ("a.cc", 'const char* x = "// no comment";\n'),
        ("a.txt", "What it does\n"),
        ("a.py", "# One of the calls waits. One call runs, beside those that ended.\n"),
    ],
)
def test_check_prose_takes_plain_text(tmp_path: Path, name: str, text: str) -> None:
    assert check(tmp_path, name, text) == 0


@pytest.mark.parametrize(("count", "status"), [(5, 0), (6, 1)])
def test_check_prose_limits_share_of_returns(tmp_path: Path, count: int, status: int) -> None:
    openings = ["Returns it"] * count + ["Makes it"] * (100 - count)
    text = "".join(f"# {opening} {number}.\n\n" for number, opening in enumerate(openings))
    assert check(tmp_path, "a.py", text) == status


def test_check_prose_names_file_line_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(tmp_path, "a.py", "\n\n# What it does.\n")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / 'a.py'}:3: What it does.")
    assert "start with a verb" in line


LONGEST = "x" * check_prose.TEST_NAME_LENGTH_MAX


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test_a.py", "def test_{}() -> None: ..."),
        ("test_a.py", "class A:\n    async def test_{}(self) -> None: ..."),
        ("a_test.cc", "TEST(Suite, Nam{}) {{}}"),
        ("a_test.cc", "TEST_F(\n    Suite, Nam{}) {{}}"),
        ("contract.h", "TYPED_TEST_P(Suite, Nam{}) {{}}"),
    ],
)
def test_check_prose_limits_length_of_test_names(tmp_path: Path, name: str, text: str) -> None:
    prefix = len("test_" if name.endswith(".py") else "Nam")
    assert check(tmp_path, name, text.format(LONGEST[prefix:])) == 0
    assert check(tmp_path, name, text.format(LONGEST[prefix:] + "x")) == 1


def test_check_prose_names_long_test_with_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(tmp_path, "test_a.py", f"\ndef test_{LONGEST}() -> None: ...\n")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / 'test_a.py'}:2: test_{LONGEST}: ")
    assert line.endswith("the test name has 55 characters: state its promise in at most 50")


def test_check_prose_table_counts_in_1000(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text("# Waits if full.\n\n# Waits twice.\n")

    assert check_prose.main(["--table", str(tmp_path)]) == 0

    assert "contains if            500.0" in capsys.readouterr().out
