"""Replays a model's recent live requests on a new version before it becomes available.

A version's first request of a kind makes a callable for its set of outputs, runs it for the first
time and allocates memory of its size. That is done here, whether or not the model's warm-up file
covers it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Cancelled, MillpondError, PermissionDenied
from serving.base.protos import predict_pb2
from serving.core.cancellation import Cancellation
from warmup.replay import Predict

MakeCallable = Callable[[bytes], object]
"""Makes the callable for requests like this one, as `Servable.make_callable` does."""

# A callable's second run is as fast as any later one (docs/design.md, "Run inline").
ITERATIONS = 2

# It is not certain that clients will send such requests again, so longer replays are not worth a later
# swap.
TIME_BUDGET_SECONDS = 10.0

# If a version's requests do not end, they must not occupy its loader for the sum of their
# deadlines.
TIME_LIMIT_SECONDS = 120.0

# A request's signature name and outputs; "" and the empty set stand for the defaults.
Pair = tuple[str, frozenset[str]]


@dataclass(frozen=True, kw_only=True)
class SelfWarmUpResult:
    """The counts of a self-warm-up's requests: each request ran, failed, was skipped, or may not be
    repeated."""

    run_count: int
    failed_count: int
    skipped_count: int
    """The requests for which no time was left."""
    first_error: str
    """The error of the first request that failed; "" if all requests succeeded."""
    seconds: float
    unrepeatable_count: int = 0
    """The requests that ended before they would change what cannot be put back.

    No other count includes them.
    """
    unrepeatable_reason: str = ""
    """The reason of the first such request, with the node that would change something."""
    failed_requests: tuple[bytes, ...] = ()
    """The failed requests, which the gates send to the predecessor. Some may have failed by a deadline."""


def self_warm_up(
    requests: Sequence[bytes],
    *,
    make_callable: MakeCallable,
    predict: Predict,
    cancellation: Cancellation,
    iterations: int = ITERATIONS,
    time_budget_seconds: float = TIME_BUDGET_SECONDS,
    clock: Clock,
) -> SelfWarmUpResult:
    """Makes the callable of each of `requests` and sends it through `predict` `iterations` times, in their
    order.

    On the calling thread. Once the time budget is spent, only the first request of each pair of signature
    and set of outputs is run. After TIME_LIMIT_SECONDS no request is run. A request that fails is counted
    and not tried again. The gates send it to the predecessor, and refuse a version on which too many
    requests fail that the predecessor answers. A request that would change what cannot be put back ends
    there, with PermissionDenied, and what it ran until then is warm.

    Raises Cancelled, before the next call, once it is cancelled.
    """
    started_ns = clock.now_ns()
    end_ns = started_ns + round(time_budget_seconds * NS_PER_SECOND)
    limit_ns = started_ns + round(TIME_LIMIT_SECONDS * NS_PER_SECOND)
    warm_pairs: set[Pair] = set()
    run_count = 0
    unrepeatable: list[str] = []
    errors: list[str] = []
    failed_requests: list[bytes] = []
    for request in requests:
        pair = pair_of(request)
        now_ns = clock.now_ns()
        if now_ns >= limit_ns or (now_ns >= end_ns and pair in warm_pairs):
            continue
        try:
            refusal = _run(request, make_callable, predict, cancellation, iterations)
        except MillpondError as error:
            _check_is_wanted(cancellation)
            errors.append(str(error))
            failed_requests.append(request)
            continue
        warm_pairs.add(pair)
        run_count += int(refusal is None)
        unrepeatable += [] if refusal is None else [refusal]
    return SelfWarmUpResult(
        run_count=run_count,
        failed_count=len(errors),
        skipped_count=len(requests) - run_count - len(unrepeatable) - len(errors),
        unrepeatable_count=len(unrepeatable),
        unrepeatable_reason=unrepeatable[0] if unrepeatable else "",
        first_error=errors[0] if errors else "",
        seconds=(clock.now_ns() - started_ns) / NS_PER_SECOND,
        failed_requests=tuple(failed_requests),
    )


def warm_joint_runs(
    requests: Sequence[bytes],
    *,
    answer: Predict,
    cancellation: Cancellation,
    iterations: int = ITERATIONS,
    time_budget_seconds: float = TIME_BUDGET_SECONDS,
    clock: Clock,
) -> list[str]:
    """Sends each of `requests`, which run several signatures at once, through `answer` `iterations`
    times.

    Starts no request once the time budget is spent. Returns the errors of the failed requests,
    which are not repeated. The errors do not refuse a version: `self_warm_up` replays the
    signatures one by one.

    Raises Cancelled, before the next call, once it is cancelled.
    """
    end_ns = clock.now_ns() + round(time_budget_seconds * NS_PER_SECOND)
    errors: list[str] = []
    for request in requests:
        if clock.now_ns() >= end_ns:
            break
        try:
            for _ in range(iterations):
                _check_is_wanted(cancellation)
                answer(request)
        except PermissionDenied:
            continue
        except MillpondError as error:
            _check_is_wanted(cancellation)
            errors.append(str(error))
    return errors


def _run(
    request: bytes,
    make_callable: MakeCallable,
    predict: Predict,
    cancellation: Cancellation,
    iterations: int,
) -> str | None:
    """Runs one request. Returns the reason if it ended because it would change what cannot be put back."""
    refusal = None
    _check_is_wanted(cancellation)
    # If there are too many callables, the callable for all outputs answers.
    with suppress(MillpondError):
        make_callable(request)
    for _ in range(max(iterations, 1)):
        _check_is_wanted(cancellation)
        try:
            predict(request)
        except PermissionDenied as error:
            refusal = str(error)
    return refusal


def _check_is_wanted(cancellation: Cancellation) -> None:
    if cancellation.is_cancelled:
        raise Cancelled("self-warm-up stopped; the version is no longer aspired")


def pair_of(request: bytes) -> Pair:
    """The signature and outputs of a PredictRequest.

    Bytes that do not parse get the default pair; the request fails when it is run.
    """
    try:
        parsed = predict_pb2.PredictRequest.FromString(request)
    except DecodeError:
        return ("", frozenset())
    return (parsed.model_spec.signature_name, frozenset(parsed.output_filter))
