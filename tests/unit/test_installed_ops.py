"""Packages with op libraries that are loaded when a model needs them."""

from serving.base.errors import InvalidConfig
from serving.loading.installed_ops import InstalledOps

TEXT_OP = "CaseFoldUTF8"


def found(package: str) -> list[str]:
    return [f"/{package}/ops.so"]


def not_installed(package: str) -> list[str]:
    raise InvalidConfig(f"{package} is not installed")


def loaded_by(ops: InstalledOps, *needs: str) -> tuple[bool, list[str]]:
    paths: list[str] = []

    def load_library(path: str) -> list[str]:
        paths.append(path)
        return [TEXT_OP]

    return ops.load(needs, load_library), paths


def test_installed_package_is_loaded_once():
    ops = InstalledOps(found)
    assert loaded_by(ops, "Mine", TEXT_OP) == (True, ["/tensorflow-text/ops.so"])
    assert loaded_by(ops, TEXT_OP) == (True, [])


def test_package_that_is_not_installed_changes_nothing():
    assert loaded_by(InstalledOps(not_installed), TEXT_OP) == (False, [])


def test_op_that_the_package_lacks_stays_missing():
    ops = InstalledOps(found)
    assert loaded_by(ops, "Mine") == (False, ["/tensorflow-text/ops.so"])
    assert loaded_by(ops, "Mine") == (False, [])
