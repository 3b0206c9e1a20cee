"""The content of a TFRecord file of a request log, as the data plane has framed it."""

import os

from serving.data_plane.request_log import LoggedBatch


class TfRecordWriter:
    """Appends batches to a file. Thread: one at a time. Its methods raise OSError."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = 0

    def add(self, batch: LoggedBatch) -> bool:
        """Appends the records. If it raises, the next batch takes their place in the file."""
        _write_at(self._descriptor, self.size_bytes, batch.frames)
        self.size_bytes += len(batch.frames)
        return True

    def finish(self) -> None:
        """Cuts off the part of a batch that the disk did not take as a whole."""
        os.ftruncate(self._descriptor, self.size_bytes)


def _write_at(descriptor: int, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count
