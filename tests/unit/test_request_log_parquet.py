"""Parquet files of a request log, as pyarrow reads them."""

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from serving.base.clock import NS_PER_SECOND
from serving.base.protos import types_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.data_plane.request_log import LoggedBatch
from serving.request_log import parquet_file
from serving.request_log.parquet_file import HEAD, ParquetFiles, ParquetWriter
from tests.unit.fakes.clocks import FakeClock
from warmup.prediction_log import Log
from warmup.records import encode_record

TRACE_ID = b"0af7651916cd43dd8448eb211c80319c"


def log_of(inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Log:
    log = Log()
    log.predict_log.response.model_spec.name = "ctr"
    log.predict_log.response.model_spec.signature_name = "serving_default"
    for name, value in inputs.items():
        log.predict_log.request.inputs[name].CopyFrom(to_tensor_proto(value))
    for name, value in (outputs or {}).items():
        log.predict_log.response.outputs[name].CopyFrom(to_tensor_proto(value))
    return log


def batch_of(*logs: Log, received_ns: int = 0, trace_id: bytes = b"") -> LoggedBatch:
    head = HEAD.pack(received_ns, 1_500_000, 3, trace_id, 1)
    frames = b"".join(encode_record(log.SerializeToString()) for log in logs)
    return LoggedBatch(1, len(logs), frames, head * len(logs))


class File:
    """A file that a test writes and reads."""

    def __init__(self, path: Path, files: ParquetFiles | None = None) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.writer = ParquetWriter(self._descriptor, files or ParquetFiles(FakeClock()))

    def rows(self) -> list[dict[str, Any]]:
        self.writer.finish()
        os.close(self._descriptor)
        rows: list[dict[str, Any]] = parquet.read_table(self.path).to_pylist()
        return rows


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "m.parquet")


def test_row_has_record_and_tensors(file: File):
    clock = FakeClock()
    log = log_of({"x": [[1.0, 2.0]]}, {"label": ["a", "b"]})
    assert file.writer.add(batch_of(log, received_ns=clock.now_ns(), trace_id=TRACE_ID))
    assert file.rows() == [
        {
            "model": "ctr",
            "version": 3,
            "signature": "serving_default",
            "time": datetime.fromtimestamp(clock.wall_ns() // NS_PER_SECOND, tz=timezone.utc),
            "latency_seconds": 0.0015,
            "trace_id": TRACE_ID.decode(),
            "input.x": [1.0, 2.0],
            "input.x.shape": [1, 2],
            "output.label": [b"a", b"b"],
            "output.label.shape": [2],
        }
    ]


def test_row_without_a_tensor_has_null(file: File):
    file.writer.add(batch_of(log_of({"x": 1.0}), log_of({"y": np.zeros((0, 3), np.int64)})))
    file.writer.add(batch_of(log_of({"z": True})))
    first, second, third = file.rows()
    assert (first["input.x"], first["input.y"], first["input.z"]) == ([1.0], None, None)
    assert (second["input.y"], second["input.y.shape"], second["input.x"]) == ([], [0, 3], None)
    assert (third["input.z"], third["input.z.shape"], third["trace_id"]) == ([True], [], None)


def test_new_column_after_a_row_group_needs_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet_file, "ROW_GROUP_BYTES", 1)
    files = ParquetFiles(FakeClock())
    first = File(tmp_path / "1", files)
    assert first.writer.add(batch_of(log_of({"x": 1.0})))
    assert not first.writer.add(batch_of(log_of({"y": 2.0})))
    second = File(tmp_path / "2", files)
    assert second.writer.add(batch_of(log_of({"y": 2.0})))
    assert second.writer.add(batch_of(log_of({"x": 1.0})))
    assert [row.get("input.y") for row in first.rows()] == [None]
    assert [(row["input.x"], row["input.y"]) for row in second.rows()] == [
        (None, [2.0]),
        ([1.0], None),
    ]


def test_other_dtype_has_a_column_of_its_own(file: File):
    file.writer.add(batch_of(log_of({"x": np.float32(1.5)}), log_of({"x": np.int64(2**60)})))
    first, second = file.rows()
    assert (first["input.x"], first["input.x.int64"]) == ([1.5], None)
    assert (second["input.x"], second["input.x.int64"]) == (None, [2**60])


def test_dtypes_of_one_type_share_a_column(file: File):
    small = np.array([2], ml_dtypes.bfloat16)
    file.writer.add(batch_of(log_of({"x": np.array([1], np.float32)}), log_of({"x": small})))
    assert [row["input.x"] for row in file.rows()] == [[1.0], [2.0]]


