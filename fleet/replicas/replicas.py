"""The servers that a coordinator starts on the nodes of a cluster: values.

A *replica* is a server of one model on one node. It is started with a *launch*, a number that no other
start has, so that two processes of one replica are never taken for each other. Its life:

UP: it is to run. If its process ends, it is launched again, on its node or on another one if its node is
    gone.
LEAVING: the registry and HAProxy send clients elsewhere; it still answers.
STOPPING: it drains, and ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet.replicas.placement import ModelNeed

UP, LEAVING, STOPPING = "up", "leaving", "stopping"

Ports = tuple[int, int]
"""The ports for gRPC and HTTP; 0: not known, or no HTTP."""

NO_PORTS: Ports = (0, 0)


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


def with_restarts(state: ReplicaState, model: str) -> ReplicaState:
    """Marks each replica of a model for a restart; "": of all models."""
    names = {row.name for row in state.replicas.values() if model in ("", row.model)}
    return replace(state, restarts=state.restarts | names)


def replica_order(row: Replica) -> tuple[str, int, str]:
    """The key that sorts the tenth replica of a model after the ninth."""
    return (row.model, len(row.name), row.name)
