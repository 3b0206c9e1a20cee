from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DataLoss
from serving.fleet.placement import ModelNeed, ServerRoom
from serving.fleet.replicas import (
    LEAVING,
    STOPPING,
    UP,
    Replica,
    ReplicaDecision,
    ReplicaInputs,
    ReplicaSighting,
    ReplicaState,
    WantedModel,
    decide_replicas,
    replica_state_from_json,
    with_restarts,
)

READY = ReplicaSighting(is_ready=True)
GONE = ReplicaSighting(is_gone=True)


def model(name: str = "m", replicas: int = 1, *, rate: float = 0.0, spec: str = "") -> WantedModel:
    need = ModelNeed(name=name, version_bytes=10, replica_count=replicas, requests_per_second=rate)
    return WantedModel(need=need, spec=spec)


def node(name: str, *, memory_bytes: int = 1_000, is_draining: bool = False) -> ServerRoom:
    return ServerRoom(name=name, memory_bytes=memory_bytes, is_draining=is_draining)


@dataclass
class World:
    """A cluster without faults: launches are ready at once, and what is stopped ends."""

    wanted: list[WantedModel]
    nodes: list[ServerRoom]
    state: ReplicaState = field(default_factory=ReplicaState)
    swapping: set[str] = field(default_factory=set)
    # By launch; a launch that is not there is ready.
    sightings: dict[int, ReplicaSighting] = field(default_factory=dict)
    decision: ReplicaDecision = field(default_factory=lambda: ReplicaDecision(state=ReplicaState()))
    now_ns: int = 0

    def step(self, seconds: float = 1.0) -> ReplicaDecision:
        self.now_ns += round(seconds * NS_PER_SECOND)
        self.decision = decide_replicas(
            self.state,
            ReplicaInputs(
                wanted=self.wanted,
                rooms=self.nodes,
                sightings={
                    name: self.sightings.get(row.launch, READY)
                    for name, row in self.state.replicas.items()
                },
                swapping=self.swapping,
                since_ns=self.decision.since_ns,
                leave_seconds=5.0,
                now_ns=self.now_ns,
            ),
        )
        self.state = self.decision.state
        for row in self.decision.stops:
            self.sightings[row.launch] = GONE
        return self.decision

    def settle(self) -> "World":
        for _ in range(200):
            before = self.state
            self.step()
            if self.state == before and not self.decision.since_ns:
                return self
        raise AssertionError(f"no rest: {self.state}")

    def end(self, name: str) -> None:
        self.sightings[self.state.replicas[name].launch] = GONE

    def nodes_of(self, name: str) -> list[str]:
        return sorted(row.node for row in self.state.replicas.values() if row.model == name)

    def phases(self) -> dict[str, str]:
        return {name: row.phase for name, row in sorted(self.state.replicas.items())}


def test_replicas_are_spread_over_nodes() -> None:
    world = World([model(replicas=5)], [node("a"), node("b"), node("c")]).settle()
    assert world.nodes_of("m") == ["a", "a", "b", "b", "c"]
    assert sorted(world.state.replicas) == ["m-0", "m-1", "m-2", "m-3", "m-4"]


def test_load_makes_more_replicas() -> None:
    rooms = [replace(node(name), requests_per_second=100) for name in "ab"]
    world = World([model(rate=390)], rooms).settle()
    # Each node takes 100 requests/s, so two of four replicas find no room.
    assert world.nodes_of("m") == ["a", "b"]
    assert world.decision.missing == {"m": 2}


def test_replica_without_room_is_missing() -> None:
    world = World([model(replicas=2)], [node("a", memory_bytes=30)]).settle()
    assert world.decision.missing == {"m": 1}
    world.nodes.append(node("b"))
    assert world.settle().nodes_of("m") == ["a", "b"]


def test_fleet_without_nodes_misses_everything() -> None:
    assert World([model(replicas=3)], []).settle().decision.missing == {"m": 3}


def test_ended_server_is_launched_on_its_node() -> None:
    world = World([model()], [node("a"), node("b")]).settle()
    before = world.state.replicas["m-0"]
    world.end("m-0")
    decision = world.step()
    after = world.state.replicas["m-0"]
    assert (after.node, after.failure_count) == (before.node, 1)
    assert after.launch > before.launch
    assert (decision.starts, decision.ends) == ((after,), (before,))


