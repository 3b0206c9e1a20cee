"""The right to decide for a fleet, in terms: it comes from a locked file, a Lease, or the store of Ray."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.lead.coordinator import StateStore
from fleet.lead.state_file import StateFile
from fleet.rollout.state import fleet_state_from_json


@dataclass(frozen=True)
class Term:
    """A time in which one process leads. Its `number` is higher than that of each earlier term of the fleet.

    The orders of the grants in a term are above the orders of each earlier term. So a grant that arrives after
    its term does no harm. If the server has taken a grant of the next term, it ignores the late grant.
    Otherwise the next term replaces the late grant. It knows that grant, because it begins with the state in
    which the grant was decided. `order_min` is the lowest order of a grant in this term; 0 if any order above
    the order of that state is enough.

    The coordinator asks `is_valid` before it sends a grant, so that a term that is over soon sends no more.
    `is_valid` may still return True for a moment after the next term has begun. The engine of Kubernetes
    promises more (`fleet/kubernetes/lease.py`).
    """

    number: int
    store: StateStore
    is_valid: Callable[[], bool]
    order_min: int = 0


class Leadership(Protocol):
    """Tries to get the right to lead, again and again. Thread-safe."""

    def start(self, port: int) -> None:
        """Begins to try. `port` is the port of this coordinator's HTTP."""
        ...

    def term(self) -> Term | None:
        """The present term of this process; None while it may not lead. Raises OSError.

        A term that is over is never returned again.
        """
        ...

    def leader(self) -> str:
        """The HTTP address of the coordinator that leads; "" if that is this one, or is not known."""
        ...

    def stop(self) -> None:
        """Gives up the right to lead, so that another coordinator can take it at once."""
        ...


class FileLeadership:
    """Leads as long as the process runs, because its lock on the state's directory keeps others out."""

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
            # Each term writes its order before it sends grants. So no server has seen an order above the
            # stored one.
            order = 0 if text is None else fleet_state_from_json(text).order
            self._term = Term(order + 1, self._store, lambda: True)
        return self._term

    def leader(self) -> str:
        """See `Leadership`."""
        return ""

    def stop(self) -> None:
        """See `Leadership`."""
        self._store.close()
