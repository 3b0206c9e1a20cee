"""gRPC's service config: when a channel sends a call again, and how it chooses among servers. Pure.

gRPC itself does both, as https://grpc.io/docs/guides/service-config describes.
"""

import json
from dataclasses import dataclass
from typing import Any

from serving.base.errors import InvalidArgument

RETRIED_CODES = (
    "UNAVAILABLE",
    # TensorFlow Serving's gRPC server answers CANCELLED to a request that arrives just as the server
    # begins to stop.
    "CANCELLED",
    # A server at its limit of requests sends this code with the pause that it requires.
    "RESOURCE_EXHAUSTED",
)

# The calls that change nothing on a server: it may run them twice. Other calls are sent once.
_REPEATABLE = (
    {"service": "tensorflow.serving.PredictionService"},
    {"service": "tensorflow.serving.ModelService", "method": "GetModelStatus"},
    {"service": "millpond.v1.Admin", "method": "ListModels"},
    {"service": "millpond.v1.Admin", "method": "GetConfig"},
    {"service": "millpond.v1.Admin", "method": "CaptureWarmUp"},
)

_ATTEMPT_COUNT_LIMIT = 5
"""gRPC makes no more attempts than this, whatever its configuration says."""

_PAUSE_SECONDS_MIN = 0.01
"""With a pause of a millisecond, about half of the retried calls of gRPC 1.85 end only at their deadline:
https://github.com/grpc/grpc/issues/41036. With 5 milliseconds none of hundreds did."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The number of attempts and the pauses between them.

    The pause doubles with each attempt, and varies at random by a fifth. If a server sends a pause,
    that pause is kept instead. The deadline of a call covers all its attempts.
    """

    attempt_count_max: int = 5
    pause_seconds_first: float = 0.05
    pause_seconds_max: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.attempt_count_max <= _ATTEMPT_COUNT_LIMIT:
            raise InvalidArgument(
                f"attempt_count_max={self.attempt_count_max} must be from 1, which never tries again, "
                f"to {_ATTEMPT_COUNT_LIMIT}, the limit of gRPC"
            )
        if not _PAUSE_SECONDS_MIN <= self.pause_seconds_first <= self.pause_seconds_max:
            raise InvalidArgument(
                f"pause_seconds_first={self.pause_seconds_first} must lie between "
                f"{_PAUSE_SECONDS_MIN} and pause_seconds_max={self.pause_seconds_max}"
            )


def service_config(retries: RetryPolicy, *, is_balanced: bool, health_service: str) -> str:
    """The service config of a channel, as JSON.

    With `is_balanced` the servers take turns, and a server takes part while it reports that
    `health_service` serves. Otherwise the channel uses one server and does not watch its health.
    """
    config: dict[str, Any] = {
        "methodConfig": [{"name": _REPEATABLE, **_retry_policy(retries)}],
        # The policy round_robin reads this; the default policy, pick_first, does not.
        "healthCheckConfig": {"serviceName": health_service},
    }
    if is_balanced:
        config["loadBalancingConfig"] = [{"round_robin": {}}]
    return json.dumps(config)


def _retry_policy(retries: RetryPolicy) -> dict[str, Any]:
    # gRPC refuses a policy of a single attempt.
    if retries.attempt_count_max == 1:
        return {}
    policy = {
        "maxAttempts": retries.attempt_count_max,
        "initialBackoff": f"{retries.pause_seconds_first:.9f}s",
        "maxBackoff": f"{retries.pause_seconds_max:.9f}s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": RETRIED_CODES,
    }
    return {"retryPolicy": policy}
