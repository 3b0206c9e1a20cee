"""Measures rollbacks from a version to the version before it, which is kept, as a client sees them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

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

    Of each rollback: ms to the first answer of `old` that another client gets, which asks without a pause; ms to its
    reply; ms to the first answer after the reply, and 1 if that answer came from another version. The reply comes
    after the first answer, because it promises that the rollback is on disk and that readers of the state see it.
    `target` is the server's admin address. `see` gets each answer after a reply, and the instant at which its
    rollback began. Raises MillpondError.
    """
    model = request.model_spec.name
    found: dict[str, list[float]] = {"seen_ms": [], "reply_ms": [], "answer_ms": [], "is_late": []}
    with Client(target) as client, Client(target) as other, ThreadPoolExecutor(1) as pool:
        for _ in range(count):
            is_asking = threading.Event()
            seen_ns = pool.submit(_first_answer_ns, other, request, old, is_asking, clock)
            is_asking.wait(_TIMEOUT_SECONDS)
            began_ns = clock.now_ns()
            client.rollback(model)
            replied_ns = clock.now_ns()
            answer = client.predict_message(request)
            found["answer_ms"].append((clock.now_ns() - began_ns) / 1e6)
            if see is not None:
                see(began_ns, answer)
            found["seen_ms"].append((seen_ns.result() - began_ns) / 1e6)
            found["reply_ms"].append((replied_ns - began_ns) / 1e6)
            found["is_late"].append(answer.model_spec.version.value != old)
            client.allow(model, new)
            _wait_for_default(client, model, new, clock)
    return found


def _first_answer_ns(
    client: Client,
    request: predict_pb2.PredictRequest,
    version: int,
    is_asking: threading.Event,
    clock: Clock,
) -> int:
    """Sends requests one after another until `version` answers; returns the instant of that answer.

    Sets `is_asking` after the first answer. Raises Unavailable at the timeout.
    """
    end_ns = clock.now_ns() + _TIMEOUT_SECONDS * NS_PER_SECOND
    while clock.now_ns() < end_ns:
        answer = client.predict_message(request)
        if answer.model_spec.version.value == version:
            return clock.now_ns()
        is_asking.set()
    raise Unavailable(f"version {version} does not answer after {_TIMEOUT_SECONDS} s")


def _wait_for_default(client: Client, model: str, version: int, clock: Clock) -> None:
    """Waits until `version` is the default version. Raises Unavailable at the timeout."""
    end_ns = clock.now_ns() + _TIMEOUT_SECONDS * NS_PER_SECOND
    while client.describe_models()[model]["default_version"] != version:
        if clock.now_ns() > end_ns:
            raise Unavailable(
                f"version {version} is not the default version after {_TIMEOUT_SECONDS} s"
            )
        pause(clock, 0.002)
