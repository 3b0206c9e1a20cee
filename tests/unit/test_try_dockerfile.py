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


STAGED = """ARG BASE=debian
FROM ${BASE} AS build
RUN compile
FROM scratch AS wheel
COPY --from=build /dist/*.whl /
FROM ${BASE} AS unused
FROM ${BASE}
COPY --from=wheel /*.whl /tmp/
"""


def test_stages_have_images_and_steps() -> None:
    variables, stages = try_dockerfile.stages(try_dockerfile.instructions(STAGED))
    assert variables == {"BASE": "debian"}
    assert [(stage.image, stage.name) for stage in stages] == [
        *(("debian", "build"), ("scratch", "wheel"), ("debian", "unused"), ("debian", "stage-3"))
    ]
    assert stages[0].steps == [("RUN", "compile")]


@pytest.mark.parametrize(
    ("contexts", "expected"),
    [
        ((), ["build", "wheel", "stage-3"]),
        (("wheel",), ["stage-3"]),
        (("build",), ["wheel", "stage-3"]),
    ],
)
def test_only_needed_stages_are_built(contexts: tuple[str, ...], expected: list[str]) -> None:
    _, stages = try_dockerfile.stages(try_dockerfile.instructions(STAGED))
    assert [stage.name for stage in try_dockerfile.needed_stages(stages, contexts)] == expected
