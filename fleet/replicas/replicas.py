"""Decides which servers start, leave and stop on the nodes of a cluster. Pure functions on values.

A *replica* is a server of one model on one node. It is started with a *launch*, a number that no other
start has, so that two processes of one replica are never taken for each other. Its life:

UP: it is to run. If its process ends, it is launched again, on its node or on another one if its node is
    gone.
LEAVING: the registry and HAProxy send clients elsewhere; it still answers.
STOPPING: it drains, and ends.

The promises, as long as a model is configured:

- A replica that is not to come back leaves only if enough others are ready: as many as the configuration
  asks for.
- A replica restarts only while all others of its model are ready, unless it was never ready itself. At most
  one replica of the fleet restarts at a time.
- No replica leaves while a version of its model is on its way, so that a wave is not judged by restarts.

If a node drains, its deadline overrides the first and the last of these promises.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, get_type_hints

from fleet.replicas.placement import ModelNeed, ServerRoom, place, replicas_needed
from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DataLoss

UP, LEAVING, STOPPING = "up", "leaving", "stopping"

Ports = tuple[int, int]
"""The ports for gRPC and HTTP; 0: not known, or no HTTP."""

NO_PORTS: Ports = (0, 0)

BACKOFF_SECONDS_MAX = 60.0
"""The longest pause before a replica that ends again and again is launched once more.

A replica that has been ready for this time has no failures any more.
"""

SILENT_SECONDS_MAX = 180.0
"""A server that has started and does not report for this time hangs."""

START_SECONDS_MAX = 420.0
"""A launch that has not started in this time is given up: Ray finds no room for it, or its node hangs.

The actor of a server ends by itself after 300 s, and Ray may need a while to start the actor.
"""

STOP_MARGIN_SECONDS = 60.0
"""A server ends at most this long after its drain's time, because it also frees its versions."""

DEADLINE_MARGIN_SECONDS = 20.0
"""A server that leaves a node ends this long before the node's deadline.

Beside its requests it waits up to 7 s for its coordinator and for readers, and it frees its versions.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """A model that the fleet should serve.

    Replicas that were started with another `spec` are restarted one by one.

    `drain_seconds` is the longest time that a server waits for its requests when it stops.
    """

    need: ModelNeed
    spec: str = ""
    drain_seconds: float = 20.0

    @property
    def name(self) -> str:
        return self.need.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A server that the coordinator has decided on. Part of the state."""

    name: str
    model: str
    node: str
    launch: int
    spec: str = ""
    # The memory of its node that it takes.
    room_bytes: int = 0
    phase: str = UP
    # True if it is launched again once it has stopped.
    comes_back: bool = False
    # The launches that ended by themselves since it was last ready for BACKOFF_SECONDS_MAX.
    failure_count: int = 0
    # This launch has been ready once: clients may have its address.
    was_ready: bool = False
    drain_seconds: float = 20.0
    # The ports that it takes, if they are free.
    ports: Ports = NO_PORTS


@dataclass(frozen=True, slots=True)
class ReplicaSighting:
    """The last look at a launch.

    If it `has_started`, it listens on its `ports`; if it `answers`, it has reported lately; and if it
    `is_ready`, it also serves its model.
    """

    is_gone: bool = False
    has_started: bool = False
    answers: bool = False
    is_ready: bool = False
    ports: Ports = NO_PORTS


@dataclass(frozen=True, kw_only=True)
class ReplicaState:
    """The decisions that outlive the coordinator.

    `restarts` are replicas that an operator has asked to restart. `ports` are the first ports of each
    replica, by its name. They stay after it has ended, because clients with a list of addresses look for
    its next launch there.
    """

    launch_count: int = 0
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    restarts: frozenset[str] = frozenset()
    ports: Mapping[str, Ports] = field(default_factory=dict)

    def as_json(self) -> str:
        return json.dumps(
            {
                "launch_count": self.launch_count,
                "replicas": [asdict(self.replicas[name]) for name in sorted(self.replicas)],
                "restarts": sorted(self.restarts),
                "ports": {name: [*self.ports[name]] for name in sorted(self.ports)},
            }
        )


