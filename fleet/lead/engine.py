"""The engine below a fleet: the place of its servers, and the right to decide for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.routing import Route
from starlette.types import ASGIApp

from fleet.lead.lead import Notice
from fleet.lead.leadership import Leadership
from fleet.lead.places import ServerPlace
from fleet.lead.server_links import ServerClient


class Background(Protocol):
    """A part that works on a thread of its own."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True)
class Engine:
    """The seams of one engine.

    `notice`, if there is one, shows changes to the users of the engine; `background` does that. `connect`
    calls servers in another way than over their admin listeners. `routes` are added to the coordinator's
    HTTP, `entry` stands before all of it, and `problems` are shown in its status. The process ends once
    `is_over` is true.
    """

    place: ServerPlace
    leadership: Leadership
    notice: Notice | None = None
    background: Background | None = None
    connect: Callable[[str], ServerClient] | None = None
    routes: Sequence[Route] = ()
    entry: Callable[[ASGIApp], ASGIApp] = lambda app: app
    problems: Callable[[], Sequence[str]] = tuple
    is_over: Callable[[], bool] = lambda: False

    def start(self, port: int) -> None:
        """Starts the parts. `port` is that of this coordinator's HTTP."""
        if self.background is not None:
            self.background.start()
        self.place.start()
        self.leadership.start(port)

    def stop(self) -> None:
        """Gives up the lead. No grant follows."""
        self.leadership.stop()
        self.place.stop()
        if self.background is not None:
            self.background.stop()
