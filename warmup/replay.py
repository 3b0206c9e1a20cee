"""Replays the warm-up records of a version before it becomes available.

TensorFlow runs the first request of each shape slowly: it optimises the graph, makes executors and
touches memory for the first time. If a version's records resemble its clients' requests, this work
is done before the version is published.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Cancelled, InvalidConfig, MillpondError, Unimplemented
from serving.base.protos import prediction_log_pb2
from serving.core.cancellation import Cancellation
from warmup.prediction_log import (
    METHODS,
    RECORD_COUNT_MAX,
    WARM_UP_FILE,
    WARM_UP_KINDS,
    kind_of,
    parse_log,
)
from warmup.records import read_records

# The file's name and limit are exported here too, for the callers of `warm_up` and their tests.
__all__ = [
    "RECORD_COUNT_MAX",
    "WARM_UP_FILE",
    "Ask",
    "Predict",
    "WarmUpResult",
    "warm_up",
]

Ask = Callable[[str, bytes], bytes]
"""Takes a method's name, like "Classify", and its serialized request; returns the serialized
response, as `Servable.answer` does."""

Predict = Callable[[bytes], bytes]
"""Takes a serialized PredictRequest; returns a serialized PredictResponse, as `Servable.predict`
does."""


@dataclass(frozen=True, kw_only=True)
class WarmUpResult:
    """The figures of a replay. `slowest_record` counts from 1; it is 0 if the file has no
    record.
    """

    record_count: int
    request_count: int
    seconds: float
    slowest_seconds: float
    slowest_record: int


def warm_up(
    directory: Path,
    ask: Ask,
    cancellation: Cancellation,
    *,
    iterations: int,
    clock: Clock,
) -> WarmUpResult:
    """Sends each record of the version in `directory` through `ask`, `iterations` times in a row.

    Runs on the calling thread. First checks the whole file, so that a bad record near its end does
    not cost minutes. A version without the file succeeds with 0 records. `iterations` below 1 means
    1, as in TensorFlow Serving.

    Raises:
    - DataLoss, with the byte offset, if the file is damaged
    - OSError if the file cannot be read
    - InvalidConfig if the file has more than 1,000 records, or an empty record, or is no file
    - Unimplemented if a record is of a kind that servers do not replay
    - Cancelled before the next request once it is cancelled
    - the MillpondErrors of `ask`, with the record's number before their message
    """
    path = directory / WARM_UP_FILE
    started_ns = clock.now_ns()
    record_count = _checked_count(path)
    replay = partial(_replay, iterations=max(iterations, 1), clock=clock)
    durations_ns = [
        replay(number, method, request, path, _stoppable(ask, cancellation))
        for number, method, request in _requests(path, record_count)
    ]
    slowest_ns = max(durations_ns, default=0)
    return WarmUpResult(
        record_count=record_count,
        request_count=record_count * max(iterations, 1),
        seconds=(clock.now_ns() - started_ns) / NS_PER_SECOND,
        slowest_seconds=slowest_ns / NS_PER_SECOND,
        slowest_record=durations_ns.index(slowest_ns) + 1 if durations_ns else 0,
    )


def _checked_count(path: Path) -> int:
    """Reads the whole file once, one record at a time, and counts; returns 0 if it does not
    exist.
    """
    if not path.exists():
        return 0
    if not path.is_file():  # a read of a named pipe would never end
        raise InvalidConfig(f"{path} is no file; remove it, or write a file of records there")
    record_count = 0
    for number, record in enumerate(read_records(path), start=1):
        if number > RECORD_COUNT_MAX:
            raise InvalidConfig(
                f"{path}: more than {RECORD_COUNT_MAX} records; keep a sample of the traffic"
            )
        _check_kind(parse_log(number, record, path), number, path)
        record_count = number
    return record_count


def _requests(path: Path, record_count: int) -> Iterator[tuple[int, str, bytes]]:
    """Yields (number, method, serialized request) of a file that passed `_checked_count`."""
    if record_count == 0:
        return
    for number, record in enumerate(read_records(path), start=1):
        log = parse_log(number, record, path)
        kind = kind_of(log)
        yield number, METHODS[kind], getattr(log, kind).request.SerializeToString()


def _stoppable(ask: Ask, cancellation: Cancellation) -> Ask:
    def ask_if_wanted(method: str, request: bytes) -> bytes:
        if cancellation.is_cancelled:
            raise Cancelled("not run; the version is no longer aspired")
        return ask(method, request)

    return ask_if_wanted


def _replay(
    number: int,
    method: str,
    request: bytes,
    path: Path,
    ask: Ask,
    *,
    iterations: int,
    clock: Clock,
) -> int:
    """Runs one record and returns the nanoseconds of its slowest iteration."""
    slowest_ns = 0
    for _ in range(iterations):
        started_ns = clock.now_ns()
        try:
            ask(method, request)
        except MillpondError as error:
            raise type(error)(f"{path}: record {number}: {error}", code=error.code) from error
        slowest_ns = max(slowest_ns, clock.now_ns() - started_ns)
    return slowest_ns


def _check_kind(log: prediction_log_pb2.PredictionLog, number: int, path: Path) -> None:
    kind = kind_of(log)
    if not kind:
        raise InvalidConfig(f"{path}: record {number} is empty; write a predict_log")
    if kind not in WARM_UP_KINDS:
        raise Unimplemented(
            f"{path}: record {number} is a {kind}, but a warm-up replays only "
            f"{', '.join(WARM_UP_KINDS)}; remove it from the file"
        )
