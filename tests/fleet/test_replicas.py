import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.replicas.decision import (
    BACKOFF_SECONDS_MAX,
    SILENT_SECONDS_MAX,
    START_SECONDS_MAX,
    STOP_MARGIN_SECONDS,
    ReplicaDecision,
    decide_replicas,
)
from fleet.replicas.placement import ModelNeed, ServerRoom
from fleet.replicas.replica_step import ReplicaInputs
from fleet.replicas.replicas import (
    LEAVING,
    NO_PORTS,
    STOPPING,
    UP,
    Replica,
    ReplicaSighting,
    ReplicaState,
    WantedModel,
    with_restarts,
)
from fleet.replicas.stored_replicas import replica_state_as_json, replica_state_from_json
from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DataLoss

READY = ReplicaSighting(has_started=True, answers=True, is_ready=True)
STARTING = ReplicaSighting()
LOADING = ReplicaSighting(has_started=True, answers=True)
SILENT = ReplicaSighting(has_started=True)
GONE = ReplicaSighting(is_gone=True)


def model(
    name: str = "m",
    replicas: int = 1,
    *,
    rate: float = 0.0,
    spec: str = "",
    version_bytes: int = 10,
) -> WantedModel:
    need = ModelNeed(
        name=name,
        version_bytes=version_bytes,
        replica_count=replicas,
        requests_per_second=rate,
    )
    return WantedModel(need=need, spec=spec)


def node(
    name: str, *, memory_bytes: int = 1_000, is_draining: bool = False, deadline_seconds: float = 0
) -> ServerRoom:
    return ServerRoom(
        name=name,
        memory_bytes=memory_bytes,
        is_draining=is_draining or bool(deadline_seconds),
        drain_deadline_ns=round(deadline_seconds * NS_PER_SECOND),
    )


@dataclass
class World:
    """A cluster without faults: what is stopped ends, and launches are ready after `start_seconds`.

    The wall clock is the monotonic one.
    """

    wanted: list[WantedModel]
    nodes: list[ServerRoom]
    state: ReplicaState = field(default_factory=ReplicaState)
    swapping: set[str] = field(default_factory=set)
    # By launch; a launch that is not there starts, and is ready after its time.
    sightings: dict[int, ReplicaSighting] = field(default_factory=dict)
    start_seconds: float = 0.0
    ready_ns: dict[int, int] = field(default_factory=dict)
    # A server that is stopped goes on.
    ignores_stops: bool = False
    # The replicas that were ready when the last decision was made.
    ready: set[str] = field(default_factory=set)
    decision: ReplicaDecision = field(default_factory=lambda: ReplicaDecision(state=ReplicaState()))
    now_ns: int = 0

    def step(self, seconds: float = 1.0) -> ReplicaDecision:
        self.now_ns += round(seconds * NS_PER_SECOND)
        self.decision = decide_replicas(
            self.state,
            ReplicaInputs(
                wanted=self.wanted,
                rooms=self.nodes,
                sightings={name: self.sighting(name) for name in self.state.replicas},
                swapping=self.swapping,
                since_ns=self.decision.since_ns,
                leave_seconds=5.0,
                now_ns=self.now_ns,
                wall_ns=self.now_ns,
            ),
        )
        self.ready = {name for name in self.state.replicas if self.sighting(name).is_ready}
        self.state = self.decision.state
        for row in self.decision.starts:
            self.ready_ns[row.launch] = self.now_ns + round(self.start_seconds * NS_PER_SECOND)
        for row in () if self.ignores_stops else self.decision.stops:
            self.sightings[row.launch] = GONE
        return self.decision

    def sighting(self, name: str) -> ReplicaSighting:
        launch = self.state.replicas[name].launch
        if launch in self.sightings:
            return self.sightings[launch]
        return READY if self.now_ns >= self.ready_ns[launch] else STARTING

    def see(self, name: str, sighting: ReplicaSighting) -> None:
        self.sightings[self.state.replicas[name].launch] = sighting

    def settle(self, seconds: float = 1.0) -> "World":
        for _ in range(200):
            before = self.state
            self.step(seconds)
            if self.state == before and not self.decision.since_ns:
                return self
        raise AssertionError(f"no rest: {self.state}")

    def end(self, name: str) -> None:
        self.see(name, GONE)

    def watch(self, seconds: int) -> set[int]:
        """Steps for a time, and returns how many replicas were up and ready at each step."""
        return {self.step_and_count() for _ in range(seconds)}

    def step_and_count(self) -> int:
        self.step()
        return sum(
            row.phase == UP and self.sighting(name).is_ready
            for name, row in self.state.replicas.items()
        )

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


