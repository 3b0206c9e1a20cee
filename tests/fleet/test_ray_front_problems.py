"""The problems of fronts in the status of their fleet's coordinator."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray.front_problems import FRESH_SECONDS, FrontProblems
from tests.unit.fakes.clocks import FakeClock


def test_problems_are_those_of_fronts_that_run() -> None:
    clock = FakeClock()
    problems = FrontProblems(clock)
    problems.note("a", ["no space left", "no pid file"])
    clock.advance(FRESH_SECONDS)
    problems.note("b", ["not allowed"])
    assert problems.present() == ["a: no space left", "a: no pid file", "b: not allowed"]
    clock.advance(1)
    assert problems.present() == ["b: not allowed"]
    problems.note("b", [])
    assert problems.present() == []
