"""Names that Python repeats of native enumerations."""

import re
from pathlib import Path

from serving.data_plane.request_statistics import PHASES
from serving.monitoring.page_data import VERSION_METHODS

NATIVE = Path(__file__).parents[2] / "native"


def names_of(array: str, file: str) -> list[str]:
    """Returns the strings of the constant array of that name."""
    text = (NATIVE / file).read_text()
    found = re.search(rf"{array} = \{{([^}}]*)\}}", text)
    assert found, f"{file} has no array {array}"
    return re.findall(r'"(\w+)"', found[1])


def test_page_counts_the_methods_of_the_recorder():
    names = names_of("kNames", "metrics/request_recorder.cc")
    assert sorted(VERSION_METHODS) == sorted(names)


def test_phases_are_those_of_the_data_plane():
    assert list(PHASES) == names_of("kPhaseNames", "python/statistics_binding.cc")