def test_server_that_ends_again_waits_longer() -> None:
    world = World([model()], [node("a")]).settle()
    launches = []
    for _ in range(40):
        world.end("m-0")
        if world.step().starts:
            launches.append(world.now_ns // NS_PER_SECOND)
    gaps = [later - earlier for earlier, later in zip(launches, launches[1:])]
    assert gaps[0] < gaps[1] < gaps[2] < gaps[3]


def test_ready_server_has_no_failures() -> None:
    world = World([model()], [node("a")]).settle()
    world.end("m-0")
    world.step()
    assert world.settle().state.replicas["m-0"].failure_count == 0


def test_lost_node_gives_its_servers_to_others() -> None:
    world = World([model(replicas=4)], [node("a"), node("b")]).settle()
    lost = {name for name, row in world.state.replicas.items() if row.node == "b"}
    world.nodes = [node("a")]
    decision = world.step()
    assert {row.name for row in decision.ends} == lost == {row.name for row in decision.starts}
    assert world.nodes_of("m") == ["a"] * 4


def test_fewer_replicas_leave_before_they_stop() -> None:
    world = World([model(replicas=3)], [node("a"), node("b")]).settle()
    world.wanted = [model(replicas=1)]
    assert world.step().stops == ()
    assert world.phases() == {"m-0": UP, "m-1": LEAVING, "m-2": LEAVING}
    world.step(4.9)
    assert world.decision.stops == ()
    world.step(0.1)
    assert world.phases() == {"m-0": UP, "m-1": STOPPING, "m-2": STOPPING}
    stopped: tuple[Replica, ...] = world.decision.stops
    assert [row.name for row in stopped] == ["m-1", "m-2"]
    assert world.settle().phases() == {"m-0": UP}


def test_stop_is_repeated_until_the_server_has_ended() -> None:
    world = World([model()], [node("a")]).settle()
    world.wanted = []
    world.step()
    world.step(5)
    launch = world.state.replicas["m-0"].launch
    world.sightings[launch] = READY
    assert [row.launch for row in world.step().stops] == [launch]


def test_nothing_leaves_while_a_version_is_on_its_way() -> None:
    world = World([model(replicas=2)], [node("a")]).settle()
    world.wanted, world.swapping = [model(replicas=1)], {"m"}
    world.state = with_restarts(world.state, "m")
    world.step()
    assert set(world.phases().values()) == {UP}
    world.swapping = set()
    assert world.settle().phases() == {"m-0": UP}


def test_draining_node_is_left_once_another_serves() -> None:
    world = World([model(replicas=2)], [node("a"), node("b")]).settle()
    world.nodes = [node("a"), node("b", is_draining=True), node("c")]
    world.step()
    assert world.nodes_of("m") == ["a", "b", "c"]
    assert world.settle().nodes_of("m") == ["a", "c"]


def test_restart_takes_one_server_after_the_other() -> None:
    world = World([model(replicas=3)], [node("a"), node("b")]).settle()
    before = {row.launch for row in world.state.replicas.values()}
    world.state = with_restarts(world.state, "m")
    for _ in range(100):
        world.step()
        assert sum(phase != UP for phase in world.phases().values()) <= 1
    assert not before & {row.launch for row in world.state.replicas.values()}
    assert world.state.restarts == frozenset()


def test_restart_waits_for_servers_that_are_not_ready() -> None:
    world = World([model(replicas=2)], [node("a")]).settle()
    world.state = with_restarts(world.state, "")
    world.sightings[world.state.replicas["m-1"].launch] = ReplicaSighting()
    world.step()
    # The one that is not ready may restart, the other one may not.
    assert world.phases() == {"m-0": UP, "m-1": LEAVING}


def test_changed_flags_restart_servers() -> None:
    world = World([model(replicas=2)], [node("a")]).settle()
    world.wanted = [model(replicas=2, spec="other")]
    world.settle()
    assert {row.spec for row in world.state.replicas.values()} == {"other"}


def test_model_that_is_not_wanted_leaves() -> None:
    world = World([model("m"), model("n")], [node("a")]).settle()
    world.wanted = [model("n")]
    assert world.settle().phases() == {"n-0": UP}


def test_going_server_keeps_its_room() -> None:
    world = World([model("m")], [node("a", memory_bytes=20)]).settle()
    world.wanted = [model("n")]
    world.step()
    assert world.decision.starts == ()
    assert world.settle().phases() == {"n-0": UP}


def test_state_survives_its_json() -> None:
    world = World([model(replicas=2)], [node("a")]).settle()
    state = with_restarts(world.state, "m")
    assert replica_state_from_json(state.as_json()) == state


@pytest.mark.parametrize("text", ["", "[]", '{"replicas": [{"name": 1}]}'])
def test_other_text_is_data_loss(text: str) -> None:
    with pytest.raises(DataLoss):
        replica_state_from_json(text)


NODE_NAMES = "abcd"
ACTIONS = st.one_of(
    st.tuples(st.just("scale"), st.sampled_from("mn"), st.integers(0, 4)),
    st.tuples(st.just("node"), st.sampled_from(NODE_NAMES), st.integers(0, 2)),
    st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("restart"), st.sampled_from("mn"), st.just(0)),
    st.tuples(st.just("swap"), st.sampled_from("mn"), st.integers(0, 1)),
    st.tuples(st.just("take over"), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.sampled_from([1, 6, 70]), st.just(0)),
)