def test_server_that_stays_ready_has_no_failures() -> None:
    world = World([model()], [node("a")]).settle()
    world.end("m-0")
    world.step()
    world.step()
    world.step(BACKOFF_SECONDS_MAX - 1)
    assert world.state.replicas["m-0"].failure_count == 1
    world.step()
    assert world.state.replicas["m-0"].failure_count == 0


def test_server_that_serves_and_ends_again_waits() -> None:
    world = World([model()], [node("a")]).settle()
    launches = world.state.launch_count
    for _ in range(60):
        # It has been ready for a second if it ends now.
        if world.sighting("m-0").is_ready:
            world.end("m-0")
        world.step()
    assert world.state.launch_count - launches <= 6


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
    world.nodes, world.start_seconds = [node("a"), node("b", is_draining=True), node("c")], 30
    assert world.watch(30) == {2}
    assert world.nodes_of("m") == ["a", "b", "c"]
    assert set(world.phases().values()) == {UP}
    assert world.watch(30) == {2}
    assert world.nodes_of("m") == ["a", "c"]


def test_draining_node_without_another_is_not_left() -> None:
    world = World([model()], [node("a")]).settle()
    world.nodes = [node("a", is_draining=True)]
    assert world.settle().phases() == {"m-0": UP}
    assert world.decision.missing == {"m": 1}


def test_draining_node_is_left_before_its_deadline() -> None:
    world = World([model()], [node("a")]).settle()
    deadline_seconds = world.now_ns / NS_PER_SECOND + 100
    world.nodes, world.swapping = [node("a", deadline_seconds=deadline_seconds)], {"m"}
    # It needs 5 s to leave, 20 s to drain, and some to spare.
    assert world.watch(54) == {1}
    assert world.watch(1) == {0}
    world.watch(5)
    assert [row.name for row in world.decision.stops] == ["m-0"]


def test_surplus_counts_on_no_server_of_an_ending_node() -> None:
    large = node("b", memory_bytes=2_000)
    world = World([model(replicas=3)], [node("a"), large]).settle()
    assert [row.node for row in world.state.replicas.values()] == ["a", "b", "b"]
    deadline_seconds = world.now_ns / NS_PER_SECOND + 20
    world.wanted, world.start_seconds = [model(replicas=2)], 30
    world.nodes = [node("a", deadline_seconds=deadline_seconds), large, node("c")]
    world.step()
    # The one on a must leave. The second one on b may leave when the one on c serves.
    assert world.phases() == {"m-0": LEAVING, "m-1": UP, "m-2": UP, "m-3": UP}


def test_server_that_starts_stays_without_another() -> None:
    world = World([model()], [node("a")], start_seconds=30)
    world.step()
    world.nodes = [node("a", is_draining=True)]
    world.watch(31)
    assert world.phases() == {"m-0": UP}
    assert world.watch(1) == {1}


def test_ended_server_that_outgrew_its_node_is_missing() -> None:
    world = World([model(replicas=2)], [node("a", memory_bytes=50)]).settle()
    world.wanted = [model(replicas=2, version_bytes=20)]
    world.settle()
    world.end("m-0")
    # The other one has the room that it would need now.
    assert world.settle().phases() == {"m-1": UP}
    assert world.decision.missing == {"m": 1}


def test_memory_that_no_node_has_ends_no_server() -> None:
    world = World([model(replicas=3)], [node("a"), node("b"), node("c")]).settle()
    world.wanted = [model(replicas=3, version_bytes=10_000)]
    assert world.watch(20) == {3}
    assert world.decision.missing == {"m": 3}


