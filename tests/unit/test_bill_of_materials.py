from importlib.metadata import PackageNotFoundError

import pytest

from serving.base import bill_of_materials
from serving.base.bill_of_materials import BILL_OF_MATERIALS, bundled_libraries, libraries

DOCUMENT = '{"components": [{"name": "zlib", "version": "1.2.13", "purl": "pkg:generic/zlib"}]}'


class FakeDistribution:
    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def read_text(self, name: str) -> str | None:
        return self.files.get(name)


def test_libraries_have_name_and_version():
    assert libraries(DOCUMENT) == {"zlib": "1.2.13"}


@pytest.mark.parametrize(
    ("files", "expected"), [({BILL_OF_MATERIALS: DOCUMENT}, {"zlib": "1.2.13"}), ({}, {})]
)
def test_bundled_libraries_are_of_the_package(
    files: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bill_of_materials, "distribution", lambda name: FakeDistribution(files))
    assert bundled_libraries() == expected


def test_bundled_libraries_of_no_package_are_none(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> FakeDistribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(bill_of_materials, "distribution", missing)
    assert bundled_libraries() == {}