def test_tensor_named_like_a_shape_has_its_own_column(file: File):
    file.writer.add(batch_of(log_of({"x": [1.0], "x.shape": [2.0, 3.0], "x.shape_": [4.0]})))
    (row,) = file.rows()
    assert (row["input.x"], row["input.x.shape"]) == ([1.0], [1])
    assert (row["input.x.shape_"], row["input.x.shape_.shape"]) == ([2.0, 3.0], [2])
    assert (row["input.x.shape__"], row["input.x.shape__.shape"]) == ([4.0], [1])


def test_tensor_named_like_a_dtype_has_its_own_column(file: File):
    file.writer.add(batch_of(log_of({"x": np.float32(1)})))
    file.writer.add(batch_of(log_of({"x": np.int64(2), "x.int64": np.int64(3)})))
    row = file.rows()[1]
    assert (row["input.x.int64"], row["input.x.int64_"]) == ([2], [3])


# Each type of a column that a tensor may have.
COLUMN_VALUES = [
    *(np.zeros(1, dtype) for dtype in "bhilBHILefd?"),
    np.zeros(1, ml_dtypes.bfloat16),
    np.zeros(1, np.complex64),
    np.array([b"s"], object),
]


@pytest.mark.parametrize("value", COLUMN_VALUES, ids=lambda value: value.dtype.name)
def test_each_type_of_column_is_a_known_ending(file: File, value: Any):
    other = np.zeros(1, np.float64 if value.dtype != np.float64 else np.float32)
    file.writer.add(batch_of(log_of({"x": other}), log_of({"x": value})))
    (ending,) = [
        name.removeprefix("input.x")
        for name, values in file.rows()[1].items()
        if name.startswith("input.x") and not name.endswith(".shape") and values is not None
    ]
    assert parquet_file._unambiguous(f"y{ending}") == f"y{ending}_"


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        (np.array([1, 2], ml_dtypes.bfloat16), [1.0, 2.0]),
        (np.array([0.5], np.float16), [0.5]),
        (np.array([1 + 2j], np.complex64), [1.0, 2.0]),
        (np.array([255], np.uint8), [255]),
        (np.array([b"\xff\x00"], object), [b"\xff\x00"]),
    ],
)
def test_values_are_stored_as_parquet_has_them(file: File, values: Any, stored: list[Any]):
    file.writer.add(batch_of(log_of({"x": values})))
    assert file.rows()[0]["input.x"] == stored


def test_dtype_without_numpy_is_a_serialized_tensor(file: File):
    log = log_of({})
    log.predict_log.request.inputs["x"].dtype = types_pb2.DT_QINT8
    file.writer.add(batch_of(log))
    assert file.rows()[0]["input.x"] == [log.predict_log.request.inputs["x"].SerializeToString()]


ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["x", "y", "z"]),
        st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=50)
@given(st.lists(ROWS, min_size=1, max_size=3))
def test_any_rows_are_read_as_they_were_logged(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[dict[str, list[int]]]]
):
    file = File(tmp_path_factory.mktemp("rows") / "m")
    for rows in batches:
        logs = [log_of({k: np.array(v, np.int32) for k, v in row.items()}) for row in rows]
        assert file.writer.add(batch_of(*logs))
    read = [
        {name: row[f"input.{name}"] for name in "xyz" if row.get(f"input.{name}") is not None}
        for row in file.rows()
    ]
    assert read == [row for rows in batches for row in rows]


def test_full_disk_is_an_error_of_add_and_of_finish(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet_file, "ROW_GROUP_BYTES", 100_000)
    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = ParquetWriter(descriptor, ParquetFiles(FakeClock()))
    random = np.random.default_rng(0)
    assert writer.add(batch_of(log_of({"x": random.random(10_000)})))
    with pytest.raises(OSError, match="No space left"):
        writer.add(batch_of(log_of({"x": random.random(10_000)})))
    with pytest.raises(OSError, match="could not be written"):
        writer.finish()
    os.close(descriptor)


def test_rows_that_pyarrow_refuses_end_the_file(file: File, monkeypatch: pytest.MonkeyPatch):
    def concat_tables(tables: object, **options: object) -> None:
        raise pa.ArrowInvalid("no such table")

    assert file.writer.add(batch_of(log_of({"x": 1.0})))
    with monkeypatch.context() as patch:
        patch.setattr(parquet_file, "ROW_GROUP_BYTES", 1)
        assert file.writer.add(batch_of(log_of({"x": 2.0})))
        patch.setattr(pa, "concat_tables", concat_tables)
        with pytest.raises(pa.ArrowInvalid):
            file.writer.add(batch_of(log_of({"x": 3.0})))
    with pytest.raises(OSError, match="could not be written"):
        file.writer.finish()


def test_full_disk_at_the_end_is_an_error():
    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = ParquetWriter(descriptor, ParquetFiles(FakeClock()))
    assert writer.add(batch_of(log_of({"x": 1.0})))
    with pytest.raises(OSError, match="No space left"):
        writer.finish()
    os.close(descriptor)
