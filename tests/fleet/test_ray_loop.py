"""The loop that takes a fleet on Ray over."""

from collections.abc import Callable

import pytest

from serving.base.errors import DataLoss, Unavailable
from tests.unit.fakes.clocks import FakeClock

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray.coordinator_loop import PAUSE_SECONDS_MAX, CoordinatorLoop
from fleet.ray.key_value_store import Deposed


class Fleet:
    """A fleet whose run is `run`."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


class World:
    """A loop with the runs of its fleets, one after the other. An error in their place is a take-over's."""

    def __init__(self, *runs: Callable[[], None] | Exception) -> None:
        self.clock = FakeClock()
        self.runs = [*runs]
        self.loop = CoordinatorLoop(self.take_over, self.clock)

    def take_over(self) -> Fleet:
        run = self.runs.pop(0)
        if isinstance(run, Exception):
            raise run
        return Fleet(run)


def nothing() -> None:
    pass


def fail() -> None:
    raise KeyError("a bug")


def test_take_over_that_fails_is_repeated() -> None:
    reasons: list[str] = []

    def look() -> None:
        assert isinstance(world.loop.fleet, Fleet)

    world = World(OSError("the store does not answer"), DataLoss("not a state"), look)
    wait = world.clock.wait

    def noting(condition: object, seconds: float | None) -> bool:
        with pytest.raises(Unavailable) as raised:
            _ = world.loop.fleet
        reasons.append(str(raised.value))
        return wait(condition, seconds)  # type: ignore[arg-type]

    world.clock.wait = noting  # type: ignore[method-assign,assignment]
    world.loop.run()
    assert [reason.rpartition(": ")[2] for reason in reasons] == [
        "the store does not answer",
        "not a state",
    ]
    with pytest.raises(Unavailable):
        _ = world.loop.fleet


def test_lasting_bug_is_tried_ever_more_seldom() -> None:
    world = World(*[fail] * 8, nothing)
    world.loop.run()
    assert world.clock.waits == [1, 2, 4, 8, 16, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX, 30]


def test_failure_after_a_long_time_is_tried_soon() -> None:
    def fail_late() -> None:
        world.clock.advance(100)
        fail()

    world = World(fail, fail, fail_late, fail, nothing)
    world.loop.run()
    assert world.clock.waits == [1, 2, 1, 2]


def test_next_coordinator_ends_the_loop() -> None:
    def depose() -> None:
        raise Deposed("another coordinator")

    world = World(depose, nothing)
    with pytest.raises(Deposed):
        world.loop.run()
    with pytest.raises(Unavailable, match="another coordinator"):
        _ = world.loop.fleet
