"""Coordinators on Ray that die at any call to the store or the cluster, and their successors."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from serving.base.errors import Unavailable
from serving.fleet.placement import ServerRoom
from serving.fleet.replicas import UP, Replica

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from serving.fleet.ray import coordinator_actor
from serving.fleet.ray.cluster import Looked
from tests.unit.fakes.ray_store import FakeStore
from tests.unit.test_fleet_ray_coordinator import FakeServers, World, configured_store


class Killed(BaseException):
    """Ends a coordinator at a call, as SIGKILL does."""


class NoHttp:
    """The HTTP of a coordinator that nobody asks."""

    port = 1

    def __init__(self, *arguments: object) -> None:
        pass

    def start(self) -> None:
        """Starts nothing."""

    def stop(self) -> None:
        """Stops nothing."""

    def join(self) -> None:
        """Waits for nothing."""


@pytest.fixture(autouse=True)
def _no_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_actor, "fleet_http", NoHttp)


class Failing:
    """Calls that go on, until one is the last one, or until the next ones fail."""

    def __init__(self) -> None:
        self.left = 10**9
        self.error: type[BaseException] = Killed
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.left -= 1
        if self.left < 0:
            raise self.error("no answer")

    def last_for(self, seconds: int, error: type[BaseException] = Killed) -> None:
        self.left, self.error = seconds, error


class FailingStore(FakeStore):
    def __init__(self, calls: Failing) -> None:
        super().__init__(dict(configured_store().values))
        self._failing = calls

    def call(self) -> None:
        self._failing()


class FailingServers(FakeServers):
    """Launches with their actors. An actor stays when its server has ended."""

    def __init__(self, calls: Failing) -> None:
        super().__init__()
        self._failing = calls
        self.actors: set[int] = set()

    def rooms(self) -> list[ServerRoom]:
        self._failing()
        return super().rooms()

    def start(self, replica: Replica) -> None:
        self._failing()
        super().start(replica)
        self.actors.add(replica.launch)

    def look(self, replicas: Sequence[Replica]) -> dict[str, Looked]:
        self._failing()
        return super().look(replicas)

    def stop(self, replica: Replica) -> None:
        self._failing()
        super().stop(replica)

    def end(self, replica: Replica) -> None:
        self._failing()
        super().end(replica)
        self.actors.discard(replica.launch)

    def orphans(self, replicas: Sequence[Replica]) -> list[str]:
        self._failing()
        known = {row.launch for row in replicas}
        return [f"m-x/{launch}" for launch in sorted(self.actors - known)]

    def end_orphan(self, actor_name: str) -> None:
        self._failing()
        launch = int(actor_name.rpartition("/")[2])
        self.running.discard(launch)
        self.actors.discard(launch)


class FailingWorld(World):
    """A fleet whose calls fail as `calls` says."""

    servers: FailingServers

    def __init__(self, last: int = 10**9) -> None:
        self.calls = Failing()
        self.calls.last_for(last)
        self.has_run = False
        super().__init__()

    def make(self) -> tuple[FakeStore, FakeServers]:
        return FailingStore(self.calls), FailingServers(self.calls)

    def take_over(self) -> None:
        try:
            super().take_over()
        except Killed:
            self.recover()

    def recover(self) -> None:
        """Lets the next coordinator begin, for whom no call fails."""
        self.calls.last_for(10**9)
        self.take_over()

    def launches(self) -> set[int]:
        return {row.launch for row in self.fleet._replicas.replicas.values()}


def serves(world: FailingWorld) -> bool:
    """Returns True if two servers run, and there is no other actor."""
    rows = world.fleet._replicas.replicas.values()
    is_up = [row.phase for row in rows] == [UP, UP]
    return is_up and world.servers.running == world.servers.actors == world.launches()


def run_life(world: FailingWorld, until: Callable[[], object] = lambda: None) -> None:
    """Starts two servers, loses one, and restarts both."""
    for ready in ((), (), ("m-0", "m-1"), ("m-0", "m-1")):
        world.step(ready=ready)
    world.servers.running.discard(1)
    world.step(ready=["m-1"])
    world.step()
    world.fleet.restart("m")
    for _ in range(4):
        world.step(seconds=5)
    until()


def steps(world: FailingWorld, count: int = 12) -> None:
    for _ in range(count):
        world.step(seconds=11)


def calls_of(life: Callable[[FailingWorld], None]) -> int:
    world = FailingWorld()
    life(world)
    return world.calls.count


def test_death_at_any_call_leaves_no_server_behind() -> None:
    for last in range(calls_of(run_life)):
        world = FailingWorld(last)
        try:
            run_life(world)
        except Killed:
            world.recover()
        steps(world)
        assert serves(world), f"after a death at call {last}"


def shut_down(world: FailingWorld) -> None:
    for ready in ((), (), ("m-0", "m-1")):
        world.step(ready=ready)
    world.fleet.shut_down()
    world.has_run = True
    steps(world, 4)


def test_death_at_any_call_does_not_undo_a_stop() -> None:
    for last in range(calls_of(shut_down)):
        world = FailingWorld(last)
        try:
            shut_down(world)
        except Killed:
            world.recover()
        steps(world)
        if world.has_run:
            assert world.servers.actors == set(), f"after a death at call {last}"
        else:
            assert serves(world)


@pytest.mark.parametrize("error", [Unavailable, OSError])
def test_call_without_answer_is_made_up_for(error: type[Exception]) -> None:
    first = calls_of(lambda world: steps(world, 0))
    for last in range(first, calls_of(run_life)):
        world = FailingWorld(last)
        world.calls.error = error
        try:
            run_life(world)
        except error:
            # As `RayFleet.run` goes on.
            world.calls.last_for(10**9)
        steps(world)
        assert serves(world), f"after call {last} without an answer"


def test_run_ends_with_the_last_server() -> None:
    world = FailingWorld()
    steps(world, 2)
    world.servers.actors.add(99)
    world.fleet.shut_down()
    world.fleet.run()
    assert world.servers.actors == set()


def test_next_term_ends_a_coordinator() -> None:
    world = FailingWorld()
    steps(world, 2)
    first: Any = world.fleet
    world.take_over()
    world.servers.actors.add(99)
    # The first one knows nothing of this actor, and must not end it: its successor may have created it.
    world.clock.advance(20)
    with pytest.raises(coordinator_actor.FailedPrecondition, match="another coordinator"):
        first.step()
    assert 99 in world.servers.actors
