"""A decision on the replicas of a fleet while it is made: each stage makes the value of the next. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from fleet.replicas.layers import taken_bytes_by_node, usable_bytes
from fleet.replicas.placement import ServerRoom
from fleet.replicas.replicas import (
    NO_PORTS,
    UP,
    Replica,
    ReplicaSighting,
    ReplicaState,
    WantedModel,
)
from serving.base.clock import NS_PER_SECOND

_NOT_SEEN = ReplicaSighting()


@dataclass(frozen=True, kw_only=True)
class ReplicaInputs:
    """Everything that a decision reads besides the state."""

    wanted: Sequence[WantedModel]
    # The nodes of the cluster.
    rooms: Sequence[ServerRoom]
    # By replica, the last look at its present launch.
    sightings: Mapping[str, ReplicaSighting] = field(default_factory=dict)
    # The models of which a version is on its way through the fleet.
    swapping: Collection[str] = ()
    # The waits of the last decision (`ReplicaStep.since_ns`).
    since_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)
    leave_seconds: float = 5.0
    now_ns: int = 0
    # The deadlines of nodes are compared with this time.
    wall_ns: int = 0

    @cached_property
    def models(self) -> Mapping[str, WantedModel]:
        """The wanted models by name."""
        return {model.name: model for model in self.wanted}

    @cached_property
    def nodes(self) -> Mapping[str, ServerRoom]:
        """The nodes by name."""
        return {room.name: room for room in self.rooms}


@dataclass(frozen=True, kw_only=True)
class ReplicaStep:
    """The next state and the actions, as far as the stages before have decided them."""

    inputs: ReplicaInputs
    state: ReplicaState
    starts: tuple[Replica, ...] = ()
    ends: tuple[Replica, ...] = ()
    missing: Mapping[str, int] = field(default_factory=dict)
    # By launch and reason, the time since which that launch has waited for that reason.
    since_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)

    @property
    def rows(self) -> Collection[Replica]:
        return self.state.replicas.values()

    def sighting(self, row: Replica) -> ReplicaSighting:
        return self.inputs.sightings.get(row.name, _NOT_SEEN)

    def is_ready(self, row: Replica) -> bool:
        """True if a replica serves, and this decision lets it serve on.

        False for a replica that this decision launches, because the last look was at its earlier launch.
        """
        return row.phase == UP and row not in self.starts and self.sighting(row).is_ready

    def has_room(self, model: WantedModel, node: str, instead: str = "") -> bool:
        """True if a launch of a model fits on a node beside the node's replicas.

        The replica with the name `instead` does not count, because the launch takes its room.
        """
        taken_bytes = taken_bytes_by_node(self.rows)[node]
        others_bytes = taken_bytes_by_node(row for row in self.rows if row.name != instead)[node]
        left_bytes = usable_bytes(self.inputs.nodes[node], taken_bytes) - others_bytes
        return model.need.room_bytes <= left_bytes

    def has_waited(self, row: Replica, reason: str, seconds: float) -> bool:
        """True once `seconds` have passed since the first decision in which `row` waits for `reason`."""
        return self.inputs.now_ns - self._since_ns(row, reason) >= seconds * NS_PER_SECOND

    def with_wait(self, row: Replica, reason: str) -> "ReplicaStep":
        """Notes that `row` waits for `reason`. The wait ends with the first decision that does not note it."""
        since_ns = {**self.since_ns, (row.launch, reason): self._since_ns(row, reason)}
        return replace(self, since_ns=since_ns)

    def with_row(self, row: Replica) -> "ReplicaStep":
        """Adds or replaces a replica."""
        return self.with_rows({**self.state.replicas, row.name: row})

    def with_rows(self, rows: Mapping[str, Replica]) -> "ReplicaStep":
        return replace(self, state=replace(self.state, replicas=rows))

    def ended(self, row: Replica) -> "ReplicaStep":
        """Removes a replica whose launch has ended."""
        rows = {name: other for name, other in self.state.replicas.items() if name != row.name}
        return replace(self.with_rows(rows), ends=(*self.ends, row))

    def launched(
        self, name: str, model: WantedModel, node: str, failure_count: int = 0
    ) -> "ReplicaStep":
        """Launches a replica, for the first time or again."""
        state = self.state
        row = Replica(
            name=name,
            model=model.name,
            node=node,
            launch=state.launch_count + 1,
            spec=model.spec,
            room_bytes=model.need.room_bytes,
            failure_count=failure_count,
            drain_seconds=model.drain_seconds,
            ports=state.ports.get(name, NO_PORTS),
        )
        state = replace(
            state,
            launch_count=row.launch,
            replicas={**state.replicas, name: row},
            restarts=state.restarts - {name},
        )
        return replace(self, state=state, starts=(*self.starts, row))

    def _since_ns(self, row: Replica, reason: str) -> int:
        return self.inputs.since_ns.get((row.launch, reason), self.inputs.now_ns)
