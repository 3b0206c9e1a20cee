"""The sources of a fleet's servers: the coordinator's file, Kubernetes or Ray."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.config.config import FleetServer
from fleet.lead.coordinator import Coordinator

LOOK_SECONDS_MAX = 15.0
"""The longest that a new coordinator waits for its servers' addresses and first reports.

After this time it publishes the registry without them.
"""


@dataclass(frozen=True, slots=True)
class Membership:
    """The servers of a fleet at one time."""

    # A server with an empty `admin` cannot be called now. A server with an empty `grpc` is not shown to
    # clients.
    servers: tuple[FleetServer, ...]
    # The servers that the engine is about to end.
    leaving: frozenset[str] = frozenset()
    # Servers that have failed a short time ago. They are not in `servers`, and count as lost.
    ended: frozenset[str] = frozenset()
    # By server, a text that differs between two servers that have the same name one after the other.
    identities: Mapping[str, str] = field(default_factory=dict)
    # By server, the models that it may have. A server is missing here if its engine does not know them.
    models: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # False while the engine still looks for addresses of servers that run.
    is_whole: bool = True


class ServerPlace(Protocol):
    """Follows the servers of a fleet, and starts and stops them if the fleet does that. Thread-safe."""

    def start(self) -> None:
        """Begins to follow the servers."""
        ...

    def membership(self) -> Membership | None:
        """The servers as they were seen last; None until they have been seen once.

        If nothing has changed, it is the same object as in the call before.
        """
        ...

    def act(self, coordinator: Coordinator) -> None:
        """Starts and stops servers, if the fleet does that, by the coordinator's `sightings` of them.

        The coordinator's thread calls this method before each decision on versions, and makes no decision if
        the method raises. Raises OSError if its own state cannot be written. Raises Unavailable if the engine
        does not answer, because the servers may have changed by then. `Engine.problems` then shows the cause.
        """
        ...

    def stop(self) -> None:
        """Ends what `start` began. May return while a last call of its thread still waits for an answer."""
        ...


class ListedServers:
    """A `ServerPlace` for the servers in the coordinator's file, which stay the same as long as it runs."""

    def __init__(self, servers: Sequence[FleetServer]) -> None:
        self._membership = Membership(tuple(servers))

    def start(self) -> None:
        """See `ServerPlace`."""

    def membership(self) -> Membership:
        """See `ServerPlace`."""
        return self._membership

    def act(self, coordinator: Coordinator) -> None:
        """See `ServerPlace`."""

    def stop(self) -> None:
        """See `ServerPlace`."""
