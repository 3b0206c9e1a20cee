"""Writes the files of a fleet on Ray on its front's machine, and logs there what the coordinator logs."""

from collections.abc import Sequence

import structlog

from fleet.config.config import FleetConfig
from fleet.files.registry import parse_registry
from fleet.lead.outputs import Outputs
from fleet.ray.deployment import Deployment, NoFleet
from fleet.ray.event_list import LoggedEvent
from serving.base.clock import Clock, Now, seconds_since
from serving.base.errors import FailedPrecondition, MillpondError

# A new coordinator may be out of reach for this time without a warning, because it looks at its servers first.
_FIRST_SECONDS = 30.0

_log = structlog.get_logger(__name__)


class CoordinatorLog:
    """Logs each event of the coordinators of a fleet once. One thread."""

    def __init__(self, deployment: Deployment, name: str, since_wall_ns: int) -> None:
        """Leaves out the events before `since_wall_ns`, because another front has logged them.

        `name` is the name of this front. The coordinator shows the problems of this front under it.
        """
        self._deployment = deployment
        self._name = name
        self._since_wall_ns = since_wall_ns
        self._last: LoggedEvent | None = None

    def follow(self, problems: Sequence[str]) -> None:
        """Logs the new events, and reports the problems of this front. Raises Unavailable."""
        # The time of an event is from the coordinator's node, whose clock differs little from this one's.
        since_ns = self._since_wall_ns if self._last is None else 0
        last = self._last
        for event in self._deployment.events(last, self._name, problems):
            if last is not None and event.boot == last.boot and event.number > last.number + 1:
                _log.warning("fleet_events_dropped", count=event.number - last.number - 1)
            last = self._last = event
            if event.wall_ns >= since_ns:
                getattr(_log, event.level)(event.name, **event.values)


class Follower:
    """Follows a fleet on a cluster: writes its servers into files, and its events into the log. One thread."""

    def __init__(
        self, config: FleetConfig, deployment: Deployment, name: str, began: Now, clock: Clock
    ) -> None:
        """`name` is the name of this front. `began` is the time at which it began to deploy the fleet."""
        self._deployment = deployment
        self._clock = clock
        self._outputs = Outputs(config.coordinator.registry_file, config.haproxy)
        self._events = CoordinatorLog(deployment, name, began.wall_ns)
        self._began_ns = began.ns
        self._has_reached = False
        self._is_warned = False

    def update(self) -> bool:
        """Writes the files for the servers that the coordinator shows now, and logs its new events.

        If the coordinator does not answer, leaves the files as they are. If an operator has stopped the
        fleet, empties the files and returns False. Raises FailedPrecondition if the cluster does not know
        the fleet any more.
        """
        try:
            self._outputs.update(parse_registry(self._deployment.registry()))
            self._events.follow(self._outputs.problems)
        except MillpondError as error:
            if isinstance(error, NoFleet) and self._deployment.is_stopped():
                _log.info("fleet_stopped")
                self._outputs.update([])
                return False
            if self._deployment.is_forgotten():
                raise FailedPrecondition(
                    "the Ray cluster was started anew and does not know this fleet: its servers are gone; "
                    "put it there again with millpond fleet start"
                ) from error
            self._note_unreachable(error)
            return True
        if self._is_warned:
            _log.info("fleet_coordinator_reached")
        self._has_reached = True
        self._is_warned = False
        return True

    def _note_unreachable(self, error: MillpondError) -> None:
        is_patient = seconds_since(self._clock, self._began_ns) < _FIRST_SECONDS
        if not self._is_warned and (self._has_reached or not is_patient):
            _log.warning("fleet_coordinator_unreachable", reason=str(error))
            self._is_warned = True
