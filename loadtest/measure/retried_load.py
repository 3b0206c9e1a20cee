"""Clients of a fleet that try again, and the figures of a part of their requests."""

import itertools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from loadtest.drive.fleet_model import answer_of, request
from loadtest.drive.traffic import Answer, Outcome, Traffic
from loadtest.measure.latency import figures
from serving.base.clock import NS_PER_SECOND, Clock, pause
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_TIMEOUT_SECONDS = 20.0
_ATTEMPT_COUNT_MAX = 6
_PAUSE_SECONDS_FIRST = 0.05
_CHANNEL_COUNT = 4
_THREAD_COUNT = 16


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that failed. Its request may have been answered by the next one."""

    completed_ns: int
    code: str


class RetriedLoad:
    """Open-loop requests to `target` inside `with`, each tried again as long as it is not answered."""

    def __init__(self, target: str, rate_per_second: float, clock: Clock) -> None:
        self._clock = clock
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.insecure_channel(target, options) for _ in range(_CHANNEL_COUNT)]
        self._calls: list[Any] = [
            channel.unary_unary(
                _PREDICT,
                request_serializer=predict_pb2.PredictRequest.SerializeToString,
                response_deserializer=predict_pb2.PredictResponse.FromString,
            )
            for channel in self._channels
        ]
        self._request = request()
        self._lock = threading.Lock()
        self._attempts: list[FailedAttempt] = []
        self._traffic = Traffic(
            self._send, rate_per_second=rate_per_second, thread_count=_THREAD_COUNT, clock=clock
        )

    def __enter__(self) -> "RetriedLoad":
        self._traffic.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._traffic.__exit__(*exception)
        for channel in self._channels:
            channel.close()

    def report(self, since_ns: int, until_ns: int) -> dict[str, Any]:
        """The figures of the requests that were due in a time, as far as they are completed."""
        outcomes = [
            outcome
            for outcome in self._traffic.outcomes()
            if since_ns <= outcome.scheduled_ns < until_ns
        ]
        with self._lock:
            attempts = [
                attempt for attempt in self._attempts if since_ns <= attempt.completed_ns < until_ns
            ]
        return load_report(outcomes, attempts, (until_ns - since_ns) / NS_PER_SECOND)

    def _send(self, number: int) -> Answer:
        for attempt in itertools.count():
            try:
                call = self._calls[(number + attempt) % _CHANNEL_COUNT]
                return answer_of(call(self._request, timeout=_TIMEOUT_SECONDS))
            except grpc.RpcError as error:
                failed: Any = error
                self._note(str(failed.code().name))
                if attempt + 1 == _ATTEMPT_COUNT_MAX:
                    raise
            pause(self._clock, _PAUSE_SECONDS_FIRST * 2**attempt)
        raise Unavailable("no attempt was left")

    def _note(self, code: str) -> None:
        with self._lock:
            self._attempts.append(FailedAttempt(self._clock.now_ns(), code))


def load_report(
    outcomes: Sequence[Outcome], attempts: Sequence[FailedAttempt], seconds: float
) -> dict[str, Any]:
    """The counts and the latencies. `failed` are requests that no attempt has answered."""
    latencies = [outcome.latency_ns for outcome in outcomes if outcome.answer is not None]
    versions = Counter(outcome.answer.version for outcome in outcomes if outcome.answer is not None)
    return {
        "seconds": round(seconds, 1),
        "requests": len(outcomes),
        "failed": sum(outcome.answer is None for outcome in outcomes),
        "wrong": sum(
            outcome.answer is not None and not outcome.answer.is_right for outcome in outcomes
        ),
        "failed_attempts": dict(Counter(attempt.code for attempt in attempts)),
        "versions": dict(sorted(versions.items())),
        **figures(latencies),
    }


def p999_ratio(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """The p999 of one part over that of another; None if one of them has too few requests."""
    if one.get("p999_ms") is None or not other.get("p999_ms"):
        return None
    return round(float(one["p999_ms"]) / float(other["p999_ms"]), 2)
