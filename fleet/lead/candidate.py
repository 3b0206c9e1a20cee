"""A coordinator that leads now and then: it begins a lead with each term, and ends it with the term."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from fleet.lead.leadership import Leadership, Term

_log = structlog.get_logger(__name__)


class Lead(Protocol):
    """The coordination during one term."""

    def stop(self) -> None:
        """Ends it. No grant and no write of the state is under way when this returns."""
        ...


AnyLead = TypeVar("AnyLead", bound=Lead)


class Candidate(Generic[AnyLead]):
    """Holds at most one lead, that of the present term. One thread calls it."""

    def __init__(self, leadership: Leadership, begin: Callable[[Term], AnyLead]) -> None:
        """`begin` takes over the state. It is called again with the next `turn` if it raises OSError."""
        self._leadership = leadership
        self._begin = begin
        self._lead: tuple[int, AnyLead] | None = None
        self.failure = ""
        """The reason why this process could not begin to lead at the last `turn`; "" if it could, or had no
        term.
        """

    def turn(self) -> AnyLead | None:
        """Follows the term: begins the lead of a new one, and ends that of an old one.

        Returns the lead of the present term; None while there is no term.

        Raises the errors of `begin`, except OSError.
        """
        try:
            self._follow(self._leadership.term())
        except OSError as error:
            if str(error) != self.failure:
                self.failure = str(error)
                _log.error("fleet_state_not_taken_over", reason=self.failure)
        else:
            self.failure = ""
        return None if self._lead is None else self._lead[1]

    def stop(self) -> None:
        """Ends the lead, if there is one."""
        if self._lead is not None:
            _, lead = self._lead
            self._lead = None
            lead.stop()

    def _follow(self, term: Term | None) -> None:
        """Ends the lead of another term, and begins that of this one."""
        number = None if term is None else term.number
        if self._lead is not None and self._lead[0] != number:
            _log.warning("fleet_lead_lost", term=self._lead[0])
            self.stop()
        if self._lead is None and term is not None:
            self._lead = term.number, self._begin(term)
