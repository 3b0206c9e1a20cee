"""The lead of the present term, for the handlers of a coordinator's HTTP."""

from fleet.lead.coordinator import Coordinator
from fleet.lead.engine import Engine
from fleet.lead.outputs import Outputs
from serving.base.errors import Unavailable


class PresentLead:
    """Knows which coordinator leads now, and the texts that HTTP shows. Any thread reads it.

    One thread sets `present`.
    """

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
        """The HTTP address of the coordinator that leads; "" if that is this one, or is not known."""
        return self._engine.leadership.leader()

    @property
    def registry(self) -> str:
        """The registry's document; "" while some servers are not known yet."""
        return self._outputs.registry

    @property
    def problems(self) -> list[str]:
        """The problems of the engine and of the written files, for people."""
        return [*self._engine.problems(), *self._outputs.problems]

    def coordinator(self) -> Coordinator:
        """The coordinator of the present term. Raises Unavailable while this process does not lead."""
        coordinator = self.present
        if coordinator is None:
            raise Unavailable("this coordinator does not lead the fleet now; ask again")
        return coordinator
