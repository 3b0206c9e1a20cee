"""Measures rollbacks from a version to the version before it, which is kept, as a client sees them."""

from collections.abc import Callable, Mapping, Sequence

from serving.base.clock import NS_PER_SECOND, Clock, pause
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2
from serving.client import Client

_TIMEOUT_SECONDS = 60


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

    Of each rollback: ms to its reply, ms to the first answer after the reply, and 1 if that answer came from
    another version. `target` is the server's admin address. `see` gets each answer, and the instant at which its
    rollback began. Raises MillpondError.
    """
    model = request.model_spec.name
    found: dict[str, list[float]] = {"reply_ms": [], "answer_ms": [], "is_late": []}
    with Client(target) as client:
        for _ in range(count):
            began_ns = clock.now_ns()
            client.rollback(model)
            replied_ns = clock.now_ns()
            answer = client.predict_message(request)
            found["answer_ms"].append((clock.now_ns() - began_ns) / 1e6)
            if see is not None:
                see(began_ns, answer)
            found["reply_ms"].append((replied_ns - began_ns) / 1e6)
            found["is_late"].append(answer.model_spec.version.value != old)
            client.allow(model, new)
            _wait_for_default(client, model, new, clock)
    return found


def _wait_for_default(client: Client, model: str, version: int, clock: Clock) -> None:
    """Waits until `version` is the default version. Raises Unavailable at the timeout."""
    end_ns = clock.now_ns() + _TIMEOUT_SECONDS * NS_PER_SECOND
    while client.describe_models()[model]["default_version"] != version:
        if clock.now_ns() > end_ns:
            raise Unavailable(
                f"version {version} is not the default version after {_TIMEOUT_SECONDS} s"
            )
        pause(clock, 0.002)
