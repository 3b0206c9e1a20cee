"""Measures rollbacks from a version to the version before it, which is kept, as clients see them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from loadtest.drive.generator import Generator
from loadtest.plan.plan import NOT_KEPT, Outcome, Plan
from serving.base.clock import NS_PER_SECOND, Clock, pause
from serving.base.errors import StatusCode, Unavailable
from serving.base.protos import predict_pb2
from serving.client import Client

_TIMEOUT_SECONDS = 60

_STEADY_SECONDS = 0.05
"""The time before each change of the version that answers: the server has told all of the last change by then."""

_PERIOD_NS = 250_000
"""The shortest time between two requests of the client that looks for the version before. Without a pause it would
take more of a core than the rollback, on a machine of two."""

_ROLLBACK_NS_MAX = 2 * NS_PER_SECOND
"""The time for which that client asks, for each rollback."""

_ALL_NS_MIN = 60 * NS_PER_SECOND
"""The time for which it asks at least: on a busy machine a single rollback may take seconds."""


@dataclass(frozen=True)
class Instants:
    """The instants of one rollback: its call, its reply, and when its version was allowed again."""

    began_ns: int
    replied_ns: int
    allowed_ns: int


def measure_rollbacks(
    target: str,
    request: predict_pb2.PredictRequest,
    count: int,
    clock: Clock,
    *,
    old: int,
    new: int,
    see: Callable[[int, predict_pb2.PredictResponse], None] | None = None,
) -> Mapping[str, Sequence[float]]:
    """Rolls back from `new` to `old`, and forward again, `count` times, at a server that serves `new`.

    Of each rollback: ms to the first answer of `old` that another client gets; ms to its reply; ms to the first
    answer after the reply, and 1 if that answer, or one to a later request of the other client, came from another
    version. The other client is a process of its own (the native issue loop), because two clients in one
    interpreter wait for each other. `target` is the server's admin address. `see` gets each answer after a reply,
    and the instant at which its rollback began. Raises MillpondError.
    """
    model, instants = request.model_spec.name, []
    answer_ms, is_other = [], []
    with Client(target) as client, Generator(_asking(request, count), target) as other:
        pause(clock, max(0, other.started_ns - clock.now_ns()) / NS_PER_SECOND)
        for _ in range(count):
            pause(clock, _STEADY_SECONDS)
            before_count = _request_count(client, model, old)
            began_ns = clock.now_ns()
            client.rollback(model)
            replied_ns = clock.now_ns()
            answer = client.predict_message(request)
            answer_ms.append((clock.now_ns() - began_ns) / 1e6)
            is_other.append(answer.model_spec.version.value != old)
            if see is not None:
                see(began_ns, answer)
            pause(clock, _STEADY_SECONDS)
            # One of the other client beside that of this one.
            _wait_until(
                partial(_has_answered, client, model, old, before_count + 2),
                f"version {old} has not answered the other client",
                clock,
            )
            instants.append(Instants(began_ns, replied_ns, clock.now_ns()))
            client.allow(model, new)
            _wait_until(
                partial(_is_default, client, model, new),
                f"version {new} is not the default version",
                clock,
            )
        asked = Asked(other.stop())
    are_late = [asked.is_late(rollback, old) for rollback in instants]
    return {
        "seen_ms": [asked.first_answer_ms(rollback, old) for rollback in instants],
        "reply_ms": [(item.replied_ns - item.began_ns) / 1e6 for item in instants],
        "answer_ms": answer_ms,
        "is_late": [float(a or b) for a, b in zip(is_other, are_late, strict=True)],
    }


def _asking(request: predict_pb2.PredictRequest, rollback_count: int) -> Plan:
    """A client that sends `request` again when it has an answer, until after the last rollback."""
    request_count = max(rollback_count * _ROLLBACK_NS_MAX, _ALL_NS_MIN) // _PERIOD_NS
    return Plan(
        offsets_ns=np.arange(request_count, dtype=np.int64) * _PERIOD_NS,
        payload_of=np.zeros(request_count, np.int32),
        payloads=[request.SerializeToString()],
        channel_count=1,
        in_flight_max=1,
    )


class Asked:
    """The answers to a client that asks beside rollbacks."""

    def __init__(self, outcome: Outcome) -> None:
        """Raises Unavailable if a request failed, or if its reply was not kept."""
        failed = [reply.data for reply in outcome.replies if reply.code != StatusCode.OK]
        if failed or np.any(outcome.codes != StatusCode.OK):
            raise Unavailable(f"a request beside a rollback failed: {failed[:1]}")
        if np.any(outcome.reply_of == NOT_KEPT):
            raise Unavailable("replies beside rollbacks were too many to be kept")
        responses = (predict_pb2.PredictResponse.FromString(item.data) for item in outcome.replies)
        versions = [response.model_spec.version.value for response in responses]
        self._versions = np.array(versions, np.int64)[outcome.reply_of]
        self._issued_ns, self._completed_ns = outcome.issued_ns, outcome.completed_ns

    def first_answer_ms(self, rollback: Instants, version: int) -> float:
        """The ms from the rollback to the first answer of `version`. Raises Unavailable if there is none."""
        is_first = (self._versions == version) & (self._completed_ns >= rollback.began_ns)
        instants = self._completed_ns[is_first & (self._issued_ns < rollback.allowed_ns)]
        if not instants.size:
            if not np.any(self._issued_ns > rollback.began_ns):
                raise Unavailable("the client beside the rollbacks had sent all of its requests")
            raise Unavailable(f"no request got an answer of version {version} after its rollback")
        return float(instants.min() - rollback.began_ns) / 1e6

    def is_late(self, rollback: Instants, version: int) -> bool:
        """True if a request that was sent after the reply was answered by another version."""
        is_after = self._issued_ns >= rollback.replied_ns
        is_answered = self._completed_ns < rollback.allowed_ns
        return bool(np.any((self._versions != version) & is_after & is_answered))


def _request_count(client: Client, model: str, version: int) -> int:
    """The requests that the version has answered."""
    rows = client.describe_models()[model]["versions"]
    return sum(row.get("request_count", 0) for row in rows if row["version"] == version)


def _has_answered(client: Client, model: str, version: int, count: int) -> bool:
    return _request_count(client, model, version) >= count


def _wait_until(is_reached: Callable[[], bool], what: str, clock: Clock) -> None:
    """Waits until `is_reached()`. Raises Unavailable with `what` at the timeout."""
    end_ns = clock.now_ns() + _TIMEOUT_SECONDS * NS_PER_SECOND
    while not is_reached():
        if clock.now_ns() > end_ns:
            raise Unavailable(f"{what} after {_TIMEOUT_SECONDS} s")
        pause(clock, 0.002)


def _is_default(client: Client, model: str, version: int) -> bool:
    return bool(client.describe_models()[model]["default_version"] == version)
