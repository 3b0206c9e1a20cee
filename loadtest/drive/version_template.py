"""Versions of the trained model with a few rows, of which `PlainTables` makes versions of any size.

    python -m loadtest.drive.version_template DIRECTORY

It needs TensorFlow, and the machine that makes versions of it does not.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from loadtest.drive.trained_model import DELTA, FULL, TrainedTables
from loadtest.plan.row_values import RowValues
from millpond.checkpoint_index import read_index
from millpond.version_files import GRAPH_FILE, PREFIX, VARIABLES
from serving.base.protos import saved_model_pb2, tensor_shape_pb2

# A prime that nothing else in the graph counts.
_ROW_COUNT = 997
_POOL_COUNT = 9
_TABLES = "tables/"


@dataclass(frozen=True)
class StoredValue:
    """The bytes of a variable in a checkpoint, and its entry in the index."""

    entry: Any
    contents: bytes


class VersionTemplate:
    """One kind of version: its graph and its variables but for the tables."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and DataLoss if the template is damaged."""
        graph = (path / GRAPH_FILE).read_bytes()
        self._graph = saved_model_pb2.SavedModel.FromString(graph)
        index = read_index(path / PREFIX)
        shards = [index.shard(number).read_bytes() for number in range(index.shard_count)]
        self.table_entries: Mapping[str, Any] = {
            key: entry for key, entry in index.entries.items() if _is_table(key)
        }
        self.values: Mapping[str, StoredValue] = {
            key: StoredValue(entry, _contents(shards[entry.shard_id], entry))
            for key, entry in index.entries.items()
            if not _is_table(key)
        }

    def graph_of(self, row_count: int) -> bytes:
        """The SavedModel's graph for tables of `row_count` rows."""
        graph = saved_model_pb2.SavedModel()
        graph.CopyFrom(self._graph)
        for shape in _shapes_in(graph):
            for dimension in shape.dim:
                if dimension.size == _ROW_COUNT:
                    dimension.size = row_count
        return bytes(graph.SerializeToString(deterministic=True))


def write_templates(directory: Path) -> None:
    """Writes a base of deltas and a version as any trainer writes it. Imports TensorFlow."""
    values = RowValues(_ROW_COUNT, _POOL_COUNT, _POOL_COUNT, seed=0, is_sparse=True)
    with tempfile.TemporaryDirectory(prefix="millpond-template-") as work:
        tables = TrainedTables(Path(work), values)
        tables.publish_base()
        tables.publish(tables.export_whole(2))
        for name, version in ((DELTA, "1"), (FULL, "2")):
            _copy(tables.base_path / version, directory / name)


def _copy(version: Path, target: Path) -> None:
    (target / VARIABLES).mkdir(parents=True)
    (target / GRAPH_FILE).write_bytes((version / GRAPH_FILE).read_bytes())
    for path in (version / VARIABLES).iterdir():
        (target / VARIABLES / path.name).write_bytes(path.read_bytes())


def _is_table(key: str) -> bool:
    return key.startswith(_TABLES)


def _contents(shard: bytes, entry: Any) -> bytes:
    return shard[entry.offset : entry.offset + entry.size]


def _shapes_in(message: Message) -> Iterator[Any]:
    """Yields each TensorShapeProto in `message`, at any depth."""
    if isinstance(message, tensor_shape_pb2.TensorShapeProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            values = [item for item in value.values() if isinstance(item, Message)]
        else:
            values = value if field.is_repeated else [value]
        for item in values:
            yield from _shapes_in(item)


if __name__ == "__main__":
    write_templates(Path(sys.argv[1]))
