"""TFRecord files: the framing of `assets.extra/tf_serving_warmup_requests`.

A record is its length (uint64, little endian), the masked crc32c of those eight bytes, the data,
and the masked crc32c of the data. Both checksums are checked on reading.
"""

import io
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from serving.base.directory_files import opened_directory, replace_file
from serving.base.errors import DataLoss

RECORD_BYTES_MAX = 2**28
"""The longest record that is read. It is in memory several times while it is replayed."""

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_PARQUET = b"PAR1"
# TFRecord stores checksums rotated and shifted by this, because the crc of data that contains a crc is
# weak.
_MASK_DELTA = 0xA282EAD8


def read_records(path: Path) -> Iterator[bytes]:
    """Yields the data of each record in order, one in memory at a time.

    When the iteration reaches a record that is cut short or has a wrong checksum, raises DataLoss
    with the file and the byte offset. Raises OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        yield from _records(file, os.fstat(file.fileno()).st_size, path)


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Writes a TFRecord file, replacing an existing one. Raises OSError.

    The file is written under another name and renamed once it is on the disk. A server that reads
    meanwhile, or a machine that fails, finds the old file or the new one.
    """
    try:
        with opened_directory(path.parent) as directory:
            write_records_at(directory, path.name, records)
    except OSError as error:
        if error.errno is None:
            raise
        # The message names the file itself, and not the temporary name.
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_records_at(
    directory: int, name: str, records: Iterable[bytes], mode: int = 0o666
) -> None:
    """Writes as `write_records`, into an opened directory; the process's umask applies to
    `mode`.
    """
    replace_file(directory, name, map(encode_record, records), mode)


def encode_record(record: bytes) -> bytes:
    """Encodes one record in its framing; a file is the concatenation of its records."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            _FOOTER.pack(_masked_crc32c(length)),
            record,
            _FOOTER.pack(_masked_crc32c(record)),
        )
    )


def decode_records(data: bytes, source: object) -> Iterator[bytes]:
    """Yields records as `read_records` does, from a file's bytes; messages name `source`."""
    return _records(io.BytesIO(data), len(data), source)


def _records(file: BinaryIO, size_bytes: int, path: object) -> Iterator[bytes]:
    while (offset := file.tell()) < size_bytes:
        yield _read_record(file, offset, size_bytes, path)


def _read_record(file: BinaryIO, offset: int, size_bytes: int, path: object) -> bytes:
    """Reads the record that starts at `offset`, the current position of `file`."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise DataLoss(f"{path}: record header at byte {offset} is cut short; copy the file again")
    if offset == 0 and header.startswith(_PARQUET):
        raise DataLoss(
            f"{path} is a Parquet file, and only TFRecord files are read: log with the type tfrecord"
        )
    length_bytes, length_crc32c = _HEADER.unpack(header)
    if _masked_crc32c(header[:8]) != length_crc32c:
        raise DataLoss(
            f"{path}: checksum of the record length at byte {offset} differs; "
            "the file is damaged or not a TFRecord file; copy or write it again"
        )
    # Checked before reading, so that a damaged length allocates nothing.
    if offset + _HEADER.size + length_bytes + _FOOTER.size > size_bytes:
        raise DataLoss(
            f"{path}: record at byte {offset} of {length_bytes} bytes is cut short at the file's "
            f"end, byte {size_bytes}; copy the file again"
        )
    if length_bytes > RECORD_BYTES_MAX:
        raise DataLoss(
            f"{path}: record at byte {offset} has {length_bytes} bytes, and at most "
            f"{RECORD_BYTES_MAX} are read of one; write it with a smaller request"
        )
    record = file.read(length_bytes)
    (record_crc32c,) = _FOOTER.unpack(file.read(_FOOTER.size))
    if _masked_crc32c(record) != record_crc32c:
        raise DataLoss(
            f"{path}: checksum of the record at byte {offset} differs; copy the file again"
        )
    return record


def _masked_crc32c(data: bytes) -> int:
    crc32c: int = google_crc32c.value(data)
    return ((crc32c >> 15 | crc32c << 17) + _MASK_DELTA) & 0xFFFFFFFF