def replica_state_from_json(text: str) -> ReplicaState:
    """Reads the text that `as_json` returned. Raises DataLoss for another text."""
    try:
        document: Mapping[str, Any] = json.loads(text)
        rows = [_replica(row) for row in document["replicas"]]
        # The state of an earlier release has no ports.
        ports = {name: _ports(row) for name, row in document.get("ports", {}).items()}
        return ReplicaState(
            launch_count=int(document["launch_count"]),
            replicas={row.name: row for row in rows},
            restarts=frozenset(map(str, document["restarts"])),
            ports=ports,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DataLoss(f"not the replicas of a fleet: {error!r}") from error


def _replica(row: Mapping[str, Any]) -> Replica:
    replica = Replica(**{**row, "ports": _ports(row.get("ports", NO_PORTS))})
    for name, kind in get_type_hints(Replica).items():
        value = getattr(replica, name)
        is_kind = type(value) is kind or (kind is float and type(value) is int)
        if name != "ports" and not is_kind:
            raise ValueError(f"{name} of a replica: {value!r}")
    if replica.phase not in (UP, LEAVING, STOPPING):
        raise ValueError(f"phase of a replica: {replica.phase!r}")
    return replica


def _ports(row: Any) -> Ports:
    grpc, http = row
    return (int(grpc), int(http))


@dataclass(frozen=True, slots=True)
class FoundLaunch:
    """A launch that the cluster says there is. `node` is "" if it does not run."""

    name: str
    launch: int
    node: str = ""


def found_state(found: Iterable[FoundLaunch], wanted: Iterable[WantedModel]) -> ReplicaState:
    """The state of a fleet whose stored one is lost, from the launches that the cluster knows.

    The latest launch of each replica that runs is taken over. It counts as ready, so that clients keep it
    and it restarts only while the others are ready. Its flags are not known, so it restarts.
    """
    rows = sorted(found, key=lambda row: row.launch)
    models = {model.name: model for model in wanted}
    replicas: dict[str, Replica] = {}
    for row in rows:
        model = row.name.rpartition("-")[0]
        if not row.node:
            continue
        replica = Replica(
            name=row.name, model=model, node=row.node, launch=row.launch, was_ready=True
        )
        if model in models:
            replica = replace(
                replica,
                room_bytes=models[model].need.room_bytes,
                drain_seconds=models[model].drain_seconds,
            )
        replicas[row.name] = replica
    return ReplicaState(launch_count=rows[-1].launch if rows else 0, replicas=replicas)


@dataclass(frozen=True, kw_only=True)
class ReplicaInputs:
    """Everything that a decision reads besides the state.

    `sightings` has the last look at each replica's present launch. `swapping` are the models with a version
    on its way. `since_ns` is that of the last decision. `wall_ns` is for the deadlines of nodes.
    """

    wanted: Sequence[WantedModel]
    rooms: Sequence[ServerRoom]
    sightings: Mapping[str, ReplicaSighting] = field(default_factory=dict)
    swapping: Collection[str] = ()
    since_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)
    leave_seconds: float = 5.0
    now_ns: int = 0
    wall_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplicaDecision:
    """The state after a step, which must be written before one of the actions is done.

    `starts` are launched, `stops` drain and end, and `ends` are launches that have ended, are lost or hang:
    whatever is left of them is removed. Each start and end is in one decision only; stops are repeated at
    each step until they are done. `missing` are the replicas without room, by model.
    """

    state: ReplicaState
    starts: tuple[Replica, ...] = ()
    stops: tuple[Replica, ...] = ()
    ends: tuple[Replica, ...] = ()
    missing: Mapping[str, int] = field(default_factory=dict)
    since_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)