def test_servers_move_once_the_others_are_ready() -> None:
    small = [node("a", memory_bytes=30), node("b", memory_bytes=30)]
    world = World([model(replicas=2)], small).settle()
    world.nodes, world.start_seconds = [*small, node("c"), node("d")], 10
    world.wanted = [model(replicas=2, version_bytes=100)]
    assert world.watch(10) == {2}
    assert world.nodes_of("m") == ["a", "b", "c", "d"]
    assert min(world.watch(60)) == 2
    assert world.nodes_of("m") == ["c", "d"]


def test_surplus_stays_for_one_that_is_not_ready() -> None:
    world = World([model(replicas=3)], [node("a")]).settle()
    world.see("m-0", SILENT)
    world.wanted = [model(replicas=1)]
    world.step()
    assert world.phases() == {"m-0": UP, "m-1": UP, "m-2": LEAVING}


def test_launch_waits_for_the_room_of_another() -> None:
    world = World([model("m")], [node("a", memory_bytes=50)]).settle()
    # It no longer fits anywhere, and stays. The other one cannot have its room.
    world.wanted = [model("m", version_bytes=40), model("n", version_bytes=20)]
    assert world.settle().phases() == {"m-0": UP}
    assert world.decision.missing == {"m": 1, "n": 1}
    world.nodes.append(node("b", memory_bytes=80))
    assert world.settle().nodes_of("m") == ["b"]
    assert world.nodes_of("n") == ["a"]


def test_memory_of_other_jobs_is_no_room() -> None:
    rooms = [replace(node("a"), free_bytes=10), replace(node("b"), free_bytes=30)]
    world = World([model(replicas=2)], rooms).settle()
    assert world.nodes_of("m") == ["b"]
    assert world.decision.missing == {"m": 1}
    # Its own room is not free any more, and it stays.
    world.nodes = [replace(room, free_bytes=10) for room in rooms]
    assert world.settle().nodes_of("m") == ["b"]


def test_silent_server_is_launched_again() -> None:
    world = World([model(replicas=2)], [node("a")]).settle()
    before = world.state.replicas["m-1"]
    world.see("m-1", SILENT)
    world.step()
    world.step(SILENT_SECONDS_MAX - 1)
    assert world.state.replicas["m-1"] == before
    world.step()
    assert world.decision.ends == (before,)
    assert world.state.replicas["m-1"].launch > before.launch


def test_server_that_loads_for_long_is_left_alone() -> None:
    world = World([model()], [node("a")]).settle()
    world.see("m-0", LOADING)
    world.step()
    world.step(10 * SILENT_SECONDS_MAX)
    assert world.decision.ends == ()


def test_all_silent_servers_are_not_ended_at_once() -> None:
    world = World([model(replicas=3)], [node("a")]).settle()
    for name in world.state.replicas:
        world.see(name, SILENT)
    world.step()
    # Perhaps only the coordinator does not reach them.
    world.step(SILENT_SECONDS_MAX)
    assert [row.name for row in world.decision.ends] == ["m-0"]
    # The next launch answers, so the others hang.
    world.step()
    assert [row.name for row in world.decision.ends] == ["m-1", "m-2"]


def test_launch_that_never_starts_goes_elsewhere() -> None:
    world = World([model()], [node("a", memory_bytes=90), node("b", memory_bytes=80)])
    world.step()
    world.see("m-0", STARTING)
    world.step()
    # Ray leaves it pending: another job has the room of the node.
    world.nodes[0] = replace(world.nodes[0], free_bytes=0)
    world.step(START_SECONDS_MAX - 1)
    assert world.nodes_of("m") == ["a"]
    world.step()
    assert [row.node for row in world.decision.ends] == ["a"]
    assert world.settle().nodes_of("m") == ["b"]


def test_drain_that_does_not_end_is_ended() -> None:
    world = World([replace(model(), drain_seconds=100)], [node("a")]).settle()
    world.wanted, world.ignores_stops = [], True
    world.step()
    world.step(5)
    world.step()
    world.step(100 + STOP_MARGIN_SECONDS - 1)
    assert [row.name for row in world.decision.stops] == ["m-0"]
    world.step()
    assert (world.decision.stops, world.phases()) == ((), {})
    assert [row.name for row in world.decision.ends] == ["m-0"]


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
    world.see("m-1", SILENT)
    world.step()
    # The one that is not ready may restart, the other one may not.
    assert world.phases() == {"m-0": UP, "m-1": LEAVING}


