"""The engine below a fleet: the place of its servers, and the right to decide for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from serving.base.clock import Clock
from serving.fleet.config import FleetConfig
from serving.fleet.lead import Notice
from serving.fleet.leadership import FileLeadership, Leadership
from serving.fleet.places import ListedServers, ServerPlace


class Background(Protocol):
    """A part that works on a thread of its own."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True)
class Engine:
    """The seams of one engine.

    `notice`, if there is one, shows changes to the users of the engine; `background` does that.
    """

    place: ServerPlace
    leadership: Leadership
    notice: Notice | None = None
    background: Background | None = None

    def start(self, port: int) -> None:
        """Starts the parts. `port` is that of this coordinator's HTTP."""
        if self.background is not None:
            self.background.start()
        self.place.start()
        self.leadership.start(port)

    def stop(self) -> None:
        """Gives the lead up, after the last grant."""
        self.leadership.stop()
        self.place.stop()
        if self.background is not None:
            self.background.stop()


def engine_of(config: FleetConfig, clock: Clock) -> Engine:
    """Returns the engine that the configuration names. Raises FailedPrecondition and InvalidConfig."""
    if config.kubernetes is not None:
        # Its client is an extra, and takes a second to import.
        from serving.fleet.kubernetes.engine import kubernetes_engine

        return kubernetes_engine(config, config.kubernetes, clock)
    return Engine(
        ListedServers(config.servers), FileLeadership(Path(config.coordinator.state_directory))
    )
