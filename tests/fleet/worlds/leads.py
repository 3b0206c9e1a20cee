"""The lead of a coordinator that a test has made, for the HTTP that answers for it."""

from collections.abc import Sequence

from fleet.lead.coordinator import Coordinator
from fleet.lead.engine import Engine
from fleet.lead.leadership import Term
from fleet.lead.outputs import Outputs
from fleet.lead.places import ListedServers
from fleet.lead.present_lead import PresentLead


class OtherLeads:
    """A `Leadership` of a process that waits, because the coordinator at `address` leads."""

    def __init__(self, address: str = "") -> None:
        self._address = address

    def start(self, port: int) -> None:
        """Has nothing to start."""

    def term(self) -> Term | None:
        return None

    def leader(self) -> str:
        return self._address

    def stop(self) -> None:
        """Has nothing to stop."""


class TroubledEngine(Engine):
    """The engine of no servers, with the problems of a list that a test may change."""

    def __init__(self, leader: str, problems: Sequence[str]) -> None:
        super().__init__(ListedServers([]), OtherLeads(leader))
        self._problems = problems

    def problems(self) -> Sequence[str]:
        return self._problems


def lead_of(
    coordinator: Coordinator | None,
    *,
    leader: str = "",
    registry: str = "",
    problems: Sequence[str] = (),
) -> PresentLead:
    outputs = Outputs("", None)
    outputs.registry = registry
    lead = PresentLead(TroubledEngine(leader, problems), outputs)
    lead.present = coordinator
    return lead
