import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.base.errors import DataLoss
from warmup.records import decode_records, encode_record, read_records, write_records

# Written like tf.io.TFRecordWriter writes [b"a", b""]: the reference for the framing and both
# checksums.
REFERENCE_HEX = "01000000000000000175de4161786ee428000000000000000029039807d8ea82a2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records"


def damaged(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_parquet_log_has_an_error_of_its_own(path: Path):
    path.write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(DataLoss, match="is a Parquet file, and only TFRecord files are read"):
        list(read_records(path))


def test_write_records_frames_as_tensorflow_does(path: Path):
    write_records(path, [b"a", b""])
    assert path.read_bytes().hex() == REFERENCE_HEX


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=5))
def test_records_round_trip(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]):
    path = tmp_path_factory.getbasetemp() / "records"
    write_records(path, records)
    assert list(read_records(path)) == records


def test_read_records_of_empty_file_yields_none(path: Path):
    path.touch()
    assert list(read_records(path)) == []


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (0, "checksum of the record length at byte 0"),
        (8, "checksum of the record length at byte 0"),
        (12, "checksum of the record at byte 0"),
        (15, "checksum of the record at byte 0"),
        (19, "checksum of the record length at byte 19"),
        (31, "checksum of the record at byte 19"),
    ],
)
def test_damaged_byte_raises_data_loss_with_offset(path: Path, offset: int, message: str):
    write_records(path, [b"abc", b"def"])
    damaged(path, offset)
    with pytest.raises(DataLoss, match=f"{re.escape(str(path))}.*{message}"):
        list(read_records(path))


@pytest.mark.parametrize("size", range(1, 19))
def test_read_records_file_cut_short_raises_data_loss(path: Path, size: int):
    write_records(path, [b"abc"])
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataLoss, match=r"at byte 0 .*cut short"):
        list(read_records(path))


def test_records_before_damage_are_read(path: Path):
    write_records(path, [b"abc", b"def"])
    damaged(path, 31)
    assert next(read_records(path)) == b"abc"


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=5))
def test_decode_records_of_encoded_ones_round_trips(records: list[bytes]):
    data = b"".join(encode_record(record) for record in records)
    assert list(decode_records(data, "reply")) == records


def test_damaged_bytes_raise_data_loss_with_source():
    with pytest.raises(DataLoss, match=r"the reply: record at byte 0 .*cut short"):
        list(decode_records(encode_record(b"abc")[:-1], "the reply"))


def test_write_records_names_the_unwritable_file(
    tmp_path: Path,
):
    path = tmp_path / "none" / "records"
    with pytest.raises(FileNotFoundError) as raised:
        write_records(path, [])
    assert raised.value.filename == str(path)


def test_failed_write_keeps_old_file(path: Path):
    def failing() -> Iterator[bytes]:
        yield b"new"
        raise OSError("the disk is full")

    write_records(path, [b"old"])
    with pytest.raises(OSError, match="full"):
        write_records(path, failing())
    assert list(read_records(path)) == [b"old"]
    assert list(path.parent.iterdir()) == [path]
