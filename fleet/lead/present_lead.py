"""The lead of the present term, as the HTTP of a coordinator shows it."""

from fleet.lead.coordinator import Coordinator
from fleet.lead.engine import Engine
from fleet.lead.outputs import Outputs
from serving.base.errors import Unavailable


class PresentLead:
    """Knows who leads now, and what is known of the servers. Any thread reads; one thread sets `present`."""

    def __init__(self, engine: Engine, outputs: Outputs) -> None:
        self._engine = engine
        self._outputs = outputs
        self.present: Coordinator | None = None
        """The coordinator of this process; None while it does not lead."""

    @property
    def leads(self) -> bool:
        """True while this process leads the fleet."""
        return self.present is not None

    @property
    def leader(self) -> str:
        """The HTTP address of the coordinator that leads; "" if it is not known, or this one."""
        return self._engine.leadership.leader()

    @property
    def registry(self) -> str:
        """The registry's document; "" while not all servers are known."""
        return self._outputs.registry

    @property
    def problems(self) -> list[str]:
        """The problems of the engine and of the files, for people."""
        return [*self._engine.problems(), *self._outputs.problems]

    def coordinator(self) -> Coordinator:
        """The coordinator of the present term. Raises Unavailable while this process does not lead."""
        coordinator = self.present
        if coordinator is None:
            raise Unavailable("this coordinator does not lead the fleet now; ask again")
        return coordinator