def decide_replicas(state: ReplicaState, inputs: ReplicaInputs) -> ReplicaDecision:
    """Decides which servers start, stop and are given up, and the next state."""
    step = _Step(state, inputs)
    step.drop_ended()
    chosen, missing = placed(inputs.wanted, inputs.rooms, step.replicas.values())
    step.match(chosen, missing)
    step.let_leave()
    step.restart_one()
    step.let_stop()
    return step.decision()


def with_restarts(state: ReplicaState, model: str) -> ReplicaState:
    """Marks each replica of a model for a restart; "": of all models."""
    names = {row.name for row in state.replicas.values() if model in ("", row.model)}
    return replace(state, restarts=state.restarts | names)


def placed(
    wanted: Sequence[WantedModel], rooms: Sequence[ServerRoom], replicas: Iterable[Replica]
) -> tuple[dict[str, Counter[str]], dict[str, int]]:
    """Places replicas: how many of each model each node should have, and which have no room.

    A placement has one replica of a model on a node. More replicas than nodes make further *layers*, so the
    replicas of a model are spread evenly. Replicas that leave, or should leave, take no room here, so that
    no other replica is moved because of them. A launch in their room waits for their end.
    """
    rows = [*replicas]
    taken = _taken_bytes(rows)
    usable = [room for room in rooms if not room.is_draining]
    present: dict[str, Counter[str]] = {model.name: Counter() for model in wanted}
    for row in rows:
        if row.model in present and (row.phase == UP or row.comes_back):
            present[row.model][row.node] += 1
    needs = {model.name: model.need for model in wanted}
    layers = {
        layer.name: (model.name, depth, layer)
        for model in wanted
        for depth, layer in enumerate(_layers(model.need, usable))
    }
    placement = place(
        [layer for _, _, layer in layers.values()],
        [replace(room, memory_bytes=_room_bytes(room, taken[room.name])) for room in rooms],
        {
            name: [node for node, count in sorted(present[model].items()) if count > depth]
            for name, (model, depth, _) in layers.items()
        },
    )
    chosen: dict[str, Counter[str]] = {model.name: Counter() for model in wanted}
    missing: Counter[str] = Counter()
    for name, (model, _, _) in layers.items():
        chosen[model].update(placement.servers[name])
        missing[model] += placement.missing.get(name, 0)
    if not usable:
        missing.update({name: need.replica_count for name, need in needs.items()})
    return chosen, {model: count for model, count in missing.items() if count}


def _layers(need: ModelNeed, usable: Sequence[ServerRoom]) -> list[ModelNeed]:
    """Splits the need of a model into layers with at most one replica a node each."""
    count = replicas_needed(need, usable)
    layers: list[ModelNeed] = []
    left = count if usable else 0
    while left > 0:
        size = min(left, len(usable))
        layers.append(
            replace(
                need,
                # A model's name has no line break, so no other model has the layer's name.
                name=f"{need.name}\n{len(layers)}",
                replica_count=size,
                requests_per_second=need.requests_per_second * size / count,
            )
        )
        left -= size
    return layers


def _wanted_count(need: ModelNeed, usable: Sequence[ServerRoom]) -> int:
    return replicas_needed(need, usable) if usable else need.replica_count


def _room_bytes(room: ServerRoom, taken_bytes: int) -> int:
    """The memory that replicas may have on a node in all: everything that other jobs have not reserved.
    Present replicas have `taken_bytes` of it.
    """
    if room.free_bytes is None:
        return room.memory_bytes
    return min(room.memory_bytes, room.free_bytes + taken_bytes)


def most_left_bytes(rooms: Iterable[ServerRoom], rows: Iterable[Replica]) -> int:
    """The most memory that any node has left for one further replica."""
    taken = _taken_bytes(rows)
    return max(
        (_room_bytes(room, taken[room.name]) - taken[room.name] for room in rooms), default=0
    )


def _taken_bytes(rows: Iterable[Replica]) -> Counter[str]:
    """The memory that replicas take, by node."""
    taken: Counter[str] = Counter()
    for row in rows:
        taken[row.node] += row.room_bytes
    return taken


