"""Waiting for a model: what is heard of it, and when to give up."""

from collections.abc import Sequence

from serving.base.clock import Clock, seconds_since
from serving.base.errors import MillpondError, StatusCode, Unavailable
from serving.base.name_text import listed
from serving.client.messages import is_ready
from serving.client.results import VersionStatus

# What goes away by waiting; anything else will be so again.
_PASSING_CODES = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.NOT_FOUND,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.CANCELLED,
        StatusCode.RESOURCE_EXHAUSTED,
    }
)

# One look may take so long: another server may know more than one that does not answer.
_LOOK_SECONDS_MAX = 5.0


class Readiness:
    """One wait. Of one thread or task; whoever waits looks, and pauses between two looks."""

    pause_seconds = 0.05
    """Below what a person notices, above what loads a server."""

    def __init__(
        self, name: str, version: int | None, timeout_seconds: float, clock: Clock
    ) -> None:
        """The time runs from now."""
        self._name = name
        self._version = version
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._started_ns = clock.now_ns()

    @property
    def look_seconds(self) -> float:
        """How long the next look may take."""
        return min(_LOOK_SECONDS_MAX, max(self.pause_seconds, self._remaining_seconds))

    def hear(self, statuses: Sequence[VersionStatus]) -> bool:
        """Whether the model is ready. Raises Unavailable where it is not and the time is over."""
        if is_ready(statuses, self._version):
            return True
        states = listed(
            f"version {status.version} is {status.state.name}"
            + (f" ({status.error_message})" if status.error_message else "")
            for status in statuses
        )
        self._give_up_in_time(states if statuses else "it has no version")
        return False

    def hear_error(self, error: MillpondError) -> None:
        """Raises `error` where waiting does not help, Unavailable where the time is over."""
        if error.code not in _PASSING_CODES:
            raise error
        self._give_up_in_time(str(error))

    @property
    def _remaining_seconds(self) -> float:
        return self._timeout_seconds - seconds_since(self._clock, self._started_ns)

    def _give_up_in_time(self, last_heard: str) -> None:
        if self._remaining_seconds > 0:
            return
        version = "any version" if self._version is None else f"version {self._version}"
        raise Unavailable(
            f"model {self._name!r}: {version} is not AVAILABLE after "
            f"{self._timeout_seconds:g} s: {last_heard}"
        )
