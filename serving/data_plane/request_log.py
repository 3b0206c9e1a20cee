"""The seam's log of requests: what the native side samples, and the queue to the thread that writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class LoggedBatch:
    """The records of one log that were taken from the queue together, in the order of their replies.

    `frames` are PredictionLogs as a TFRecord file has them. `heads` has 64 bytes for each record,
    little-endian: the times (int64, ns) of the request's arrival by `Clock.now_ns` and until its answer,
    the version (int64), the trace id (32 hexadecimal digits, or zero bytes), and the log's id (uint64).
    """

    log_id: int
    record_count: int
    frames: bytes
    heads: bytes


@dataclass(frozen=True)
class RequestLogStatistics:
    """The records of one log since it was made."""

    sampled_count: int
    """The records that were to be written, with the dropped ones."""

    dropped_count: int
    """The records that found no room in the queue."""


class RecordQueue(Protocol):
    """Records on their way from requests to the thread that writes them. Requests never wait for it.

    Thread: `take`: one at a time. `used_bytes`: any.
    """

    def take(self) -> Sequence[LoggedBatch]:
        """Takes the first 1 MiB or so of the records that are there, in the order of their logs' ids.

        If it raises MemoryError, all records stay in the queue.
        """

    @property
    def used_bytes(self) -> int:
        """The bytes of records that were not taken yet."""


class RequestLog(Protocol):
    """The log of one model, which samples the requests of all its versions. It outlives them.

    Thread: `set`: one at a time. `statistics`: any.
    """

    def set(
        self, *, sampling_rate: float, inputs: Sequence[str] | None, outputs: Sequence[str] | None
    ) -> None:
        """Samples this share of the requests that end from now on; 0: none.

        Only the named inputs and outputs are logged; None: all of them.
        """

    def statistics(self) -> RequestLogStatistics:
        """Counts the records."""
