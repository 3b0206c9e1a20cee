"""Waits for a model: decides from its statuses when the wait is over."""

from serving.base.clock import Clock, seconds_since
from serving.base.errors import MillpondError, StatusCode, Unavailable
from serving.base.name_text import listed
from serving.client.calls import Call, model_status
from serving.client.messages import is_ready
from serving.client.results import VersionStatus

# The codes of errors that may pass. Waiting does not help against other errors.
_PASSING_CODES = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.NOT_FOUND,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.CANCELLED,
        StatusCode.RESOURCE_EXHAUSTED,
    }
)

# The most time for one look, because another server may answer if this one does not.
_LOOK_SECONDS_MAX = 5.0


class Readiness:
    """The wait of one thread or task, which looks, pauses, and looks again."""

    pause_seconds = 0.05
    """The pause between two looks: too short to notice, and long enough not to load a server."""

    def __init__(
        self, name: str, version: int | None, timeout_seconds: float, clock: Clock
    ) -> None:
        """The timeout begins now."""
        self._name = name
        self._version = version
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._started_ns = clock.now_ns()

    def look(self) -> Call[tuple[VersionStatus, ...]]:
        """Makes the call of the next look."""
        seconds = min(_LOOK_SECONDS_MAX, max(self.pause_seconds, self._remaining_seconds))
        return model_status(self._name, None, seconds)

    def is_over(self, statuses: tuple[VersionStatus, ...]) -> bool:
        """True if the model is ready. Raises Unavailable after the timeout."""
        if is_ready(statuses, self._version):
            return True
        states = listed(
            f"version {status.version} is {status.state.name}"
            + (f" ({status.error_message})" if status.error_message else "")
            for status in statuses
        )
        self._give_up_in_time(states if statuses else "it has no version")
        return False

    def check_error(self, error: MillpondError) -> None:
        """Raises `error` if waiting cannot help, and Unavailable after the timeout."""
        if error.code not in _PASSING_CODES:
            raise error
        self._give_up_in_time(str(error))

    @property
    def _remaining_seconds(self) -> float:
        return self._timeout_seconds - seconds_since(self._clock, self._started_ns)

    def _give_up_in_time(self, last_seen: str) -> None:
        if self._remaining_seconds > 0:
            return
        version = "any version" if self._version is None else f"version {self._version}"
        raise Unavailable(
            f"model {self._name!r}: {version} is not AVAILABLE after "
            f"{self._timeout_seconds:g} s: {last_seen}"
        )