class _Step:
    """One decision while it is made."""

    def __init__(self, state: ReplicaState, inputs: ReplicaInputs) -> None:
        self._inputs = inputs
        self._wanted = {model.name: model for model in inputs.wanted}
        self._nodes = {room.name: room for room in inputs.rooms}
        self._usable = [room for room in inputs.rooms if not room.is_draining]
        self._launch_count = state.launch_count
        self._restarts = set(state.restarts)
        self._starts: list[Replica] = []
        self._ends: list[Replica] = []
        # Replicas that were lost with their nodes. The next launches of their models take over their names.
        self._waiting: dict[str, Replica] = {}
        # Replicas whose launches have ended, and that are launched again if they have a place.
        self._ended: set[str] = set()
        self._staying: dict[str, list[Replica]] = {}
        self._surplus: list[Replica] = []
        self._missing: Counter[str] = Counter()
        self._since_ns: dict[tuple[int, str], int] = {}
        self._ports = self._kept_ports(state)
        self.replicas = dict(state.replicas)

    def _kept_ports(self, state: ReplicaState) -> dict[str, Ports]:
        """The ports of all replicas, except those of models that the fleet has no more."""
        seen = {name: row.ports for name, row in self._inputs.sightings.items() if any(row.ports)}
        # The first ports stay, because a launch gets other ports only if a process happens to have one of
        # them.
        ports = {**seen, **state.ports}
        if not self._wanted:
            # The fleet was stopped, and will start again with the same ports.
            return ports
        return {name: row for name, row in ports.items() if name.rpartition("-")[0] in self._wanted}

    def drop_ended(self) -> None:
        """Forgets replicas that have ended and do not come back, and those that lose their nodes."""
        hanging = self._hanging()
        for name, row in [*self.replicas.items()]:
            sighting = self._sighting(name)
            room = self._nodes.get(row.node)
            if room is None or sighting.is_gone or name in hanging:
                # A launch that never started may find room on another node.
                never_started = name in hanging and not sighting.has_started
                self._after_end(row, is_lost=room is None or room.is_draining or never_started)
            elif sighting.is_ready:
                self._note_ready(row)

    def match(self, chosen: Mapping[str, Counter[str]], missing: Mapping[str, int]) -> None:
        """Divides the replicas into those that stay and those in surplus, and launches what is missing."""
        self._missing.update(missing)
        free = {model: Counter(nodes) for model, nodes in chosen.items()}
        # The replicas with the lowest names stay.
        for row in sorted(self.replicas.values(), key=_order):
            if row.phase != UP and not row.comes_back:
                continue
            has_place = free.get(row.model, Counter())[row.node] > 0
            if has_place and not self._outgrew_place(row):
                free[row.model][row.node] -= 1
                self._staying.setdefault(row.model, []).append(self._launched_again(row))
            elif row.name in self._ended:
                self._ends.append(self.replicas.pop(row.name))
            else:
                self._surplus.append(row)
        for model, nodes in free.items():
            for node in sorted(nodes.elements()):
                self._launch_new(self._wanted[model], node)

    def let_leave(self) -> None:
        """Lets the replicas in surplus leave, if the others can answer for them.

        Replicas whose node ends soon leave first, so that the others do not count on them.
        """
        ending = [row for row in self._surplus if self._is_deadline_near(row)]
        others = [row for row in reversed(self._surplus) if row not in ending]
        for row in (*ending, *others):
            if self._may_leave(row):
                # A replica that was about to restart now leaves for good.
                phase = LEAVING if row.phase == UP else row.phase
                self.replicas[row.name] = replace(row, phase=phase, comes_back=False)

    def restart_one(self) -> None:
        """Lets one of the replicas that are to restart leave, if no other replica is away."""
        self._restarts &= self.replicas.keys()
        if any(row.phase != UP for row in self.replicas.values()):
            return
        for row in sorted(chain.from_iterable(self._staying.values()), key=_order):
            is_due = row.name in self._restarts or row.spec != self._wanted[row.model].spec
            if is_due and self._may_restart(row):
                self.replicas[row.name] = replace(row, phase=LEAVING, comes_back=True)
                return

    def let_stop(self) -> None:
        """Stops the replicas that clients have had the time to leave."""
        for name, row in self.replicas.items():
            if row.phase == LEAVING and self._time_wait(row, LEAVING, self._inputs.leave_seconds):
                self.replicas[name] = replace(row, phase=STOPPING)

    def decision(self) -> ReplicaDecision:
        return ReplicaDecision(
            state=ReplicaState(
                launch_count=self._launch_count,
                replicas=self.replicas,
                restarts=frozenset(self._restarts),
                ports=self._ports,
            ),
            starts=tuple(self._starts),
            stops=tuple(
                row
                for name, row in sorted(self.replicas.items())
                if row.phase == STOPPING and not self._sighting(name).is_gone
            ),
            ends=tuple(self._ends),
            missing={model: count for model, count in self._missing.items() if count},
            since_ns=self._since_ns,
        )

    def _hanging(self) -> set[str]:
        """The launches that are given up because they neither answer nor end."""
        names = {
            row.name
            for row in self.replicas.values()
            if row.phase == STOPPING
            and self._time_wait(row, STOPPING, row.drain_seconds + STOP_MARGIN_SECONDS)
        }
        up = [row for row in self.replicas.values() if row.phase == UP and not self._is_gone(row)]
        silent = {row.name for row in up if self._time_silence(row)}
        if not any(self._sighting(name).answers for name in self.replicas):
            # No launch answers, so perhaps the coordinator is cut off while all of them serve. Only one is
            # given up at first, because its next launch shows if that is so.
            silent &= {row.name for row in sorted(up, key=_order)[:1]}
        return names | silent

    def _time_silence(self, row: Replica) -> bool:
        """Times the silence of an UP launch; True once it has neither answered nor started for too long."""
        sighting = self._sighting(row.name)
        if sighting.answers:
            return False
        if sighting.has_started:
            return self._time_wait(row, "silent", SILENT_SECONDS_MAX)
        return self._time_wait(row, "starting", START_SECONDS_MAX)

    def _after_end(self, row: Replica, *, is_lost: bool) -> None:
        if row.model not in self._wanted or (row.phase != UP and not row.comes_back):
            self._ends.append(self.replicas.pop(row.name))
        elif is_lost:
            # Its room is free at once, and another replica may take it.
            self._ends.append(self.replicas.pop(row.name))
            self._waiting[row.name] = row
        else:
            self._ended.add(row.name)

    def _note_ready(self, row: Replica) -> None:
        failure_count = row.failure_count
        if failure_count and self._time_wait(row, "ready", BACKOFF_SECONDS_MAX):
            failure_count = 0
        self.replicas[row.name] = replace(row, was_ready=True, failure_count=failure_count)

    def _launched_again(self, row: Replica) -> Replica:
        """Launches a replica whose launch has ended, once it is due, and returns the present one."""
        if row.name not in self._ended:
            return row
        if row.phase == UP and not self._time_wait(row, "gone", _backoff_seconds(row)):
            return row
        self._ends.append(row)
        failure_count = row.failure_count + (row.phase == UP)
        return self._launch(row.name, self._wanted[row.model], row.node, failure_count)

    def _outgrew_place(self, row: Replica) -> bool:
        """True if a replica has ended and needs more memory now than its node has."""
        model = self._wanted[row.model]
        return row.name in self._ended and not self._has_room(model, row.node, row.name)

    def _launch_new(self, model: WantedModel, node: str) -> None:
        if self._has_room(model, node):
            self._launch(self._free_name(model.name), model, node, 0)
        else:
            self._missing[model.name] += 1

    def _has_room(self, model: WantedModel, node: str, instead: str = "") -> bool:
        """True if a launch fits beside all other replicas of a node, or beside all but one of them."""
        rows = self.replicas.values()
        taken_bytes = _taken_bytes(rows)[node]
        others_bytes = _taken_bytes(row for row in rows if row.name != instead)[node]
        left_bytes = _room_bytes(self._nodes[node], taken_bytes) - others_bytes
        return model.need.room_bytes <= left_bytes

    def _may_leave(self, row: Replica) -> bool:
        model = self._wanted.get(row.model)
        if model is None or self._is_deadline_near(row):
            return True
        if row.model in self._inputs.swapping:
            return False
        ready = sum(
            other.model == row.model and other.name != row.name and self._is_ready(other)
            for other in self.replicas.values()
        )
        if ready >= _wanted_count(model.need, self._usable):
            return True
        # No client has its address, and its place is on another node now.
        return not row.was_ready and not self._missing[row.model]

    def _may_restart(self, row: Replica) -> bool:
        if row.model in self._inputs.swapping:
            return False
        if not row.was_ready:
            # Otherwise flags with which no server becomes ready could not be changed.
            return True
        launched = [other for other in self._starts if other.model == row.model]
        others = [*self._staying[row.model], *launched]
        return all(self._is_ready(other) for other in others if other.name != row.name)

    def _is_deadline_near(self, row: Replica) -> bool:
        deadline_ns = self._nodes[row.node].drain_deadline_ns
        seconds = self._inputs.leave_seconds + row.drain_seconds + DEADLINE_MARGIN_SECONDS
        return deadline_ns != 0 and self._inputs.wall_ns >= deadline_ns - seconds * NS_PER_SECOND

    def _sighting(self, name: str) -> ReplicaSighting:
        return self._inputs.sightings.get(name, ReplicaSighting())

    def _is_gone(self, row: Replica) -> bool:
        return self._sighting(row.name).is_gone

    def _is_ready(self, row: Replica) -> bool:
        """True if a replica serves and goes on serving.

        A replica that was launched in this decision does not count, because the last look was at its old
        launch.
        """
        return row.phase == UP and row not in self._starts and self._sighting(row.name).is_ready

    def _time_wait(self, row: Replica, reason: str, seconds: float) -> bool:
        """Times a wait from the first decision that asks for it on; True once `seconds` have passed."""
        key, now_ns = (row.launch, reason), self._inputs.now_ns
        self._since_ns[key] = self._inputs.since_ns.get(key, now_ns)
        return now_ns - self._since_ns[key] >= seconds * NS_PER_SECOND

    def _launch(self, name: str, model: WantedModel, node: str, failure_count: int) -> Replica:
        self._launch_count += 1
        row = Replica(
            name=name,
            model=model.name,
            node=node,
            launch=self._launch_count,
            spec=model.spec,
            room_bytes=model.need.room_bytes,
            failure_count=failure_count,
            drain_seconds=model.drain_seconds,
            ports=self._ports.get(name, NO_PORTS),
        )
        self.replicas[name] = row
        self._restarts.discard(name)
        self._starts.append(row)
        return row

    def _free_name(self, model: str) -> str:
        """Takes the name of a replica that was lost with its node, or else the lowest free one."""
        lost = sorted((row for row in self._waiting.values() if row.model == model), key=_order)
        if lost:
            return self._waiting.pop(lost[0].name).name
        number = 0
        while f"{model}-{number}" in self.replicas:
            number += 1
        return f"{model}-{number}"


def _order(row: Replica) -> tuple[str, int, str]:
    """The key that sorts the tenth replica of a model after the ninth."""
    return (row.model, len(row.name), row.name)


def _backoff_seconds(row: Replica) -> float:
    """The pause before a replica that has ended is launched again: none at first, then 2 s, 4 s …"""
    if row.failure_count == 0:
        return 0.0
    return min(BACKOFF_SECONDS_MAX, 2.0 ** min(row.failure_count, 10))
