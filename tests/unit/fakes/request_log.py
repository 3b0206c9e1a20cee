"""The data plane's side of request logs: a queue that a test fills."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.data_plane.request_log import LoggedBatch, RequestLogStatistics
from warmup.records import encode_record

HEAD_BYTES = 64


class FakeRecordQueue:
    """`_native.RecordQueue`, of which a test sets if it has room, and if Python has memory to take records."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.is_full = False
        self.has_memory = True
        self._records: list[tuple[int, bytes, bytes]] = []

    @property
    def used_bytes(self) -> int:
        return sum(HEAD_BYTES + len(record) for _, record, _ in self._records)

    def put(self, log_id: int, record: bytes, head: bytes) -> None:
        self._records.append((log_id, record, head))

    def take(self) -> list[LoggedBatch]:
        if not self.has_memory:
            raise MemoryError
        taken, self._records = self._records, []
        return [
            LoggedBatch(
                log_id,
                len(of_log := [(record, head) for of, record, head in taken if of == log_id]),
                b"".join(encode_record(record) for record, _ in of_log),
                b"".join(head for _, head in of_log),
            )
            for log_id in sorted({of for of, _, _ in taken})
        ]


@dataclass
class FakeRequestLog:
    """`_native.RequestLog`, to which a test puts the records of sampled requests."""

    queue: FakeRecordQueue
    log_id: int
    sampling_rate: float = 0.0
    inputs: Sequence[str] | None = ()
    outputs: Sequence[str] | None = ()
    counts: RequestLogStatistics = field(default_factory=lambda: RequestLogStatistics(0, 0))

    def set(
        self, *, sampling_rate: float, inputs: Sequence[str] | None, outputs: Sequence[str] | None
    ) -> None:
        self.sampling_rate, self.inputs, self.outputs = sampling_rate, inputs, outputs

    def put(self, *records: bytes, head: bytes = bytes(HEAD_BYTES)) -> None:
        for record in records:
            self.counts = RequestLogStatistics(
                self.counts.sampled_count + 1, self.counts.dropped_count + self.queue.is_full
            )
            if not self.queue.is_full:
                self.queue.put(self.log_id, record, head)

    def statistics(self) -> RequestLogStatistics:
        return self.counts
