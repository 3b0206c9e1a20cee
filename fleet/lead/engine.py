"""The engine of a fleet: the source of its servers, and of the right to decide for them."""

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
    """Everything that a coordinator asks of its engine.

    This class is the engine for servers that an operator has started. The engines of Kubernetes and Ray
    override the methods for which they have more to do.
    """

    routes: Sequence[Route] = ()
    """The routes that the engine adds to the coordinator's HTTP."""

    def __init__(self, place: ServerPlace, leadership: Leadership, tls: Tls | None = None) -> None:
        """`tls` is the TLS for calls to the servers' admin listeners; None without TLS."""
        self.place = place
        self.leadership = leadership
        self._tls = tls

    @property
    def is_over(self) -> bool:
        """True once the coordinator's process should end."""
        return False

    def start(self, port: int) -> None:
        """Starts to follow the servers and to try to lead. `port` is the port of this coordinator's HTTP."""
        self.place.start()
        self.leadership.start(port)

    def stop(self) -> None:
        """Gives up the right to lead, and follows the servers no more. The caller has ended its lead before."""
        self.leadership.stop()
        self.place.stop()

    def client(self, target: str) -> ServerClient:
        """Makes a client for the server at this target."""
        return member_client(target, self._tls)

    def notice(self, changes: Sequence[Change], grants: Sequence[Grant]) -> None:
        """Shows changes and grants to people in the engine's own tools. Returns at once."""

    def entry(self, app: ASGIApp) -> ASGIApp:
        """Wraps the coordinator's HTTP application, to mark the requests of operators."""
        return app

    def problems(self) -> Sequence[str]:
        """The problems that the coordinator's status shows."""
        return ()
