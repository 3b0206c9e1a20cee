"""Decides if and when a failed call is tried again. Pure, except for the clock that it is given."""

from collections.abc import Callable
from dataclasses import dataclass

from serving.base.clock import Clock, seconds_since
from serving.base.errors import InvalidArgument, StatusCode
from serving.client.failures import Failure

# gRPC's C++ server answers CANCELLED to a request that arrives just as the server begins to stop.
_REPEATABLE_CODES = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED})


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The number of attempts and the pauses between them.

    The pause doubles with each attempt, and is a random time between its half and all of it. If a
    server sends a pause, that pause is kept instead. No attempt begins after the call's deadline.
    """

    attempt_count_max: int = 5
    pause_seconds_first: float = 0.05
    pause_seconds_max: float = 1.0

    def __post_init__(self) -> None:
        if self.attempt_count_max < 1:
            raise InvalidArgument(
                f"attempt_count_max={self.attempt_count_max} must be at least 1, which never tries again"
            )
        if not 0 <= self.pause_seconds_first <= self.pause_seconds_max:
            raise InvalidArgument(
                f"pause_seconds_first={self.pause_seconds_first} must lie between 0 and "
                f"pause_seconds_max={self.pause_seconds_max}"
            )


ONE_ATTEMPT = RetryPolicy(attempt_count_max=1)


def pause_seconds(
    policy: RetryPolicy,
    failure: Failure,
    attempt_count: int,
    remaining_seconds: float,
    random_ratio: float,
) -> float | None:
    """Returns the pause after attempt number `attempt_count` failed; None if it was the last. Pure.

    `random_ratio` is in [0, 1).
    """
    if attempt_count >= policy.attempt_count_max:
        return None
    asked_seconds = failure.pushback_seconds
    if asked_seconds is not None:
        is_repeatable = asked_seconds >= 0 and (
            failure.code is StatusCode.RESOURCE_EXHAUSTED or failure.code in _REPEATABLE_CODES
        )
        pause = asked_seconds * (1 + random_ratio / 2)
    else:
        # Without a pause from the server, RESOURCE_EXHAUSTED may mean a message that is too large.
        is_repeatable = failure.code in _REPEATABLE_CODES
        doubled = policy.pause_seconds_first * 2.0 ** min(attempt_count - 1, 64)
        pause = min(policy.pause_seconds_max, doubled) * (1 + random_ratio) / 2
    return pause if is_repeatable and pause < remaining_seconds else None


class Attempts:
    """Counts the attempts of one call against its deadline. Used by one thread or task."""

    def __init__(
        self, policy: RetryPolicy, timeout_seconds: float, clock: Clock, random: Callable[[], float]
    ) -> None:
        """The timeout begins now. `random` returns numbers in [0, 1)."""
        self._policy = policy
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._random = random
        self._started_ns = clock.now_ns()
        self._count = 0

    @property
    def remaining_seconds(self) -> float:
        """The time until the deadline."""
        return max(0.0, self._timeout_seconds - seconds_since(self._clock, self._started_ns))

    def pause_after(self, failure: Failure) -> float | None:
        """Counts a failed attempt. Returns the seconds to pause, or None to give up."""
        self._count += 1
        return pause_seconds(
            self._policy, failure, self._count, self.remaining_seconds, self._random()
        )
