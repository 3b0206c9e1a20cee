"""The engine below a fleet: the place of its servers, and the right to decide for them."""

from collections.abc import Sequence

from starlette.routing import Route
from starlette.types import ASGIApp

from fleet.lead.leadership import Leadership
from fleet.lead.member_client import member_client
from fleet.lead.places import ServerPlace
from fleet.lead.server_links import ServerClient
from fleet.rollout.changes import Change
from fleet.rollout.reports import Grant
from serving.client import Tls


class Engine:
    """The seams of one engine. This class is the engine of servers that somebody else has started.

    An engine that has more to show or to do overrides the methods.
    """

    routes: Sequence[Route] = ()
    """Added to the coordinator's HTTP."""

    def __init__(self, place: ServerPlace, leadership: Leadership, tls: Tls | None = None) -> None:
        """`tls` is for the admin listeners of the servers."""
        self.place = place
        self.leadership = leadership
        self._tls = tls

    @property
    def is_over(self) -> bool:
        """True once the process should end."""
        return False

    def start(self, port: int) -> None:
        """Starts the parts. `port` is that of this coordinator's HTTP."""
        self.place.start()
        self.leadership.start(port)

    def stop(self) -> None:
        """Gives up the lead. No grant follows."""
        self.leadership.stop()
        self.place.stop()

    def client(self, target: str) -> ServerClient:
        """Makes the client for a server with this target."""
        return member_client(target, self._tls)

    def notice(self, changes: Sequence[Change], grants: Sequence[Grant]) -> None:
        """Shows changes and grants to people in the engine's own tools. Returns at once."""

    def entry(self, app: ASGIApp) -> ASGIApp:
        """Makes the application that stands before the coordinator's HTTP."""
        return app

    def problems(self) -> Sequence[str]:
        """The problems that the coordinator's status shows."""
        return ()
