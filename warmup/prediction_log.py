"""PredictionLogs: what stands in the records of a warm-up file.

A log is a request of one kind, and may hold the response to it. The file is TensorFlow Serving's,
and so is its limit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError

from serving.base.errors import DataLoss, InvalidConfig
from serving.base.protos import prediction_log_pb2
from warmup.records import read_records, write_records

WARM_UP_FILE = Path("assets.extra", "tf_serving_warmup_requests")
"""Where a version keeps its records, below its own directory."""

# TensorFlow Serving's limit. Records should stand for the traffic; a file with more is a log of it,
# and would keep the version from serving for minutes.
RECORD_COUNT_MAX = 1_000

PREDICT = "predict_log"

METHODS: Mapping[str, str] = {
    PREDICT: "Predict",
    "classify_log": "Classify",
    "regress_log": "Regress",
    "multi_inference_log": "MultiInference",
}
"""The method of PredictionService that a kind of log is of."""

# The kinds that a warm-up file may hold. TensorFlow Serving refuses session_run_log and
# predict_streamed_log, and so does everything here.
WARM_UP_KINDS = tuple(METHODS)

Log: TypeAlias = prediction_log_pb2.PredictionLog


def parse_log(number: int, record: bytes, path: Path) -> Log:
    """The log of one record; `number` counts from 1. Raises DataLoss where it is none."""
    try:
        return Log.FromString(record)
    except DecodeError as error:
        raise DataLoss(f"{path}: record {number} is no PredictionLog: {error}") from error


def read_logs(path: Path) -> Iterator[Log]:
    """Yields the logs of a file in order, of any kind and number, one in memory at a time.

    Raises DataLoss (damaged, when the iteration gets there) and OSError.
    """
    for number, record in enumerate(read_records(path), start=1):
        yield parse_log(number, record, path)


def write_logs(path: Path, logs: Iterable[Log]) -> None:
    """Writes a warm-up file at once or not at all; a server sees the old one or the new one.

    A version's `assets.extra` is made where it is missing, no other directory.

    Raises InvalidConfig for more than 1,000 logs, and for one that is empty or of a kind that no
    server replays; OSError.
    """
    records = encode_logs(list(logs), path)
    if path.parent.name == WARM_UP_FILE.parent.name:
        path.parent.mkdir(exist_ok=True)
    write_records(path, records)


def encode_logs(logs: Sequence[Log], path: Path) -> list[bytes]:
    """The records of `logs`; the same logs give the same bytes. Raises as `write_logs`; `path` is for its messages."""
    if len(logs) > RECORD_COUNT_MAX:
        raise InvalidConfig(
            f"{path}: {len(logs)} records, and a server takes {RECORD_COUNT_MAX}; "
            "keep those that stand for the traffic"
        )
    for number, log in enumerate(logs, start=1):
        if kind_of(log) not in WARM_UP_KINDS:
            raise InvalidConfig(
                f"{path}: record {number} is {kind_of(log) or 'empty'}; "
                f"give one of {', '.join(WARM_UP_KINDS)}"
            )
    return [log.SerializeToString(deterministic=True) for log in logs]


def kind_of(log: Log) -> str:
    """`predict_log`, `classify_log`, …; "" of an empty one."""
    kind: str | None = log.WhichOneof("log_type")
    return kind or ""


def has_response(log: Log) -> bool:
    """Whether the answer to the request stands beside it."""
    kind = kind_of(log)
    return kind in WARM_UP_KINDS and getattr(log, kind).HasField("response")


def warm_up_file(path: Path) -> Path:
    """The file meant by `path`: itself, or the one of a version's directory."""
    return path / WARM_UP_FILE if path.is_dir() else path
