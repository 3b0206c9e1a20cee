"""The content of a Parquet file of a request log: a row for each record, a column for each tensor.

Imported only when a model logs to Parquet, because pyarrow is an extra (`millpond[parquet]`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EIO
from itertools import chain
from os import dup, fdopen
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetWriter as ParquetFileWriter

from serving.base.clock import Clock
from serving.base.errors import InvalidArgument
from serving.base.protos import tensor_pb2, types_pb2
from serving.base.tensor_proto import array_dtype, from_tensor_proto
from serving.data_plane.request_log import LoggedBatch
from warmup.prediction_log import Log
from warmup.records import decode_records

ROW_GROUP_BYTES = 8 * 2**20
"""The records of a row group, before they are compressed: large enough for compression and for readers
that skip groups, and the most memory that an open file takes for records."""

HEAD = Struct("<qqq32sQ")
"""A head of `LoggedBatch.heads`: arrival and latency in ns, version, trace id, and the log's id."""

_COMPRESSION = "zstd"
_NS_PER_SECOND = 1e9

_PLAIN_DTYPES = {
    data_type: array_dtype(data_type)
    for data_type in (
        *(types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_HALF),
        *(types_pb2.DT_INT8, types_pb2.DT_INT16, types_pb2.DT_INT32, types_pb2.DT_INT64),
        *(types_pb2.DT_UINT8, types_pb2.DT_UINT16, types_pb2.DT_UINT32, types_pb2.DT_UINT64),
    )
}
"""The dtypes whose elements Parquet takes as numpy has them."""

_RECORD_COLUMNS: Mapping[str, pa.DataType] = {
    "model": pa.string(),
    "version": pa.int64(),
    "signature": pa.string(),
    "time": pa.timestamp("us", tz="UTC"),
    "latency_seconds": pa.float64(),
    "trace_id": pa.string(),
}


_COLUMN_ENDING = re.compile(r"\.(shape|u?int[0-9]+|halffloat|float|double|bool|binary)_*\Z")
"""An end of a tensor's name that could be the end which a column has for its shapes or its type."""


@dataclass(frozen=True)
class _Tensor:
    """One tensor: its numbers as little-endian bytes of `dtype`, or its strings if `dtype` is None."""

    dtype: Any
    shape: tuple[int, ...]
    elements: bytes | list[bytes]

    @property
    def value_type(self) -> pa.DataType:
        return pa.binary() if self.dtype is None else pa.from_numpy_dtype(self.dtype)


