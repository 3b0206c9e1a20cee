"""The place where the servers of a fleet come from: the coordinator's file, or an engine like Kubernetes or Ray."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.config.config import FleetServer
from fleet.lead.coordinator import Coordinator

LOOK_SECONDS_MAX = 15.0
"""A coordinator that has just begun waits at most this long for addresses and first reports of its servers,
and then publishes the registry.
"""


@dataclass(frozen=True, slots=True)
class Membership:
    """The servers of a fleet at one time.

    The place is about to end the servers in `leaving`. `ended` have ended by a failure a short time ago and
    are not in `servers`: they count as lost. `identities` differ between two servers that have the same
    name one after the other. `models` are the models that a server may have, if its place knows them.

    A server without an address for admins cannot be called now. A server without an address for gRPC is not
    shown to clients. `is_whole` is False while the place still looks for such addresses.
    """

    servers: tuple[FleetServer, ...]
    leaving: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    identities: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_whole: bool = True


class ServerPlace(Protocol):
    """A place of servers. Thread-safe."""

    def start(self) -> None:
        """Begins to follow the servers."""
        ...

    def membership(self) -> Membership | None:
        """The servers as they were seen last; None before the place was read a first time.

        It is the same object as before if nothing has changed.
        """
        ...

    def act(self, coordinator: Coordinator) -> None:
        """Starts and stops servers, if the place does that, by the coordinator's `sightings` of them.

        The thread of the lead calls it before each decision. Raises OSError with nothing decided, and Unavailable
        if the place does not answer: then nothing is decided on versions either, because the servers may
        be others by now. Its status says so.
        """
        ...

    def stop(self) -> None:
        """Ends what `start` began, and may leave a call to run out."""
        ...


class ListedServers:
    """The servers of the coordinator's file, which stay as long as it runs."""

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
