"""A process that may lead a fleet: it begins to lead with each term, and stops with the term."""

from collections.abc import Callable

import structlog

from fleet.lead.leadership import Leadership, Term

_log = structlog.get_logger(__name__)


class Candidate:
    """Calls `begin` and `end` as the terms of a leadership begin and end, in turn. One thread calls it."""

    def __init__(
        self, leadership: Leadership, begin: Callable[[Term], None], end: Callable[[], None]
    ) -> None:
        """`begin` takes over the fleet's state. If `begin` raises OSError, the next `turn` calls it again.

        `end` ends the lead that `begin` has begun. When `end` returns, no grant and no write of the state is
        under way.
        """
        self._leadership = leadership
        self._begin = begin
        self._end = end
        # The number of the term for which `begin` was called and `end` was not; None if there is none.
        self._led_term: int | None = None
        self.failure = ""
        """The reason why the last `turn` could not begin to lead; "" if it could, or if there was no term."""

    def turn(self) -> bool:
        """Begins to lead in a new term, and stops in an old one. Returns True if this process leads now.

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
        return self._led_term is not None

    def stop(self) -> None:
        """Stops leading, if this process leads."""
        if self._led_term is not None:
            self._led_term = None
            self._end()

    def _follow(self, term: Term | None) -> None:
        """Stops leading in any other term than `term`, and begins to lead in `term`."""
        number = None if term is None else term.number
        if self._led_term is not None and self._led_term != number:
            _log.warning("fleet_lead_lost", term=self._led_term)
            self.stop()
        if self._led_term is None and term is not None:
            self._begin(term)
            self._led_term = term.number
