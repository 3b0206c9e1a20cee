"""The right to decide for a fleet, in one term after the other: of a file, a Lease, or a store of Ray."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.lead.coordinator import StateStore
from fleet.lead.state_file import StateFile
from fleet.rollout.state import fleet_state_from_json


@dataclass(frozen=True)
class Term:
    """One time of leading. Its `number` is higher than that of each earlier term of the fleet.

    A grant of a term that is over is outbid by any grant of the next one, because the orders of a term are
    above those of each earlier term. So a grant that arrives late does no harm: if the server has taken a
    grant of the next term, it ignores the late one, and otherwise the next term replaces it. The next term
    knows of it, because it begins with the state in which the grant was decided. `order_min` is the lowest
    order of a grant in this term; 0 if the order of that state is enough.

    `is_valid` is asked before each grant, so that a term that is over soon sends nothing more. It may still
    return True for a moment after the next term has begun. An engine may promise more: that of Kubernetes
    does (`fleet/kubernetes/lease.py`).
    """

    number: int
    store: StateStore
    is_valid: Callable[[], bool]
    order_min: int = 0


class Leadership(Protocol):
    """Tries to lead, again and again, on a thread of its own. Thread-safe."""

    def start(self, port: int) -> None:
        """Begins to try. `port` is that of this coordinator's HTTP."""
        ...

    def term(self) -> Term | None:
        """The present term of this process; None while it does not lead. Raises OSError.

        A term that is over never comes back.
        """
        ...

    def leader(self) -> str:
        """The HTTP address of the coordinator that leads; "" if it is not known, or this one."""
        ...

    def stop(self) -> None:
        """Gives the lead up, so that another coordinator can take it at once. Nothing is sent after it."""
        ...


class FileLeadership:
    """Leads as long as the process runs, because the lock of the state's directory keeps other coordinators
    out.
    """

    def __init__(self, directory: Path) -> None:
        """Takes the directory. Raises InvalidConfig, and FailedPrecondition if a coordinator holds it."""
        self._store = StateFile(directory)
        self._term: Term | None = None

    def start(self, port: int) -> None:
        """See `Leadership`."""
        del port

    def term(self) -> Term:
        """See `Leadership`. Raises OSError, and DataLoss if the state is not readable."""
        if self._term is None:
            text = self._store.read()
            # It must be above the orders of each earlier term, which wrote its order before it sent a
            # grant.
            order = 0 if text is None else fleet_state_from_json(text).order
            self._term = Term(order + 1, self._store, lambda: True)
        return self._term

    def leader(self) -> str:
        """See `Leadership`."""
        return ""

    def stop(self) -> None:
        """See `Leadership`."""
        self._store.close()
