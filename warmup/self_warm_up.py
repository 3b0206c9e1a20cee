"""Replays a model's recent live requests on a new version before it becomes available.

What a version's first request of a kind pays for (a callable of its set of outputs, the first run
of it, memory of its size) is paid here, whatever the model's warm-up file holds or leaves out.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Cancelled, MillpondError
from serving.base.protos import predict_pb2
from warmup.replay import IsCancelled, Predict

Prepare = Callable[[bytes], object]
"""Makes what requests like this one use, as `Servable.prepare` does."""

# A callable's second run is as fast as any later one (docs/design.md, "Run inline").
ITERATIONS = 2

# A version whose swap waits longer than this for requests that are only probable is late itself.
TIME_BUDGET_SECONDS = 10.0

# A version whose requests do not end must not hold its loader for as long as all of them may run.
TIME_LIMIT_SECONDS = 120.0

# What a request asks for: a signature's name and outputs, "" and none for the default ones.
_Pair = tuple[str, frozenset[str]]


@dataclass(frozen=True, kw_only=True)
class SelfWarmUpResult:
    """What a self-warm-up did with the requests that it was given: each ran, failed or was skipped."""

    run_count: int
    failed_count: int
    skipped_count: int
    """Those for which no time was left."""
    first_error: str
    """Of the first that failed; "" where none did."""
    seconds: float
    failed_requests: tuple[bytes, ...] = ()
    """For the gates, which ask the predecessor for them. A deadline may be why one is here."""


def self_warm_up(
    requests: Sequence[bytes],
    *,
    prepare: Prepare,
    predict: Predict,
    is_cancelled: IsCancelled = lambda: False,
    iterations: int = ITERATIONS,
    time_budget_seconds: float = TIME_BUDGET_SECONDS,
    clock: Clock,
) -> SelfWarmUpResult:
    """Prepares each of `requests` and sends it through `predict` `iterations` times, in their order.

    On the calling thread. Once the time budget is spent, only the first request of each pair of
    signature and set of outputs is run, and after TIME_LIMIT_SECONDS none is. A request that fails is
    counted and not tried again here:
    the gates ask the predecessor for it, and refuse a version that alone fails too many.

    Raises Cancelled, before the next call, once `is_cancelled`.
    """
    started_ns = clock.now_ns()
    end_ns = started_ns + round(time_budget_seconds * NS_PER_SECOND)
    limit_ns = started_ns + round(TIME_LIMIT_SECONDS * NS_PER_SECOND)
    warm_pairs: set[_Pair] = set()
    run_count = 0
    errors: list[str] = []
    failed_requests: list[bytes] = []
    for request in requests:
        pair = _pair(request)
        now_ns = clock.now_ns()
        if now_ns >= limit_ns or (now_ns >= end_ns and pair in warm_pairs):
            continue
        try:
            _run(request, prepare, predict, is_cancelled, iterations)
        except MillpondError as error:
            _check_is_wanted(is_cancelled)
            errors.append(str(error))
            failed_requests.append(request)
            continue
        warm_pairs.add(pair)
        run_count += 1
    return SelfWarmUpResult(
        run_count=run_count,
        failed_count=len(errors),
        skipped_count=len(requests) - run_count - len(errors),
        first_error=errors[0] if errors else "",
        seconds=(clock.now_ns() - started_ns) / NS_PER_SECOND,
        failed_requests=tuple(failed_requests),
    )


def warm_joint_runs(
    requests: Sequence[bytes],
    *,
    answer: Predict,
    is_cancelled: IsCancelled = lambda: False,
    iterations: int = ITERATIONS,
    time_budget_seconds: float = TIME_BUDGET_SECONDS,
    clock: Clock,
) -> list[str]:
    """Sends each of `requests`, which run several signatures as one, through `answer` `iterations` times.

    Begins no request once the time budget is spent. Returns the errors of the requests that failed,
    which are not repeated. They refuse no version: `self_warm_up` replays their signatures one by one.

    Raises Cancelled, before the next call, once `is_cancelled`.
    """
    end_ns = clock.now_ns() + round(time_budget_seconds * NS_PER_SECOND)
    errors: list[str] = []
    for request in requests:
        if clock.now_ns() >= end_ns:
            break
        try:
            for _ in range(iterations):
                _check_is_wanted(is_cancelled)
                answer(request)
        except MillpondError as error:
            _check_is_wanted(is_cancelled)
            errors.append(str(error))
    return errors


def _run(
    request: bytes, prepare: Prepare, predict: Predict, is_cancelled: IsCancelled, iterations: int
) -> None:
    _check_is_wanted(is_cancelled)
    # Without a callable of its own (there are too many) the one for all outputs answers.
    with suppress(MillpondError):
        prepare(request)
    for _ in range(max(iterations, 1)):
        _check_is_wanted(is_cancelled)
        predict(request)


def _check_is_wanted(is_cancelled: IsCancelled) -> None:
    if is_cancelled():
        raise Cancelled("self-warm-up stopped; the version is no longer aspired")


def _pair(request: bytes) -> _Pair:
    """The pair of a PredictRequest; of bytes that are none, which fails when it is run, the default."""
    try:
        parsed = predict_pb2.PredictRequest.FromString(request)
    except DecodeError:
        return ("", frozenset())
    return (parsed.model_spec.signature_name, frozenset(parsed.output_filter))
