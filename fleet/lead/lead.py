"""The work of a coordinator during one term: it polls the servers, decides and sends grants."""

import threading
from collections.abc import Mapping, Sequence

import structlog

from fleet.config.config import FleetConfig
from fleet.files.registry import RegisteredServer
from fleet.lead.coordinator import Coordinator
from fleet.lead.engine import Engine
from fleet.lead.leadership import Term
from fleet.lead.observer import FleetObserver
from fleet.lead.outputs import has_looked, registered
from fleet.lead.places import LOOK_SECONDS_MAX, Membership
from fleet.lead.server_links import ServerLinks
from fleet.rollout.changes import Change
from fleet.rollout.reports import Grant, ServerReport
from fleet.rollout.view import silent_servers
from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Unavailable

PAUSE_SECONDS_MAX = 60.0
"""The longest pause after a decision that failed because of a bug."""

_log = structlog.get_logger(__name__)


class FleetLead:
    """A coordinator and its calls to servers. One thread uses it, but any thread may use `coordinator`."""

    def __init__(
        self,
        term: Term,
        config: FleetConfig,
        engine: Engine,
        clock: Clock,
        observer: FleetObserver | None = None,
    ) -> None:
        """Takes over the state. Raises OSError, and DataLoss if the state is not readable."""
        self._term = term
        self._config = config
        self._clock = clock
        self._engine = engine
        self._membership: Membership | None = None
        self._has_looked = False
        # Held while a report is taken and while the servers change. So no report is taken for the report of
        # another server with the same name.
        self._members_lock = threading.Lock()
        self._targets: Mapping[str, str] = {}
        # The number of decisions, one after the other, that failed because of a bug.
        self._failure_count = 0
        # The end of the pause after the last of these decisions.
        self._paused_until_ns = 0
        # The reason, already logged, why the state could not be written; "" if it could.
        self._failure = ""
        self.coordinator = Coordinator(
            term.store,
            self._send,
            config.waves,
            clock,
            observer,
            on_change=self._on_change,
            order_min=term.order_min,
        )
        self._links = ServerLinks(
            connect=engine.client,
            receive=self.receive,
            thread_count=config.coordinator.poll_threads,
            clock=clock,
            may_send=term.is_valid,
            observer=observer,
            expects_end=self._is_leaving,
        )

    def poll(self) -> None:
        """Follows the servers as they come and go, and asks each of them for a report."""
        self._follow()
        self._links.poll()

    def receive(self, name: str, target: str, report: ServerReport) -> None:
        """Takes the report of a server. Drops it if another server has the name by now. Any thread."""
        with self._members_lock:
            if self._targets.get(name) == target:
                self.coordinator.receive(name, report)

    def step(self) -> None:
        """Lets the engine start and stop servers, and decides once. Raises nothing.

        If a decision fails, no grant is sent, and the servers serve on. If the engine does not answer, the
        engine logs that itself. If the state cannot be written, that is logged once. Any other error is a
        bug: it is logged, and the next decisions wait for a pause that doubles with each further failure.
        During the pause reports are still taken.
        """
        if self._clock.now_ns() < self._paused_until_ns:
            return
        try:
            self._engine.place.act(self.coordinator)
            self._follow()
            # Decides only once the servers are known. Before that, the fleet looks empty.
            if self._membership is not None:
                self.coordinator.step()
        except Unavailable:
            # The engine does not answer, or this lead has ended. Without an answer no rollout goes on, because
            # the servers may have changed.
            pass
        except OSError as error:
            # The disk is full, the store does not answer, or another coordinator leads now.
            if str(error) != self._failure:
                self._failure = str(error)
                _log.error("fleet_state_not_written", reason=self._failure)
        except Exception:  # noqa: BLE001 (a bug; the next reports may be others)
            seconds = min(2.0**self._failure_count, PAUSE_SECONDS_MAX)
            self._failure_count = min(self._failure_count + 1, 10)
            self._paused_until_ns = self._clock.now_ns() + round(seconds * NS_PER_SECOND)
            _log.exception("fleet_decision_failed", pause_seconds=seconds)
        else:
            self._failure_count, self._failure = 0, ""

    def registered(self) -> list[RegisteredServer] | None:
        """The servers that clients may reach, as they are now.

        None until each server has reported or has had the time to report. So a new coordinator drops no server
        from the files that clients read.
        """
        if self._membership is None:
            return None
        now_ns, sightings = self._clock.now_ns(), self.coordinator.sightings
        servers, lost_seconds = self._membership.servers, self._config.waves.lost_seconds
        # Checked until it is true once. A server that comes after that is listed before it has reported.
        if self._membership.is_whole and not self._has_looked:
            # Waits at most LOOK_SECONDS_MAX for a silent server, because new clients get no servers meanwhile.
            silent = silent_servers(sightings, min(lost_seconds, LOOK_SECONDS_MAX), now_ns)
            self._has_looked = has_looked(servers, sightings, silent)
        if not self._has_looked:
            return None
        return registered(servers, sightings, silent_servers(sightings, lost_seconds, now_ns))

    def stop(self) -> None:
        """Ends the lead. When it returns, no grant and no write of the state is under way.

        Waits for a write that has begun, because that write must not take effect in the next term.
        """
        self._links.stop()
        self.coordinator.close()

    def _follow(self) -> None:
        """Takes over the servers from the engine, if they have changed."""
        membership = self._engine.place.membership()
        if membership is None or membership is self._membership:
            return
        with self._members_lock:
            self._targets = {row.name: row.admin for row in membership.servers if row.admin}
            self.coordinator.set_servers(
                [server.name for server in membership.servers],
                membership.leaving,
                ended=membership.ended,
                identities=membership.identities,
                models=membership.models,
            )
        self._membership = membership
        self._links.set_targets(self._targets)

    def _is_leaving(self, name: str) -> bool:
        membership = self._membership
        return membership is not None and name in membership.leaving

    def _send(self, grants: Sequence[Grant]) -> None:
        self._links.send(grants)
        self._engine.notice((), grants)

    def _on_change(self, changes: Sequence[Change]) -> None:
        self._engine.notice(changes, ())