def test_restart_waits_for_a_new_launch() -> None:
    world = World([model(replicas=2)], [node("a")]).settle()
    world.state, world.start_seconds = with_restarts(world.state, "m"), 10
    world.wanted = [model(replicas=3)]
    assert world.watch(10) == {2}
    assert world.phases() == {"m-0": UP, "m-1": UP, "m-2": UP}
    world.step()
    assert world.phases()["m-0"] == LEAVING


def test_servers_that_never_get_ready_get_new_flags() -> None:
    world = World([model(replicas=2)], [node("a")], start_seconds=10**6)
    world.step()
    for name in world.state.replicas:
        world.see(name, LOADING)
    world.wanted, world.start_seconds = [model(replicas=2, spec="other")], 0
    world.settle()
    assert {row.spec for row in world.state.replicas.values()} == {"other"}


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
    state = replace(state, ports={"m-0": (8500, 0)})
    assert replica_state_from_json(replica_state_as_json(state)) == state


def test_state_of_an_earlier_release_has_no_ports() -> None:
    document = json.loads(replica_state_as_json(World([model()], [node("a")]).settle().state))
    del document["ports"], document["replicas"][0]["ports"]
    state = replica_state_from_json(json.dumps(document))
    assert (state.ports, state.replicas["m-0"].ports) == ({}, NO_PORTS)


def test_replica_keeps_its_ports_over_launches() -> None:
    world = World([model()], [node("a")]).settle()
    assert world.state.replicas["m-0"].ports == NO_PORTS
    world.see("m-0", replace(READY, ports=(8500, 8501)))
    world.step()
    world.end("m-0")
    (launch,) = world.step().starts
    assert launch.ports == (8500, 8501)
    # Another process had one of them, and lets it go.
    world.see("m-0", replace(READY, ports=(9000, 8501)))
    world.step()
    world.end("m-0")
    world.step()
    (launch,) = world.step(10).starts
    assert launch.ports == (8500, 8501)
    # Also on another node, and after the fleet was stopped.
    world.nodes = [node("b")]
    (launch,) = world.step().starts
    assert (launch.node, launch.ports) == ("b", (8500, 8501))
    wanted, world.wanted = world.wanted, []
    world.settle()
    assert not world.state.replicas
    world.wanted = wanted
    (launch,) = world.step().starts
    assert launch.ports == (8500, 8501)


def test_ports_of_a_removed_model_are_forgotten() -> None:
    world = World([model(), model("n-1")], [node("a")]).settle()
    for name in ("m-0", "n-1-0"):
        world.see(name, replace(READY, ports=(8500, 8501)))
    world.step()
    world.wanted = [model("n-1")]
    world.settle()
    assert {*world.state.ports} == {"n-1-0"}


@pytest.mark.parametrize("text", ["", "[]", '{"replicas": [{"name": 1}]}'])
def test_other_text_is_data_loss(text: str) -> None:
    with pytest.raises(DataLoss):
        replica_state_from_json(text)


@given(st.sampled_from([*Replica.__slots__]), st.sampled_from([None, "x", 1.5, [], True]))
def test_row_of_other_types_is_data_loss(name: str, value: object) -> None:
    document = json.loads(replica_state_as_json(World([model()], [node("a")]).settle().state))
    kept = document["replicas"][0][name]
    document["replicas"][0][name] = value
    # A decision takes whatever is read: it would fail with it each time.
    if type(value) is type(kept) and name not in ("phase", "ports"):
        assert replica_state_from_json(json.dumps(document)).replicas
    else:
        with pytest.raises(DataLoss):
            replica_state_from_json(json.dumps(document))


NODE_NAMES = "abcd"
ACTIONS = st.one_of(
    st.tuples(st.just("scale"), st.sampled_from("mn"), st.integers(0, 4)),
    st.tuples(st.just("memory"), st.sampled_from("mn"), st.sampled_from([5, 10, 30, 100])),
    st.tuples(st.just("node"), st.sampled_from(NODE_NAMES), st.integers(0, 3)),
    st.tuples(st.just("start"), st.just(0), st.sampled_from([0, 3, 20])),
    st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("silence"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("restart"), st.sampled_from("mn"), st.just(0)),
    st.tuples(st.just("swap"), st.sampled_from("mn"), st.integers(0, 1)),
    st.tuples(st.just("take over"), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.sampled_from([1, 6, 70, 200]), st.just(0)),
)


