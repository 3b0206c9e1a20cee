"""PredictionLogs: the content of the records of a warm-up file.

A log is a request of one kind, and may hold the response to it. The file's format and its limit are
TensorFlow Serving's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError

from serving.base.errors import DataLoss, InvalidConfig
from serving.base.protos import prediction_log_pb2
from warmup.records import read_records, write_records

WARM_UP_FILE = Path("assets.extra", "tf_serving_warmup_requests")
"""The path of a version's records, below its own directory."""

# TensorFlow Serving's limit. Records should be a sample of the traffic; a larger file is a log of
# the traffic, and replaying it would delay the version for minutes.
RECORD_COUNT_MAX = 1_000

PREDICT = "predict_log"

METHODS: Mapping[str, str] = {
    PREDICT: "Predict",
    "classify_log": "Classify",
    "regress_log": "Regress",
    "multi_inference_log": "MultiInference",
}
"""The method of PredictionService for each kind of log."""

# The kinds that a warm-up file may hold. session_run_log and predict_streamed_log are refused, as
# in TensorFlow Serving.
WARM_UP_KINDS = tuple(METHODS)

Log: TypeAlias = prediction_log_pb2.PredictionLog


def parse_log(number: int, record: bytes, path: Path) -> Log:
    """Parses the log of one record; `number` counts from 1. Raises DataLoss if it does not
    parse.
    """
    try:
        return Log.FromString(record)
    except DecodeError as error:
        raise DataLoss(f"{path}: record {number} is not a PredictionLog: {error}") from error


def read_logs(path: Path) -> Iterator[Log]:
    """Yields the logs of a file in order, of any kind and number, one in memory at a time.

    Raises DataLoss when the iteration reaches a damaged record, and OSError.
    """
    for number, record in enumerate(read_records(path), start=1):
        yield parse_log(number, record, path)


def write_logs(path: Path, logs: Iterable[Log]) -> None:
    """Writes a warm-up file atomically: a server sees either the old file or the new one.

    Creates a version's `assets.extra` if it is missing, but no other directory.

    Raises InvalidConfig for more than 1,000 logs, and for a log that is empty or of a kind that
    servers do not replay; OSError.
    """
    records = encode_logs(list(logs), path)
    if path.parent.name == WARM_UP_FILE.parent.name:
        path.parent.mkdir(exist_ok=True)
    write_records(path, records)


def encode_logs(logs: Sequence[Log], path: Path) -> list[bytes]:
    """Encodes the records of `logs`; the same logs give the same bytes.

    Raises as `write_logs` does; `path` is for the messages.
    """
    if len(logs) > RECORD_COUNT_MAX:
        raise InvalidConfig(
            f"{path}: {len(logs)} records, but a server accepts {RECORD_COUNT_MAX}; "
            "keep a sample of the traffic"
        )
    for number, log in enumerate(logs, start=1):
        if kind_of(log) not in WARM_UP_KINDS:
            raise InvalidConfig(
                f"{path}: record {number} is {kind_of(log) or 'empty'}; "
                f"give one of {', '.join(WARM_UP_KINDS)}"
            )
    return [log.SerializeToString(deterministic=True) for log in logs]


def kind_of(log: Log) -> str:
    """The kind of a log: `predict_log`, `classify_log`, …; "" for an empty log."""
    kind: str | None = log.WhichOneof("log_type")
    return kind or ""


def has_response(log: Log) -> bool:
    """True if the log holds the response to its request."""
    kind = kind_of(log)
    return kind in WARM_UP_KINDS and getattr(log, kind).HasField("response")


def warm_up_file(path: Path) -> Path:
    """`path` itself, or the warm-up file in it if `path` is a version's directory."""
    return path / WARM_UP_FILE if path.is_dir() else path
