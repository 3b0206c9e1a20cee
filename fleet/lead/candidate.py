"""A coordinator that leads now and then: it begins a lead with each term, and ends it with the term."""

from collections.abc import Callable

import structlog

from fleet.lead.leadership import Leadership, Term

_log = structlog.get_logger(__name__)


class Candidate:
    """Follows the terms of a leadership. At most one lead is under way. One thread calls it."""

    def __init__(
        self, leadership: Leadership, begin: Callable[[Term], None], end: Callable[[], None]
    ) -> None:
        """`begin` takes over the state. If it raises OSError, it is called again with the next `turn`.

        `end` ends the lead that `begin` has begun. When it returns, no grant and no write of the state is
        under way.
        """
        self._leadership = leadership
        self._begin = begin
        self._end = end
        # The number of the term that is being led.
        self._led_term: int | None = None
        self.failure = ""
        """The reason why this process could not begin to lead at the last `turn`; "" if it could, or had no
        term.
        """

    def turn(self) -> bool:
        """Begins the lead of a new term, and ends that of an old one. Returns True while one is under way.

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
        """Ends the lead, if there is one."""
        if self._led_term is not None:
            self._led_term = None
            self._end()

    def _follow(self, term: Term | None) -> None:
        """Ends the lead of another term, and begins that of this one."""
        number = None if term is None else term.number
        if self._led_term is not None and self._led_term != number:
            _log.warning("fleet_lead_lost", term=self._led_term)
            self.stop()
        if self._led_term is None and term is not None:
            self._begin(term)
            self._led_term = term.number
