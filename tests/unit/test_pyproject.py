"""Lists of pyproject.toml that must agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from serving.base.tensorflow_package import MINOR_VERSION, REQUIREMENT
from serving.core.store_urls import BACKENDS

PYPROJECT = tomli.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def test_pyproject_build_group_repeats_build_requires() -> None:
    assert PYPROJECT["dependency-groups"]["build"] == PYPROJECT["build-system"]["requires"]


def test_module_builds_with_tensorflow_of_runtime() -> None:
    def tensorflow(requirements: list[str]) -> list[str]:
        return [r for r in requirements if r.startswith("tensorflow>")]

    built_with = tensorflow(PYPROJECT["build-system"]["requires"])
    assert len(built_with) == 1
    assert tensorflow(PYPROJECT["project"]["dependencies"]) == built_with
    # The version that the server refuses to run without.
    assert built_with == [REQUIREMENT]
    assert REQUIREMENT.startswith(f"tensorflow>={MINOR_VERSION},")


@pytest.mark.parametrize("extra", ["otel", "kubernetes", "parquet"])
def test_test_group_contains_extra(extra: str) -> None:
    assert set(PYPROJECT["project"]["optional-dependencies"][extra]) <= set(
        PYPROJECT["dependency-groups"]["test"]
    )


def test_test_groups_contain_ray_extra() -> None:
    (ray,) = PYPROJECT["project"]["optional-dependencies"]["ray"]
    assert ray in PYPROJECT["dependency-groups"]["test"]
    assert ray in PYPROJECT["dependency-groups"]["loadtest"]


def test_each_store_has_an_extra() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    for backend in BACKENDS.values():
        packages = {requirement.partition(">")[0] for requirement in extras[backend.extra]}
        assert backend.module in packages
    assert set(extras["s3"]) <= set(PYPROJECT["dependency-groups"]["test"])
