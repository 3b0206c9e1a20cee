"""Whether a call that failed is tried again, and when. Pure but for the clock it is given."""

from collections.abc import Callable
from dataclasses import dataclass

from serving.base.clock import Clock, seconds_since
from serving.base.errors import InvalidArgument, StatusCode
from serving.client.failures import Failure

# CANCELLED, which nobody here asked for, is what gRPC's C++ server says to a request that reaches it
# just as it begins to stop.
_REPEATABLE_CODES = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED})


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how soon. The pause doubles, and is between half and all of what that gives.

    A server that says for how long it wants to be left alone is left alone for that long. Attempts
    end with the call's deadline in any case.
    """

    attempt_count_max: int = 5
    pause_seconds_first: float = 0.05
    pause_seconds_max: float = 1.0

    def __post_init__(self) -> None:
        if self.attempt_count_max < 1:
            raise InvalidArgument(
                f"attempt_count_max={self.attempt_count_max}; at least 1, which never tries again"
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
    """How long to pause after the `attempt_count`th attempt failed; None: there is no other. Pure.

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
        # RESOURCE_EXHAUSTED by itself may as well be a message too large, which will be so again.
        is_repeatable = failure.code in _REPEATABLE_CODES
        doubled = policy.pause_seconds_first * 2.0 ** min(attempt_count - 1, 64)
        pause = min(policy.pause_seconds_max, doubled) * (1 + random_ratio) / 2
    return pause if is_repeatable and pause < remaining_seconds else None


class Attempts:
    """One call's attempts against its deadline. Of one thread or task."""

    def __init__(
        self, policy: RetryPolicy, timeout_seconds: float, clock: Clock, random: Callable[[], float]
    ) -> None:
        """The deadline runs from now; `random` gives numbers in [0, 1)."""
        self._policy = policy
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._random = random
        self._started_ns = clock.now_ns()
        self._count = 0

    @property
    def remaining_seconds(self) -> float:
        """Until the deadline; what an attempt that begins now may take."""
        return max(0.0, self._timeout_seconds - seconds_since(self._clock, self._started_ns))

    def pause_after(self, failure: Failure) -> float | None:
        """Counts a failed attempt: how many seconds to pause, None to give up."""
        self._count += 1
        return pause_seconds(
            self._policy, failure, self._count, self.remaining_seconds, self._random()
        )
