"""Finds the rows of a table that differ, bit by bit, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from millpond.checkpoint_index import Entry, masked
from serving.base.errors import DataLoss

_PIECE_BYTES = 2**20
"""The bytes of one piece: small enough for a processor's cache, and large enough for a disk."""

Rows = NDArray[Any]
Ids = NDArray[np.int64]


class TableRows(Protocol):
    """The rows of a table, wherever they are."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def row_bytes(self) -> int: ...

    def piece(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes of the rows from `start` to `stop`. The next call may overwrite them."""
        ...


class StoredRows:
    """The rows of a table in a shard of a checkpoint, at the place in its `entry`."""

    def __init__(self, shard: Path, entry: Entry, shape: tuple[int, int], row_bytes: int) -> None:
        """Raises OSError."""
        self.shape = shape
        self.row_bytes = row_bytes
        self._path = shard
        self._file = shard.open("rb", buffering=0)
        self._offset: int = entry.offset
        self._buffer = np.empty(0, np.uint8)
        self._masked_crc32c: int = entry.crc32c
        # The rows that were read from the first one on, and their CRC32C.
        self._read_rows = 0
        self._crc32c = 0

    def piece(self, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TableRows`.

        Raises OSError, and DataLoss if the file ends before, or if these are the last rows of all that were read in
        order, and their checksum is not the one of the index.
        """
        size = (stop - start) * self.row_bytes
        if self._buffer.size < size:
            self._buffer = np.empty(size, np.uint8)
        view = self._buffer[:size]
        self._file.seek(self._offset + start * self.row_bytes)
        done = 0
        while done < size:
            count = self._file.readinto(view[done:].data)
            if not count:
                raise DataLoss(f"{self._path}: it ends before the rows of its table do")
            done += count
        self._check(start, stop, view)
        return view

    def _check(self, start: int, stop: int, view: NDArray[np.uint8]) -> None:
        if start != self._read_rows:
            return
        self._read_rows, self._crc32c = stop, google_crc32c.extend(self._crc32c, view)
        if stop == self.shape[0] and masked(self._crc32c) != self._masked_crc32c:
            raise DataLoss(
                f"{self._path}: the checksum of a table is wrong: restore the file, or export the version again"
            )

    def rows_of(self, ids: Ids) -> NDArray[np.uint8]:
        """The bytes of the rows `ids`, a row each. Raises OSError, and ValueError if the file is too short."""
        table = np.memmap(self._path, np.uint8, "r", self._offset, (self.shape[0], self.row_bytes))
        return np.asarray(table[ids])

    def close(self) -> None:
        self._file.close()


class PatchedRows:
    """The rows of a table, with those of a delta in their place. `ids` are ascending."""

    def __init__(self, table: StoredRows, ids: Ids, rows: NDArray[np.uint8]) -> None:
        self.shape = table.shape
        self.row_bytes = table.row_bytes
        self._table = table
        self._ids = ids
        self._rows = rows

    def piece(self, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TableRows`, and `StoredRows.piece` for the errors."""
        found = self._table.piece(start, stop)
        first, last = np.searchsorted(self._ids, [start, stop])
        found.reshape(-1, self.row_bytes)[self._ids[first:last] - start] = self._rows[first:last]
        return found

    def rows_of(self, ids: Ids) -> NDArray[np.uint8]:
        """See `StoredRows.rows_of`."""
        found = self._table.rows_of(ids)
        _, places, patches = np.intersect1d(ids, self._ids, return_indices=True)
        found[places] = self._rows[patches]
        return found


class LiveRows:
    """The rows of a variable as they are when this is made, without a copy of them."""

    def __init__(self, variable: Any) -> None:
        self.tensor = snapshot(variable)
        rows, columns = self.tensor.shape.as_list()
        self.shape: tuple[int, int] = (rows, columns)
        self.row_bytes: int = columns * self.tensor.dtype.size
        # NumPy has no bfloat16, and TensorFlow no bytes of a bool.
        as_bytes = (
            self.tensor if self.tensor.dtype == tf.bool else tf.bitcast(self.tensor, tf.uint8)
        )
        self._bytes = np.asarray(memoryview(as_bytes)).reshape(-1).view(np.uint8)

    def piece(self, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TableRows`."""
        return self._bytes[start * self.row_bytes : stop * self.row_bytes]


def snapshot(variable: Any) -> Any:
    """The value of a variable, which later updates do not change.

    Without the first line a variable that had a sparse update is copied by each read, as TensorFlow's own
    saver knows. An update while the value is held copies it then.
    """
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
    return variable.read_value()


def changed_rows(old: TableRows, new: TableRows) -> Ids:
    """The ids of the rows that differ, ascending.

    Compares bits, so a NaN equals itself, and -0.0 differs from 0.0. Takes a few megabytes beside the ids.
    Raises what reading the rows raises.
    """
    words = _words_of(old.row_bytes)
    found = [
        start
        + _differing(
            old.piece(start, stop).view(words), new.piece(start, stop).view(words), stop - start
        )
        for start, stop in pieces(old.shape[0], old.row_bytes)
    ]
    return np.concatenate([np.empty(0, np.int64), *found])


def pieces(row_count: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the first row of each piece, and the row behind its last one."""
    step = max(1, _PIECE_BYTES // max(1, row_bytes))
    for start in range(0, row_count, step):
        yield start, min(start + step, row_count)


def _differing(old: Rows, new: Rows, row_count: int) -> Ids:
    rows = np.flatnonzero(old != new) // max(1, old.size // row_count)
    ids: Ids = rows[np.diff(rows, prepend=-1) != 0]
    return ids


def _words_of(row_bytes: int) -> type[np.unsignedinteger[Any]]:
    """The largest unsigned number of which a row has a whole count."""
    for word in (np.uint64, np.uint32, np.uint16):
        if row_bytes % np.dtype(word).itemsize == 0:
            return word
    return np.uint8
