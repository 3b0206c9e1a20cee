"""The reader of the Dockerfile, which stands in for docker, reads it as docker does."""

from __future__ import annotations

import pytest

from tests.images import try_dockerfile

PATTERNS = [".git", "build", ".venv-*", "**/__pycache__", "**/*.so"]


def test_continued_lines_are_joined_across_comments() -> None:
    text = "# A comment.\nFROM debian AS build\n\nRUN one \\\n  two\n"

    assert try_dockerfile.instructions(text) == [("FROM", "debian AS build"), ("RUN", "one    two")]


@pytest.mark.parametrize(
    "path",
    ["build", "build/editable/a.o", ".venv-3.12/bin", "__pycache__", "serving/__pycache__/a.pyc",
     "serving/data_plane/_native.so", "a.so"],
)  # fmt: skip
def test_is_ignored_matches_patterns(path: str) -> None:
    assert try_dockerfile.is_ignored(path, PATTERNS)


@pytest.mark.parametrize("path", ["serving", "scripts/docker/build.sh", "native/build.h", "so"])
def test_is_ignored_other_path_is_kept(path: str) -> None:
    assert not try_dockerfile.is_ignored(path, PATTERNS)


def test_dockerfile_every_instruction_is_known() -> None:
    dockerfile = (try_dockerfile.PROJECT / "Dockerfile").read_text()

    for instruction, _ in try_dockerfile.instructions(dockerfile):
        assert hasattr(try_dockerfile.Build, f"_{instruction.lower()}"), instruction