def _act(world: World, action: tuple[str, object, int]) -> None:
    kind, subject, number = action
    if kind == "scale":
        rest = [item for item in world.wanted if item.name != subject]
        world.wanted = [*rest, model(str(subject), number)] if number else rest
    elif kind == "node":
        rest_nodes = [room for room in world.nodes if room.name != subject]
        kept = [node(str(subject), memory_bytes=70, is_draining=number == 2)] if number else []
        world.nodes = [*rest_nodes, *kept]
    elif kind == "end":
        names = sorted(world.state.replicas)
        if names:
            world.end(names[int(str(subject)) % len(names)])
    elif kind == "restart":
        world.state = with_restarts(world.state, str(subject))
    elif kind == "swap":
        world.swapping = {*world.swapping, str(subject)} if number else set()
    elif kind == "take over":
        # The next coordinator has the state alone.
        world.state = replica_state_from_json(world.state.as_json())
        world.decision = ReplicaDecision(state=world.state)


def _check(before: ReplicaState, world: World, ever: set[int]) -> None:
    after, decision = world.state, world.decision
    started = [row.launch for row in decision.starts]
    assert len({*started}) == len(started)
    assert not {*started} & ever
    ever.update(started)
    restarting = [row for row in after.replicas.values() if row.comes_back]
    assert len(restarting) <= 1
    nodes = {room.name: room for room in world.nodes}
    for row in decision.starts:
        assert row.node in nodes
        assert not nodes[row.node].is_draining
    for name, row in after.replicas.items():
        old = before.replicas.get(name)
        if old is not None and old.launch == row.launch and (old.phase, row.phase) == (UP, LEAVING):
            drains = row.node in nodes and nodes[row.node].is_draining
            is_wanted = row.model in {item.name for item in world.wanted}
            assert drains or not is_wanted or row.model not in world.swapping
    # Each launch that is forgotten is removed from the cluster.
    forgotten = {row.launch for row in before.replicas.values()} - {
        row.launch for row in after.replicas.values()
    }
    assert forgotten == {row.launch for row in decision.ends}


@given(st.lists(ACTIONS, max_size=40))
def test_any_sequence_keeps_the_promises(actions: list[tuple[str, object, int]]) -> None:
    world = World([model("m", 2)], [node("a", memory_bytes=70), node("b", memory_bytes=70)])
    ever: set[int] = set()
    for action in actions:
        _act(world, action)
        before = world.state
        world.step(float(str(action[1])) if action[0] == "step" else 1.0)
        _check(before, world, ever)
    world.swapping = set()
    world.settle()
    # It comes to rest with what is wanted, less what has no room.
    for item in world.wanted:
        count = len(world.nodes_of(item.name)) + world.decision.missing.get(item.name, 0)
        assert count == item.need.replica_count
    assert {row.model for row in world.state.replicas.values()} <= {w.name for w in world.wanted}
    assert set(world.phases().values()) <= {UP}
    for room in world.nodes:
        rows = [row for row in world.state.replicas.values() if row.node == room.name]
        assert sum(row.room_bytes for row in rows) <= room.memory_bytes