def _change_memory(world: World, name: str, version_bytes: int) -> None:
    world.wanted = [
        replace(item, need=replace(item.need, version_bytes=version_bytes))
        if item.name == name
        else item
        for item in world.wanted
    ]


def _change_node(world: World, name: str, number: int) -> None:
    """Removes a node; 1: adds it; 2: drains it without a deadline; 3: drains it within a minute."""
    rest = [room for room in world.nodes if room.name != name]
    deadline_seconds = world.now_ns / NS_PER_SECOND + 60 if number == 3 else 0
    made = node(name, memory_bytes=70, is_draining=number >= 2, deadline_seconds=deadline_seconds)
    world.nodes = [*rest, made] if number else rest


def _change_replica(world: World, number: int, sighting: ReplicaSighting) -> None:
    names = sorted(world.state.replicas)
    if names:
        world.see(names[number % len(names)], sighting)


def _act(world: World, action: tuple[str, object, int]) -> None:
    kind, subject, number = action
    if kind == "scale":
        rest = [item for item in world.wanted if item.name != subject]
        world.wanted = [*rest, model(str(subject), number)] if number else rest
    elif kind == "memory":
        _change_memory(world, str(subject), number)
    elif kind == "node":
        _change_node(world, str(subject), number)
    elif kind == "start":
        world.start_seconds = number
    elif kind in ("end", "silence"):
        _change_replica(world, int(str(subject)), GONE if kind == "end" else SILENT)
    elif kind == "restart":
        world.state = with_restarts(world.state, str(subject))
    elif kind == "swap":
        world.swapping = {*world.swapping, str(subject)} if number else set()
    elif kind == "take over":
        # The next coordinator has the state alone.
        world.state = replica_state_from_json(replica_state_as_json(world.state))
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
    # Each launch that is forgotten is removed from the cluster.
    forgotten = {row.launch for row in before.replicas.values()} - {
        row.launch for row in after.replicas.values()
    }
    assert forgotten == {row.launch for row in decision.ends}
    for item in world.wanted:
        _check_ready(before, world, item)


def _check_ready(before: ReplicaState, world: World, item: WantedModel) -> None:
    """Ready replicas are not taken away below the wanted ones, save one that restarts."""
    after, wanted = world.state.replicas, item.need.replica_count
    ready = {
        (row.name, row.launch)
        for row in before.replicas.values()
        if row.model == item.name and row.phase == UP and row.name in world.ready
    }
    left = {(name, row.launch) for name, row in after.items() if row.phase == UP} & ready
    taken = [before.replicas[name] for name, _ in ready - left]
    deadlines = {room.name: room.drain_deadline_ns for room in world.nodes}
    # A node that is gone took its servers with it.
    forced = [row for row in taken if row.node not in deadlines or deadlines[row.node]]
    restarts = [row for row in taken if row.name in after and after[row.name].comes_back]
    if len(taken) == len(forced):
        return
    assert item.name not in world.swapping
    if restarts:
        # All others that have a place are ready.
        assert len(left) >= wanted - world.decision.missing.get(item.name, 0) - 1
    assert len(left) >= min(len(ready) - len(forced), wanted) - len(restarts)


def _check_rest(world: World) -> None:
    """It comes to rest with what is wanted, or with what has room."""
    assert {row.model for row in world.state.replicas.values()} <= {w.name for w in world.wanted}
    assert set(world.phases().values()) <= {UP}
    for item in world.wanted:
        count, missing = len(world.nodes_of(item.name)), world.decision.missing.get(item.name, 0)
        # Replicas in surplus stay for others that are missing.
        assert item.need.replica_count - missing <= count <= item.need.replica_count
    for room in world.nodes:
        rows = [row for row in world.state.replicas.values() if row.node == room.name]
        assert sum(row.room_bytes for row in rows) <= room.memory_bytes


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
    world.settle(10)
    _check_rest(world)
