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
        """`begin` takes over the state. If it raises OSError, it is called again with the next `turn`."""
        self._leadership = leadership
        self._begin = begin
        self._lead: tuple[Term, AnyLead] | None = None
        self._failure = ""

    def turn(self) -> AnyLead | None:
        """Returns the lead of the present term; None while there is none. Raises the errors of `begin`."""
        term = self._leadership.term()
        if self._lead is not None and (
            term is None or term.number != self._lead[0].number or not term.is_valid()
        ):
            _log.warning("fleet_lead_lost", term=self._lead[0].number)
            self.stop()
        if self._lead is None and term is not None and term.is_valid():
            self._take_over(term)
        return None if self._lead is None else self._lead[1]

    def stop(self) -> None:
        """Ends the lead, if there is one."""
        if self._lead is not None:
            _, lead = self._lead
            self._lead = None
            lead.stop()

    def _take_over(self, term: Term) -> None:
        try:
            self._lead = term, self._begin(term)
        except OSError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                _log.error("fleet_state_not_taken_over", reason=self._failure)
            return
        self._failure = ""
