"""The work of a coordinator during one term: it polls the servers, decides and sends grants."""

from collections.abc import Callable, Sequence

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.client.fleet_registry import RegisteredServer
from serving.fleet.changes import Change
from serving.fleet.config import FleetConfig
from serving.fleet.coordinator import Coordinator
from serving.fleet.leadership import Term
from serving.fleet.observer import FleetObserver
from serving.fleet.outputs import has_looked, registered
from serving.fleet.places import Membership
from serving.fleet.reports import Grant
from serving.fleet.server_links import ServerClient, ServerLinks

_log = structlog.get_logger(__name__)

Notice = Callable[[Sequence[Change], Sequence[Grant]], None]
"""Takes what has changed and what was granted, for people who watch the fleet elsewhere."""


class FleetLead:
    """A coordinator and its calls to servers. One thread uses it; HTTP reads its coordinator."""

    def __init__(
        self,
        term: Term,
        config: FleetConfig,
        connect: Callable[[str], ServerClient],
        clock: Clock,
        *,
        notice: Notice | None = None,
        observer: FleetObserver | None = None,
    ) -> None:
        """Takes over the state. Raises OSError, and DataLoss if the state is not readable."""
        self._term = term
        self._config = config
        self._clock = clock
        self._notice = notice
        self._membership: Membership | None = None
        self._has_looked = False
        self.coordinator = Coordinator(
            term.store, self._send, config.waves, clock, observer, on_change=self._on_change
        )
        self._links = ServerLinks(
            connect=connect,
            receive=self.coordinator.receive,
            thread_count=config.coordinator.poll_threads,
            may_send=term.is_valid,
            observer=observer,
        )

    @property
    def is_polled(self) -> bool:
        """True once the servers are known. A decision before that would take the fleet for empty."""
        return self._membership is not None

    def poll(self, membership: Membership) -> None:
        """Follows the servers as they come and go, and asks each of them for a report."""
        self._membership = membership
        self.coordinator.set_servers(
            [server.name for server in membership.servers],
            membership.leaving,
            ended=membership.ended,
            identities=membership.identities,
        )
        self._links.set_targets({server.name: server.admin for server in membership.servers})
        self._links.poll()

    def step(self) -> None:
        """Decides once. A state that cannot be written is logged, and nothing is sent."""
        try:
            self.coordinator.step()
        except OSError as error:
            # A full disk, or a lead that was lost: the servers serve on.
            _log.error("fleet_state_not_written", reason=str(error))

    def registered(self) -> list[RegisteredServer] | None:
        """Returns the servers that clients may reach, as they are now; None before a first whole look."""
        now_ns = self._clock.now_ns()
        lost_ns = round(self._config.waves.lost_seconds * NS_PER_SECOND)
        sightings = self.coordinator.sightings
        servers = self._membership.servers if self._membership is not None else ()

        def is_lost(name: str) -> bool:
            return now_ns - sightings[name].seen_at_ns > lost_ns

        # Once is enough: a server that comes later is listed before it has reported.
        self._has_looked = self._has_looked or has_looked(servers, sightings, is_lost)
        return registered(servers, sightings, is_lost) if self._has_looked else None

    def stop(self) -> None:
        """See `Lead`."""
        self._links.stop()

    def _send(self, grants: Sequence[Grant]) -> None:
        self._links.send(grants)
        if self._notice is not None:
            self._notice((), grants)

    def _on_change(self, changes: Sequence[Change]) -> None:
        if self._notice is not None:
            self._notice(changes, ())
