"""Writes the checkpoint and the fingerprint of a delta version."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from millpond.checkpoint_index import CheckpointIndex, index_path, shard_path, write_index
from millpond.delta.saved_files import read_fingerprint
from millpond.table_changes import TableChange
from millpond.version_files import FINGERPRINT_FILE, PREFIX, link_file, written_beside
from serving.base.errors import from_status


@dataclass(frozen=True)
class Delta:
    """A delta version that was written: how many rows it changes, and the bytes that are its own."""

    path: Path
    changed_rows: Mapping[str, int]
    row_count: int
    written_bytes: int

    @property
    def changed_ratio(self) -> float:
        return sum(self.changed_rows.values()) / self.row_count


@contextmanager
def saved_beside(path: Path) -> Iterator[Path]:
    """As `written_beside`. Raises errors of TensorFlow, such as for a full disk, as MillpondError."""
    with written_beside(path) as partial, errors_of_tensorflow(path):
        yield partial


@contextmanager
def errors_of_tensorflow(path: Path) -> Iterator[None]:
    """Raises errors of TensorFlow as MillpondError, with the path that they are about."""
    try:
        yield
    except tf.errors.OpError as error:
        raise from_status(error.error_code, f"{path}: {error.message}") from error


def written_delta(path: Path, changes: Sequence[TableChange], written_bytes: int) -> Delta:
    counts = {item.name: len(item.ids) for item in changes}
    return Delta(path, counts, sum(item.row_count for item in changes), written_bytes)


def write_checkpoint(
    index: CheckpointIndex,
    linked: Mapping[str, str],
    tensors: Mapping[str, Any],
    version: Path,
    *,
    may_copy: bool,
) -> None:
    """Writes the checkpoint of `version`: `tensors`, and variables in links to the shards of `index`.

    `linked` has the keys that these variables get, and those that they have in `index`.

    Each part is a checkpoint of its own until TensorFlow merges them: it renames the shards and writes one
    index of all.
    """
    prefix = version / PREFIX
    parts = [prefix.parent / name / "part" for name in ("linked", "own")]
    for part in parts:
        part.parent.mkdir(parents=True)
    _link_part(index, linked, parts[0], may_copy=may_copy)
    tf.raw_ops.SaveV2(
        prefix=str(parts[1]),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(part) for part in parts], destination_prefix=str(prefix)
    )
    for part in parts:
        shutil.rmtree(part.parent, ignore_errors=True)


def _link_part(
    index: CheckpointIndex, linked: Mapping[str, str], part: Path, *, may_copy: bool
) -> None:
    shards = sorted({index.entries[key].shard_id for key in linked.values()})
    entries = {}
    for new_key, key in linked.items():
        entry = type(index.entries[key]).FromString(index.entries[key].SerializeToString())
        entry.shard_id = shards.index(entry.shard_id)
        entries[new_key] = entry
    for number, shard in enumerate(shards):
        target = shard_path(part, number, len(shards))
        link_file(index.shard(shard), target, may_copy=may_copy)
    write_index(part, len(shards), entries)


def write_fingerprint(base: Path, version: Path) -> None:
    """Writes the base's fingerprint with the hash of this checkpoint, and an id of its own.

    Raises OSError, and DataLoss if the base's is damaged.
    """
    source = base / FINGERPRINT_FILE
    if not source.is_file():
        return
    fingerprint = read_fingerprint(base)
    contents = np.frombuffer(index_path(version / PREFIX).read_bytes(), np.uint8)
    hashed = tf.fingerprint(contents[np.newaxis]).numpy()
    fingerprint.checkpoint_hash = int.from_bytes(hashed.tobytes(), "little")
    fingerprint.uuid = str(uuid.uuid4().int)
    (version / FINGERPRINT_FILE).write_bytes(fingerprint.SerializeToString())


def own_bytes(version: Path) -> int:
    """The bytes of the files that are not links to another version's."""
    files = [path.stat() for path in version.rglob("*") if path.is_file()]
    return sum(status.st_size for status in files if status.st_nlink == 1)
