"""The servers that a coordinator starts on the nodes of a cluster, as values.

A *replica* is a server of one model on one node. Each start of its process is a *launch* with a number of its
own. So a new process is never taken for the process before it. The phases of a replica:

UP: the replica should run. If its process ends, it is launched again: on its node, or on another node if its
    own is gone.
LEAVING: the replica still answers, but the registry and HAProxy send clients to other servers.
STOPPING: the replica drains, and then its process ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet.replicas.placement import ModelNeed

UP, LEAVING, STOPPING = "up", "leaving", "stopping"

Ports = tuple[int, int]
"""The port for gRPC and the port for HTTP. 0 if a port is not known, or if the server has no HTTP."""

NO_PORTS: Ports = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """A model that the fleet should serve.

    `spec` is a text of all flags and directories of its servers. Replicas that were started with another
    `spec` are restarted one by one. `drain_seconds` is the longest time that a server waits for its requests
    when it stops.
    """

    need: ModelNeed
    spec: str = ""
    drain_seconds: float = 20.0

    @property
    def name(self) -> str:
        return self.need.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A server that the coordinator has decided to run. Part of the state."""

    name: str
    model: str
    node: str
    launch: int
    spec: str = ""
    # The memory that the replica takes on its node.
    room_bytes: int = 0
    phase: str = UP
    # True if the replica leaves only to restart, so it is launched again once it has stopped.
    comes_back: bool = False
    # The number of launches that ended by themselves since the replica was ready for BACKOFF_SECONDS_MAX.
    failure_count: int = 0
    # True if this launch was ready at some time, so that clients may have its address.
    was_ready: bool = False
    drain_seconds: float = 20.0
    # The ports that the launch takes if they are free.
    ports: Ports = NO_PORTS


@dataclass(frozen=True, slots=True)
class ReplicaSighting:
    """The last look at a launch."""

    # True if its process or its actor has ended.
    is_gone: bool = False
    # True if it listens on its `ports`.
    has_started: bool = False
    # True if it has reported lately.
    answers: bool = False
    # True if it serves its model.
    is_ready: bool = False
    ports: Ports = NO_PORTS


@dataclass(frozen=True, kw_only=True)
class ReplicaState:
    """The decisions on replicas that must outlive the coordinator.

    `launch_count` is the number of the last launch. `restarts` has the names of replicas that an operator
    has asked to restart. `ports` has, by replica, its first ports. They are kept after the replica has
    ended, because clients with a fixed list of addresses expect its next launch there.
    """

    launch_count: int = 0
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    restarts: frozenset[str] = frozenset()
    ports: Mapping[str, Ports] = field(default_factory=dict)


def with_restarts(state: ReplicaState, model: str) -> ReplicaState:
    """Marks each replica of a model for a restart; if `model` is "", each replica of the fleet."""
    names = {row.name for row in state.replicas.values() if model in ("", row.model)}
    return replace(state, restarts=state.restarts | names)


def replica_order(row: Replica) -> tuple[str, int, str]:
    """The key by which replicas are sorted: model by model, and the tenth replica after the ninth."""
    return (row.model, len(row.name), row.name)
