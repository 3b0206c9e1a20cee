"""Decides which servers start, leave and stop on the nodes of a cluster. Pure functions on values.

A *replica* is a server of one model on one node. It is started with a *launch*, a number that no other
start has, so that two processes of one replica are never taken for each other. Its life:

UP: it is to run. One that ends is launched again, on its node or on another one if its node is gone.
LEAVING: clients are told by the registry and HAProxy to go elsewhere; it still answers.
STOPPING: it drains, and ends.

The promises:

- A replica leaves only while every replica of its model that stays is ready, except on a node that drains.
- At most one replica of the fleet restarts at a time.
- No replica leaves while a version of its model is on its way, so that a wave is not judged by restarts.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DataLoss
from serving.fleet.placement import ModelNeed, ServerRoom, place, replicas_needed

UP, LEAVING, STOPPING = "up", "leaving", "stopping"

BACKOFF_SECONDS_MAX = 60.0
"""The longest pause before a replica that ends again and again is launched once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """A model that the fleet should serve. Replicas with another `spec` are restarted one by one."""

    need: ModelNeed
    spec: str = ""

    @property
    def name(self) -> str:
        return self.need.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A server that the coordinator has decided on. It is kept with the state."""

    name: str
    model: str
    node: str
    launch: int
    spec: str = ""
    # The memory that it takes of its node.
    room_bytes: int = 0
    phase: str = UP
    # It is launched again once it has stopped.
    comes_back: bool = False
    # Its launches that ended by themselves since it was ready last.
    failure_count: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaSighting:
    """The last look at a launch. One that is neither gone nor ready is starting, or does not answer."""

    is_gone: bool = False
    is_ready: bool = False


@dataclass(frozen=True, kw_only=True)
class ReplicaState:
    """The decisions that outlive the coordinator. `restarts` are replicas that an operator wants anew."""

    launch_count: int = 0
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    restarts: frozenset[str] = frozenset()

    def as_json(self) -> str:
        return json.dumps(
            {
                "launch_count": self.launch_count,
                "replicas": [asdict(self.replicas[name]) for name in sorted(self.replicas)],
                "restarts": sorted(self.restarts),
            }
        )


def replica_state_from_json(text: str) -> ReplicaState:
    """Reads the text that `as_json` returned. Raises DataLoss for another text."""
    try:
        document: Mapping[str, Any] = json.loads(text)
        rows = [Replica(**row) for row in document["replicas"]]
        return ReplicaState(
            launch_count=int(document["launch_count"]),
            replicas={row.name: row for row in rows},
            restarts=frozenset(document["restarts"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataLoss(f"not the replicas of a fleet: {error!r}") from error


@dataclass(frozen=True, kw_only=True)
class ReplicaInputs:
    """Everything that a decision reads besides the state.

    `sightings` are by replica, of its present launch. `swapping` are the models with a version on its
    way. `since_ns` are the times that the last decision returned.
    """

    wanted: Sequence[WantedModel]
    rooms: Sequence[ServerRoom]
    sightings: Mapping[str, ReplicaSighting] = field(default_factory=dict)
    swapping: Collection[str] = ()
    since_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)
    leave_seconds: float = 5.0
    now_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplicaDecision:
    """The state after a step, which must be written before one of the actions is done.

    `starts` are launched, `stops` drain and end, and `ends` are launches that have ended or are lost:
    whatever is left of them is removed. Starts and ends come once, stops at each step until they are
    done. `missing` are the replicas without room, by model.
    """

    state: ReplicaState
    starts: tuple[Replica, ...] = ()
    stops: tuple[Replica, ...] = ()
    ends: tuple[Replica, ...] = ()
    missing: Mapping[str, int] = field(default_factory=dict)
    since_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)


def decide_replicas(state: ReplicaState, inputs: ReplicaInputs) -> ReplicaDecision:
    """Returns the next state and the actions."""
    step = _Step(state, inputs)
    step.drop_ended()
    chosen, missing = placed(inputs.wanted, inputs.rooms, step.replicas.values())
    step.match(chosen)
    step.let_leave()
    step.restart_one()
    step.let_stop()
    return step.decision(missing)


def with_restarts(state: ReplicaState, model: str) -> ReplicaState:
    """Returns the state in which each replica of a model is restarted; "": of all models."""
    names = {row.name for row in state.replicas.values() if model in ("", row.model)}
    return replace(state, restarts=state.restarts | names)


def placed(
    wanted: Sequence[WantedModel], rooms: Sequence[ServerRoom], replicas: Iterable[Replica]
) -> tuple[dict[str, Counter[str]], dict[str, int]]:
    """Returns how many replicas of each model each node should have, and those without room.

    A placement has one replica of a model on a node. More replicas than nodes make further *layers*, so
    the replicas of a model are spread evenly. A replica that goes keeps its room until it has ended.
    """
    rows = [*replicas]
    usable = [room for room in rooms if not room.is_draining]
    present: dict[str, Counter[str]] = {model.name: Counter() for model in wanted}
    for row in rows:
        if row.model in present and (row.phase == UP or row.comes_back):
            present[row.model][row.node] += 1
    needs = {model.name: model.need for model in wanted}
    going = [
        row for row in rows if row.model not in needs or (row.phase != UP and not row.comes_back)
    ]
    layers = {
        layer.name: (model.name, depth, layer)
        for model in wanted
        for depth, layer in enumerate(_layers(model.need, usable))
    }
    placement = place(
        [layer for _, _, layer in layers.values()],
        [_without(room, going) for room in rooms],
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
    """Returns the needs of a model with at most one replica a node each."""
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


def _without(room: ServerRoom, going: Sequence[Replica]) -> ServerRoom:
    taken = sum(row.room_bytes for row in going if row.node == room.name)
    return replace(room, memory_bytes=max(0, room.memory_bytes - taken))


class _Step:
    """One decision while it is made."""

    def __init__(self, state: ReplicaState, inputs: ReplicaInputs) -> None:
        self._inputs = inputs
        self._wanted = {model.name: model for model in inputs.wanted}
        self._nodes = {room.name for room in inputs.rooms}
        self._draining = {room.name for room in inputs.rooms if room.is_draining}
        self._launch_count = state.launch_count
        self._restarts = set(state.restarts)
        self._starts: list[Replica] = []
        self._ends: list[Replica] = []
        # Replicas that were lost with their nodes. The next launches of their models have their names.
        self._waiting: dict[str, Replica] = {}
        self._staying: dict[str, list[Replica]] = {}
        self._surplus: list[Replica] = []
        self._since_ns: dict[tuple[int, str], int] = {}
        self.replicas = dict(state.replicas)

    def drop_ended(self) -> None:
        """Forgets replicas that have ended and do not come back; the others that ended wait for a launch."""
        for name, row in [*self.replicas.items()]:
            is_lost = row.node not in self._nodes
            if is_lost or self._sighting(name).is_gone:
                self._after_end(row, is_lost=is_lost or row.node in self._draining)
            elif self._sighting(name).is_ready and row.failure_count:
                self.replicas[name] = replace(row, failure_count=0)

    def match(self, chosen: Mapping[str, Counter[str]]) -> None:
        """Divides the replicas into those that stay and those in surplus, and launches what is missing."""
        free = {model: Counter(nodes) for model, nodes in chosen.items()}
        # The lowest names stay.
        for row in sorted(self.replicas.values(), key=_order):
            if row.phase != UP and not row.comes_back:
                continue
            if free.get(row.model, Counter())[row.node] > 0:
                free[row.model][row.node] -= 1
                self._staying.setdefault(row.model, []).append(row)
            else:
                self._surplus.append(row)
        for model, nodes in free.items():
            for node in sorted(nodes.elements()):
                self._launch(self._free_name(model), self._wanted[model], node, 0)

    def let_leave(self) -> None:
        """Lets the replicas in surplus leave, if those that stay can answer for them."""
        for row in self._surplus:
            is_wanted = row.model in self._wanted
            may_leave = row.model not in self._inputs.swapping and self._are_ready(row.model)
            if not is_wanted or may_leave or row.node in self._draining:
                # A replica that was about to restart goes for good.
                phase = LEAVING if row.phase == UP else row.phase
                self.replicas[row.name] = replace(row, phase=phase, comes_back=False)

    def restart_one(self) -> None:
        """Lets one replica leave that is to restart, if no other one is away."""
        self._restarts &= self.replicas.keys()
        if any(row.phase != UP for row in self.replicas.values()):
            return
        for row in sorted(chain.from_iterable(self._staying.values()), key=_order):
            if row.name not in self._restarts and row.spec == self._wanted[row.model].spec:
                continue
            others = [other for other in self._staying[row.model] if other.name != row.name]
            if row.model in self._inputs.swapping or not all(map(self._is_ready, others)):
                continue
            self.replicas[row.name] = replace(row, phase=LEAVING, comes_back=True)
            return

    def let_stop(self) -> None:
        """Stops the replicas that clients have had the time to leave."""
        for name, row in self.replicas.items():
            if row.phase == LEAVING and self._has_waited(row, LEAVING, self._inputs.leave_seconds):
                self.replicas[name] = replace(row, phase=STOPPING)

    def decision(self, missing: Mapping[str, int]) -> ReplicaDecision:
        return ReplicaDecision(
            state=ReplicaState(
                launch_count=self._launch_count,
                replicas=self.replicas,
                restarts=frozenset(self._restarts),
            ),
            starts=tuple(self._starts),
            stops=tuple(
                row
                for name, row in sorted(self.replicas.items())
                if row.phase == STOPPING and not self._sighting(name).is_gone
            ),
            ends=tuple(self._ends),
            missing=missing,
            since_ns=self._since_ns,
        )

    def _after_end(self, row: Replica, *, is_lost: bool) -> None:
        if row.model not in self._wanted or (row.phase != UP and not row.comes_back):
            self._ends.append(self.replicas.pop(row.name))
        elif is_lost:
            # Its place is free at once, and another node may have it.
            self._ends.append(self.replicas.pop(row.name))
            self._waiting[row.name] = row
        elif row.phase != UP or self._has_waited(row, "gone", _backoff_seconds(row)):
            self._ends.append(row)
            failure_count = row.failure_count + (row.phase == UP)
            self._launch(row.name, self._wanted[row.model], row.node, failure_count)

    def _sighting(self, name: str) -> ReplicaSighting:
        return self._inputs.sightings.get(name, ReplicaSighting())

    def _is_ready(self, row: Replica) -> bool:
        return row not in self._starts and self._sighting(row.name).is_ready

    def _are_ready(self, model: str) -> bool:
        """Returns True if every replica that stays is up and ready, those launched now included."""
        staying = self._staying.get(model, [])
        launched = any(row.model == model for row in self._starts)
        return not launched and all(row.phase == UP and self._is_ready(row) for row in staying)

    def _has_waited(self, row: Replica, reason: str, seconds: float) -> bool:
        key, now_ns = (row.launch, reason), self._inputs.now_ns
        self._since_ns[key] = self._inputs.since_ns.get(key, now_ns)
        return now_ns - self._since_ns[key] >= seconds * NS_PER_SECOND

    def _launch(self, name: str, model: WantedModel, node: str, failure_count: int) -> None:
        self._launch_count += 1
        row = Replica(
            name=name,
            model=model.name,
            node=node,
            launch=self._launch_count,
            spec=model.spec,
            room_bytes=model.need.room_bytes,
            failure_count=failure_count,
        )
        self.replicas[name] = row
        self._restarts.discard(name)
        self._starts.append(row)

    def _free_name(self, model: str) -> str:
        """Returns the name of a replica that was lost with its node, or else the lowest free one."""
        lost = sorted((row for row in self._waiting.values() if row.model == model), key=_order)
        if lost:
            return self._waiting.pop(lost[0].name).name
        number = 0
        while f"{model}-{number}" in self.replicas:
            number += 1
        return f"{model}-{number}"


def _order(row: Replica) -> tuple[str, int, str]:
    """Sorts the tenth replica of a model after the ninth."""
    return (row.model, len(row.name), row.name)


def _backoff_seconds(row: Replica) -> float:
    """Returns the pause before a replica that has ended is launched again: none at first, then 2 s, 4 s …"""
    if row.failure_count == 0:
        return 0.0
    return min(BACKOFF_SECONDS_MAX, 2.0 ** min(row.failure_count, 10))
