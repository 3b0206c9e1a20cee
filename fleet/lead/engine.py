"""The engine below a fleet: the place of its servers, and the right to decide for them."""

from dataclasses import dataclass
from typing import Protocol

from fleet.lead.lead import Notice
from fleet.lead.leadership import Leadership
from fleet.lead.places import ServerPlace


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
