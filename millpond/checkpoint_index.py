"""Reads and writes the index of a checkpoint: the place of each variable's bytes.

It is a table file of LevelDB without compression: blocks of sorted keys, each with a checksum. The first
key is empty and has the header; each other one is a variable's, with a `BundleEntryProto`. TensorFlow
itself shows neither a variable's shard nor its place there, and writes no index without the data.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from serving.base.errors import DataLoss
from serving.base.protos import tensor_bundle_pb2

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
# After each block: a byte for its compression, and its masked CRC32C.
_TRAILER_BYTES = 5
_UNCOMPRESSED = 0
_MASK_DELTA = 0xA282EAD8

# The indexes of slices stand under keys of bytes that begin so; a sliced variable is refused by its entry.
_SLICE_KEY_START = b"\0"

Entry = Any
"""A `BundleEntryProto`: dtype, shape, shard_id, offset, size, crc32c, slices."""


@dataclass(frozen=True)
class CheckpointIndex:
    """The entries of the checkpoint at `prefix`, by key, in `shard_count` files."""

    prefix: Path
    shard_count: int
    entries: Mapping[str, Entry]

    def shard(self, number: int) -> Path:
        return shard_path(self.prefix, number, self.shard_count)


def shard_path(prefix: Path, number: int, count: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{count:05d}")


def index_path(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def read_index(prefix: Path) -> CheckpointIndex:
    """Reads the index of the checkpoint at `prefix`.

    Raises OSError, and DataLoss if it is damaged or is none.
    """
    path = index_path(prefix)
    try:
        rows = dict(_rows(path.read_bytes()))
        header = tensor_bundle_pb2.BundleHeaderProto.FromString(rows.pop(b""))
        entries = {
            key.decode(): tensor_bundle_pb2.BundleEntryProto.FromString(value)
            for key, value in rows.items()
            if not key.startswith(_SLICE_KEY_START)
        }
    except OSError:
        raise
    except Exception as error:
        # Each part of a damaged file fails with an error of its own kind.
        raise DataLoss(f"{path}: it is no index of a checkpoint ({error})") from error
    return CheckpointIndex(prefix, header.num_shards, entries)


def write_index(prefix: Path, shard_count: int, entries: Mapping[str, Entry]) -> None:
    """Writes the index of a checkpoint at `prefix`, whose shards lie there already. Raises OSError."""
    header = tensor_bundle_pb2.BundleHeaderProto(num_shards=shard_count)
    header.version.producer = 1
    rows = {b"": header.SerializeToString()}
    rows |= {key.encode(): entry.SerializeToString() for key, entry in entries.items()}
    last_key = max(rows)
    with index_path(prefix).open("xb") as file:
        data = _write_block(file, rows)
        meta = _write_block(file, {})
        index = _write_block(file, {last_key: data})
        footer = meta + index
        file.write(footer.ljust(_FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", _MAGIC))


def _rows(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields each key with its value, in the order of the keys."""
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("the end is not that of a table file")
    _, _, after_meta = _handle(footer, 0)
    for _, handle in _block_rows(_block(data, footer, after_meta)):
        yield from _block_rows(_block(data, handle, 0))


def _block(data: bytes, handle: bytes, place: int) -> bytes:
    """The block that the handle at `place` points to. Raises ValueError if its checksum is wrong."""
    offset, size, _ = _handle(handle, place)
    block = data[offset : offset + size]
    trailer = data[offset + size : offset + size + _TRAILER_BYTES]
    if trailer[0] != _UNCOMPRESSED:
        raise ValueError("a block is compressed")
    if struct.unpack("<I", trailer[1:])[0] != masked(google_crc32c.value(block + trailer[:1])):
        raise ValueError("the checksum of a block is wrong")
    return block


def _block_rows(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (restart_count,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (restart_count + 1)
    key, place = b"", 0
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        size, place = _varint(block, place)
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + size]
        place += size


def _write_block(file: Any, rows: Mapping[bytes, bytes]) -> bytes:
    """Writes a block in which no key shares its start with the one before, and returns its handle."""
    block, restarts = bytearray(), []
    for key, value in sorted(rows.items()):
        restarts.append(len(block))
        block += _varint_bytes(0) + _varint_bytes(len(key)) + _varint_bytes(len(value))
        block += key + value
    restarts = restarts or [0]
    block += struct.pack(f"<{len(restarts)}I", *restarts) + struct.pack("<I", len(restarts))
    offset = file.tell()
    contents = bytes(block) + bytes([_UNCOMPRESSED])
    file.write(contents + struct.pack("<I", masked(google_crc32c.value(contents))))
    return _varint_bytes(offset) + _varint_bytes(len(block))


def _handle(data: bytes, place: int) -> tuple[int, int, int]:
    """The offset and the size of a block, and where their bytes end."""
    offset, place = _varint(data, place)
    size, place = _varint(data, place)
    return offset, size, place


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place


def _varint_bytes(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def masked(crc32c: int) -> int:
    """A checksum as checkpoints store it."""
    return ((crc32c >> 15 | crc32c << 17) + _MASK_DELTA) & 0xFFFFFFFF


@dataclass(frozen=True)
class StoredIdentity:
    """Equal for two variables whose bytes are the same ones on disk.

    A server shares such a variable between two versions. `entry` has offset, size and CRC32C of the bytes,
    dtype and shape.
    """

    device: int
    inode: int
    shard_bytes: int
    modified_ns: int
    entry: tuple[int, int, int, int, tuple[int, ...]]


def stored_identity(index: CheckpointIndex, key: str) -> StoredIdentity:
    """The identity of the variable under `key`. Raises OSError."""
    entry = index.entries[key]
    status = os.stat(index.shard(entry.shard_id))
    place = (entry.offset, entry.size, entry.crc32c, entry.dtype, entry_shape(entry))
    return StoredIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, place)


def entry_shape(entry: Entry) -> tuple[int, ...]:
    return tuple(dim.size for dim in entry.shape.dim)