@dataclass
class _TensorColumn:
    """The tensors of one column, for the rows that have one."""

    rows: list[int] = field(default_factory=list)
    tensors: list[_Tensor] = field(default_factory=list)

    def add(self, row: int, tensor: _Tensor) -> None:
        self.rows.append(row)
        self.tensors.append(tensor)

    def values(self, row_count: int) -> pa.Array:
        """The elements of each tensor in row-major order; null without a tensor."""
        dtype = self.tensors[0].dtype
        if dtype is None:
            strings = [tensor.elements for tensor in self.tensors]
            values = pa.array(list(chain.from_iterable(strings)), pa.binary())
            return _lists(self.rows, list(map(len, strings)), values, row_count)
        joined = b"".join(tensor.elements for tensor in self.tensors)  # type: ignore[misc]
        lengths = [len(tensor.elements) // dtype.itemsize for tensor in self.tensors]
        return _lists(self.rows, lengths, pa.array(np.frombuffer(joined, dtype)), row_count)

    def shapes(self, row_count: int) -> pa.Array:
        """The shape of each tensor; null without a tensor."""
        shapes = [tensor.shape for tensor in self.tensors]
        sizes = pa.array(list(chain.from_iterable(shapes)), pa.int64())
        return _lists(self.rows, list(map(len, shapes)), sizes, row_count)


class ParquetFiles:
    """Makes the writers of one log, which share the columns of all tensors so far.

    A row without a tensor has null in its column. If a tensor comes with another dtype than before, it has a
    column of its own, whose name ends in that type. A tensor whose own name ends like that, or like a
    column of shapes, has `_` at the end of its column.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._columns: dict[str, pa.DataType] = dict(_RECORD_COLUMNS)

    def __call__(self, descriptor: int) -> "ParquetWriter":
        """Makes the writer to a file's descriptor."""
        return ParquetWriter(descriptor, self)

    @property
    def schema(self) -> pa.Schema:
        """The columns of all records so far."""
        return pa.schema(list(self._columns.items()))

    def table(self, batch: LoggedBatch) -> pa.Table:
        """Makes the rows of a batch, with the columns of `schema`."""
        rows = _Rows(self._column_of, self._clock.wall_ns() - self._clock.now_ns())
        rows.add(batch)
        arrays = rows.columns()
        self._columns.update({name: array.type for name, array in arrays.items()})
        missing = {
            name: pa.nulls(batch.record_count, kind)
            for name, kind in self._columns.items()
            if name not in arrays
        }
        return pa.table({**arrays, **missing}).select(self.schema.names)

    def _column_of(self, name: str, value_type: pa.DataType) -> str:
        known = self._columns.setdefault(name, pa.list_(value_type))
        return name if known == pa.list_(value_type) else f"{name}.{value_type}"


class ParquetWriter:
    """Appends batches to a file. Thread: one at a time. Its methods raise OSError."""

    def __init__(self, descriptor: int, files: ParquetFiles) -> None:
        self._descriptor = descriptor
        self._files = files
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._file: Any = None
        # None before the first row group, and after one that the disk did not take.
        self._writer: Any = None
        self.size_bytes = 0
        """The bytes of the records, before they are compressed."""

    def add(self, batch: LoggedBatch) -> bool:
        """Keeps the rows of a batch, and writes a row group if it is large enough.

        Returns False and adds nothing if the batch has columns that the file lacks.
        """
        table = self._files.table(batch)
        if self._writer is not None and self._writer.schema != table.schema:
            return False
        self._waiting.append(table)
        self._waiting_bytes += len(batch.frames)
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_group()
        self.size_bytes += len(batch.frames)
        return True

    def finish(self) -> None:
        """Writes the rest and the footer, without which nothing of the file is readable."""
        if self._waiting:
            self._write_group()
        if self._writer is None:
            raise OSError(EIO, "a row group could not be written")
        try:
            self._writer.close()
        finally:
            self._file.close()

    def _write_group(self) -> None:
        tables, self._waiting, self._waiting_bytes = self._waiting, [], 0
        try:
            # Until the first row group is written, later batches may bring columns.
            table = pa.concat_tables(tables, promote_options="default")
            if self._file is None:
                self._file = fdopen(dup(self._descriptor), "wb")
                self._writer = ParquetFileWriter(self._file, table.schema, compression=_COMPRESSION)
            if self._writer is None:
                raise OSError(EIO, "an earlier row group could not be written")
            self._writer.write_table(table)
        except Exception:
            # The rows are lost, so the file must not count as complete.
            self._give_up()
            raise

    def _give_up(self) -> None:
        writer, self._writer = self._writer, None
        with suppress(Exception):
            if writer is not None:
                writer.close()
        with suppress(OSError):
            if self._file is not None:
                self._file.close()


class _Rows:
    """Collects the rows of batches, column by column."""

    def __init__(
        self, column_of: Callable[[str, pa.DataType], str], wall_minus_monotonic_ns: int
    ) -> None:
        self._column_of = column_of
        self._wall_minus_monotonic_ns = wall_minus_monotonic_ns
        self._records: dict[str, list[Any]] = {name: [] for name in _RECORD_COLUMNS}
        self._by_column: dict[str, _TensorColumn] = {}
        # The same by kind, name and dtype, so that a tensor's column is found without its type in Parquet.
        self._tensors: dict[tuple[str, str, int], _TensorColumn] = {}
        self.count = 0

    def add(self, batch: LoggedBatch) -> None:
        records = decode_records(batch.frames, "queue")
        for record, head in zip(records, HEAD.iter_unpack(batch.heads), strict=True):
            log = Log.FromString(record).predict_log
            received_ns, latency_ns, version, trace_id, _ = head
            spec = log.response.model_spec
            wall_us = (received_ns + self._wall_minus_monotonic_ns) // 1_000
            values = (
                *(spec.name, version, spec.signature_name, wall_us),
                *(latency_ns / _NS_PER_SECOND, trace_id.rstrip(b"\0").decode("ascii") or None),
            )
            for name, value in zip(_RECORD_COLUMNS, values, strict=True):
                self._records[name].append(value)
            self._add_tensors("input", log.request.inputs)
            self._add_tensors("output", log.response.outputs)
            self.count += 1

    def _add_tensors(self, kind: str, tensors: Mapping[str, tensor_pb2.TensorProto]) -> None:
        for name, proto in tensors.items():
            tensor = _tensor_of(proto)
            key = (kind, name, proto.dtype)
            if key not in self._tensors:
                column = self._column_of(f"{kind}.{_unambiguous(name)}", tensor.value_type)
                # Two dtypes may have one type in Parquet, and so share a column.
                shared = self._by_column.setdefault(column, _TensorColumn())
                self._tensors[key] = shared
            self._tensors[key].add(self.count, tensor)

    def columns(self) -> Mapping[str, pa.Array]:
        """The columns of all rows, by name."""
        return dict(self._named_columns())

    def _named_columns(self) -> Iterator[tuple[str, pa.Array]]:
        for name, kind in _RECORD_COLUMNS.items():
            yield name, pa.array(self._records[name], kind)
        for name, columns in sorted(self._by_column.items()):
            yield name, columns.values(self.count)
            yield f"{name}.shape", columns.shapes(self.count)


def _unambiguous(name: str) -> str:
    """The name with one `_` more if it could end the column of another tensor's shapes or dtype.

    It depends on nothing but the name, and no two names become one.
    """
    return f"{name}_" if _COLUMN_ENDING.search(name) else name


def _tensor_of(proto: tensor_pb2.TensorProto) -> _Tensor:
    """The tensor in a type that Parquet has: small floats as float32, and complex numbers as pairs.

    A tensor of a dtype that numpy does not have is one element, its serialized TensorProto.
    """
    dtype = _PLAIN_DTYPES.get(proto.dtype)
    # The data plane writes numbers like this, and one that has no elements without contents.
    if dtype is not None and proto.tensor_content:
        shape = tuple([dim.size for dim in proto.tensor_shape.dim])
        return _Tensor(dtype, shape, proto.tensor_content)
    try:
        array = from_tensor_proto(proto)
    except InvalidArgument:
        return _Tensor(None, (), [proto.SerializeToString()])
    if array.dtype == object:
        return _Tensor(None, array.shape, array.ravel().tolist())
    plain = _plain(array)
    return _Tensor(plain.dtype, plain.shape, plain.tobytes())


def _plain(array: Any) -> Any:
    if array.dtype.kind == "c":
        return array.reshape(*array.shape, 1).view(array.real.dtype)
    if array.dtype.name.startswith(("bfloat", "float8")):
        return array.astype(np.float32)
    return array


def _lists(rows: list[int], lengths: list[int], values: pa.Array, row_count: int) -> pa.Array:
    """A list array of `row_count` rows: the next of `values` in each of `rows`, and null in the others."""
    all_lengths = np.zeros(row_count, np.int64)
    all_lengths[rows] = lengths
    is_missing = np.ones(row_count, bool)
    is_missing[rows] = False
    offsets = np.concatenate([[0], np.cumsum(all_lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(is_missing))
