"""Keeps the coordinator of a fleet on Ray going: takes the fleet over, and does so again if that fails."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from fleet.ray.key_value_store import Deposed
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import Unavailable

PAUSE_SECONDS_MAX = 30.0
"""The longest pause between two attempts: as long as an operator waits who has mended the reason."""

# A fleet that was led for so long has no lasting fault: the next pause is short again.
_LONG_SECONDS = 60.0

_log = structlog.get_logger(__name__)


class Led(Protocol):
    """A fleet that was taken over."""

    def run(self) -> None:
        """Leads it until it is stopped, and closes it however that ends."""
        ...


FleetType = TypeVar("FleetType", bound=Led)


class CoordinatorLoop(Generic[FleetType]):
    """One thread runs it. `fleet` for any thread.

    Ray starts no actor again whose constructor has failed, and starts one that ends anew at once. So a
    failure ends neither the actor nor its process, and each attempt waits longer than the last one.
    """

    def __init__(self, take_over: Callable[[], FleetType], clock: Clock) -> None:
        self._take_over = take_over
        self._clock = clock
        self._fleet: FleetType | None = None
        self._reason = "it takes the fleet over"

    @property
    def fleet(self) -> FleetType:
        """The fleet. Raises Unavailable, with the reason, while it is not led."""
        fleet = self._fleet
        if fleet is None:
            raise Unavailable(f"the coordinator is not ready: {self._reason}")
        return fleet

    def run(self) -> None:
        """Leads the fleet until it is stopped. Raises Deposed if another coordinator has begun."""
        pause_seconds = 1.0
        while True:
            began_ns = self._clock.now_ns()
            try:
                self._lead()
            except Deposed as error:
                self._reason = str(error)
                raise
            except Exception as error:  # noqa: BLE001 (a bug, or a state that cannot be read)
                self._reason = f"{type(error).__name__}: {error}"
                _log.exception("fleet_coordinator_failed")
            else:
                return
            if seconds_since(self._clock, began_ns) > _LONG_SECONDS:
                pause_seconds = 1.0
            pause(self._clock, pause_seconds)
            pause_seconds = min(PAUSE_SECONDS_MAX, 2 * pause_seconds)

    def _lead(self) -> None:
        fleet = self._take_over()
        self._fleet = fleet
        try:
            fleet.run()
        finally:
            self._fleet = None
