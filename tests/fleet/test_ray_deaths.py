"""Coordinators on Ray that die at any call to the store or the cluster, and their successors."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from fleet.config.config import parse_fleet_config
from fleet.lead.candidate import Candidate
from fleet.lead.lead import FleetLead
from fleet.lead.leadership import Term
from fleet.replicas.found_replicas import FoundLaunch
from fleet.replicas.placement import ServerRoom
from fleet.replicas.replicas import UP, Replica
from fleet.rollout.reports import ModelReport, ServerReport
from serving.base.errors import Unavailable
from tests.fleet.fakes.ray_store import FakeStore
from tests.unit.fakes.clocks import FakeClock

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray.cluster import ActorAnswer
from fleet.ray.engine import RayEngine
from fleet.ray.leadership import RayLeadership
from fleet.ray.replicas import RayReplicas

CONFIG = parse_fleet_config("""
[coordinator]
poll_seconds = 0.01
[waves]
sizes = []
[ray.models.m]
base_path = "/models/m"
replicas = 2
memory_bytes = 1
""")


class Killed(BaseException):
    """Ends a coordinator at a call, as SIGKILL does."""


class Calls:
    """Counts calls, and lets all of them fail after the last one that succeeds."""

    def __init__(self, last: int, error: type[BaseException]) -> None:
        self.last, self.error = last, error
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count > self.last:
            raise self.error("no answer")


class CalledStore(FakeStore):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.call = calls  # type: ignore[method-assign]


class NoClient:
    """A server that is never called: the tests bring its reports."""

    def fleet_report(self, edges: object, *, timeout_seconds: float = 10) -> Any:
        raise Unavailable("no answer")

    def close(self) -> None:
        """Closes nothing."""


class CalledServers:
    """Launches with their actors. An actor stays when its server has ended."""

    def __init__(self, calls: Calls) -> None:
        self._call = calls
        self.running: set[int] = set()
        self.actors: set[int] = set()
        self.launched: dict[int, Replica] = {}

    def rooms(self) -> list[ServerRoom]:
        self._call()
        return [ServerRoom(name=name, memory_bytes=10**12) for name in "ab"]

    def start(self, replica: Replica) -> None:
        self._call()
        self.running.add(replica.launch)
        self.actors.add(replica.launch)
        self.launched[replica.launch] = replica

    def launches(self) -> list[FoundLaunch]:
        self._call()
        return [
            FoundLaunch(row.name, launch, row.node if launch in self.actors else "")
            for launch, row in self.launched.items()
        ]

    def look(self, replicas: Sequence[Replica]) -> dict[str, ActorAnswer]:
        self._call()
        return {
            row.name: ActorAnswer(
                f"{row.node}:{row.launch}", is_gone=row.launch not in self.running
            )
            for row in replicas
        }

    def stop(self, replica: Replica) -> None:
        self._call()
        self.running.discard(replica.launch)

    def end(self, replica: Replica) -> None:
        self._call()
        self._end(replica.launch)

    def orphans(self, replicas: Sequence[Replica]) -> list[str]:
        self._call()
        known = {row.launch for row in replicas}
        return [str(launch) for launch in sorted(self.actors - known)]

    def end_orphan(self, actor_name: str) -> None:
        self._call()
        self._end(int(actor_name))

    def client(self, actor_name: str) -> Any:
        return NoClient()

    def actor_name(self, replica: Replica) -> str:
        return str(replica.launch)

    def _end(self, launch: int) -> None:
        self.running.discard(launch)
        self.actors.discard(launch)


class World:
    """A fleet whose calls fail after the `last` one. A coordinator that dies has a successor."""

    def __init__(self, last: int = 10**9, error: type[BaseException] = Killed) -> None:
        self.calls = Calls(last, error)
        self.store: Any = CalledStore(self.calls)
        self.servers = CalledServers(self.calls)
        self.clock = FakeClock()
        self.has_stopped = False
        try:
            self.take_over()
        except Killed:
            self.recover()

    def take_over(self) -> None:
        leadership = self.leadership = RayLeadership(self.store, self.clock)
        assert CONFIG.ray is not None
        servers: Any = self.servers
        self.replicas = RayReplicas(
            CONFIG.ray, servers, leadership, self.store, self.clock, poll_seconds=0.01
        )
        self.engine = RayEngine(self.replicas, leadership, servers, "token", None)
        self.lead: FleetLead | None = None
        self.candidate = Candidate(leadership, self.begin_lead, self.end_lead)
        self.candidate.turn()

    def begin_lead(self, term: Term) -> None:
        self.lead = FleetLead(term, CONFIG, self.engine, self.clock)

    def end_lead(self) -> None:
        assert self.lead is not None
        self.lead.stop()
        self.lead = None

    def recover(self) -> None:
        """Lets the next coordinator begin. No further call fails."""
        self.calls.last = 10**9
        self.take_over()

    def step(self, *, ready: Sequence[str] = ("m-0", "m-1"), seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.candidate.turn()
        lead = self.lead
        if lead is None:
            return
        model = ModelReport(granted=1, default_version=1, found=frozenset({1}))
        rows = self.replicas.state.replicas
        for name in ready:
            if name in rows:
                report = ServerReport(incarnation=1, models={"m": model})
                lead.receive(name, str(rows[name].launch), report)
        lead.step()

    def steps(self, count: int = 12) -> None:
        for _ in range(count):
            self.step(seconds=11)

    def begin(self) -> None:
        """Starts two servers."""
        for ready in ((), (), ("m-0", "m-1"), ("m-0", "m-1")):
            self.step(ready=ready)

    @property
    def serves(self) -> bool:
        """True if two servers run, and there is no other actor."""
        rows = [*self.replicas.state.replicas.values()]
        launches = {row.launch for row in rows}
        is_up = [row.phase for row in rows] == [UP, UP]
        return is_up and self.servers.running == self.servers.actors == launches


def live(world: World) -> None:
    """Starts two servers, loses one, and restarts both."""
    world.begin()
    world.servers.running.discard(1)
    world.step(ready=["m-1"])
    world.step()
    world.replicas.restart("m")
    for _ in range(4):
        world.step(seconds=5)


def shut_down(world: World) -> None:
    """Starts two servers, and stops the fleet."""
    world.begin()
    world.replicas.shut_down()
    world.has_stopped = True
    world.steps(4)


def calls_of(life: Callable[[World], None]) -> int:
    world = World()
    life(world)
    return world.calls.count


def test_death_at_any_call_leaves_no_server_behind() -> None:
    for last in range(calls_of(live)):
        world = World(last)
        try:
            live(world)
        except Killed:
            world.recover()
        world.steps()
        assert world.serves, f"after a death at call {last}"


def test_death_at_any_call_does_not_undo_a_stop() -> None:
    for last in range(calls_of(shut_down)):
        world = World(last)
        try:
            shut_down(world)
        except Killed:
            world.recover()
        world.steps()
        is_well = world.servers.actors == set() if world.has_stopped else world.serves
        assert is_well, f"after a death at call {last}"


@pytest.mark.parametrize("error", [Unavailable, OSError])
def test_call_without_answer_is_made_up_for(error: type[Exception]) -> None:
    for last in range(World().calls.count, calls_of(live)):
        world = World(last, error)
        # Most actions are repeated without an error.
        with suppress(error):
            live(world)
        world.calls.last = 10**9
        world.steps()
        assert world.serves, f"after call {last} without an answer"


def test_stop_is_over_with_the_last_actor() -> None:
    world = World()
    world.begin()
    world.servers.actors.add(99)
    world.replicas.shut_down()
    counts = []
    for _ in range(10):
        world.step(seconds=5)
        counts.append((world.replicas.has_stopped, len(world.servers.actors)))
    # It stops once, and then no actor is left.
    assert not counts[0][0]
    assert counts[-1] == (True, 0)
    assert all(count == 0 for has_stopped, count in counts if has_stopped)


def test_late_coordinator_ends_no_actor() -> None:
    world = World()
    world.begin()
    first, leadership = world.lead, world.leadership
    assert first is not None
    world.take_over()
    # The first one does not know it. Its successor may have created it.
    world.servers.actors.add(99)
    world.clock.advance(20)
    known = [leadership.is_over]
    first.step()
    assert 99 in world.servers.actors
    assert [*known, leadership.is_over] == [False, True]
    assert leadership.term() is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"launch_count": 2, "replicas": [{}]}'])
def test_unreadable_state_is_found_on_the_cluster(text: str) -> None:
    world = World()
    world.begin()
    before = world.servers.running.copy()
    key = max(key for key in world.store.values if key.startswith("replicas/"))
    world.store.values[key] = text
    world.take_over()
    world.step()
    # None of them has ended, and there is a reason to see.
    assert before <= world.servers.actors
    assert len(world.servers.running) == 2
    assert "could not be read" in "".join(world.replicas.problems())
    running = [len(world.servers.running)]
    for _ in range(30):
        world.step(seconds=11)
        running.append(len(world.servers.running))
    assert min(running) >= 1
    # All have the flags of the configuration by now, and the numbers of their launches are new.
    assert world.serves
    assert min(world.servers.running) > max(before)
    assert {row.spec for row in world.replicas.state.replicas.values()} != {""}


def test_unreadable_state_waits_for_the_cluster() -> None:
    world = World()
    world.begin()
    key = max(key for key in world.store.values if key.startswith("replicas/"))
    world.store.values[key] = "{"
    world.servers._call = Calls(0, Unavailable)
    world.take_over()
    world.step()
    assert "until the cluster answers: no answer" in "".join(world.replicas.problems())
    world.servers._call = world.calls
    world.steps(30)
    assert world.serves
