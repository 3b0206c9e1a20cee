"""A base: a SavedModel with its tables in a shard of their own, of which deltas are made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from millpond.checkpoint_index import (
    CheckpointIndex,
    StoredIdentity,
    entry_shape,
    read_index,
    stored_identity,
)
from millpond.delta.delta_writing import saved_beside
from millpond.delta.model_root import (
    Variable,
    add_changes,
    name_of,
    signatures_of,
    tracked_model,
    value_of,
)
from millpond.delta.object_graph import ObjectGraph, is_graph_of_base, read_object_graph
from millpond.version_files import GRAPH_FILE, PREFIX
from serving.base.errors import FailedPrecondition, InvalidArgument

TABLE_BYTES_MIN = 2**20
"""The smallest table that is found without being named: below that a delta saves nothing."""

_ROWS_PER_COLUMN_MIN = 4
"""The matrix of a dense layer has about as many rows as columns, and all its rows change in a step."""

# The numbers for which TensorFlow's ResourceScatterUpdate has a kernel, without those of quantized models.
TABLE_DTYPES = frozenset(
    {
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool),
        *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    }
)


@dataclass(frozen=True)
class Table:
    """A table of a base: `name` is for people, and `key`, `ids_key`, `rows_key` are in its checkpoint."""

    name: str
    key: str
    ids_key: str
    rows_key: str
    shape: tuple[int, int]
    dtype: tf.DType

    @property
    def row_bytes(self) -> int:
        size: int = self.shape[1] * self.dtype.size
        return size


@dataclass(frozen=True)
class Base:
    """A base as it was when it was written or opened.

    `identities` are those of the tables' bytes on disk, so that a base which is replaced later is noticed.
    """

    path: Path
    tables: tuple[Table, ...]
    identities: tuple[StoredIdentity, ...]


def export_base(
    model: Any,
    path: Path | str,
    *,
    signatures: Any = None,
    input_signature: Sequence[Any] | None = None,
    tables: Sequence[Variable] | None = None,
    table_bytes_min: int = TABLE_BYTES_MIN,
) -> Base:
    """Writes `model` as a SavedModel of which deltas can be made, and returns it.

    `model` is a Keras 3 model or a tf.Module. `signatures` are those of `tf.saved_model.save`; a Keras model
    without them gets "serve" and "serving_default", and a subclassed one needs `input_signature`. `tables` are
    the variables whose rows change a few at a time. Left out, they are all matrices of at least
    `table_bytes_min` bytes with four times as many rows as columns.

    Everything is written beside `path` and renamed. Raises FailedPrecondition if `path` exists,
    InvalidArgument if the model or a table cannot have deltas, another MillpondError if TensorFlow cannot
    write, and OSError.
    """
    path = Path(path)
    root = tracked_model(model)
    chosen = _tables(root, tables, table_bytes_min)
    add_changes(root, chosen)
    served = signatures_of(model, root, signatures, input_signature)
    with saved_beside(path) as partial:
        save_root(root, partial, served, chosen)
        _refuse_other_state(read_object_graph(partial), root)
    return open_base(path)


def open_base(path: Path | str) -> Base:
    """Reads what a base is, for example after a restart of the trainer.

    A delta version may be opened in its base's place, because it has the same tables. Raises
    FailedPrecondition if `path` is no base, DataLoss if it is damaged, and OSError.
    """
    path = Path(path)
    if not path.exists():
        raise FailedPrecondition(
            f"there is no {path}: if it was deleted, give a delta of it in its place, which has the same tables, or "
            "export a new base"
        )
    if not (path / GRAPH_FILE).is_file():
        raise FailedPrecondition(f"{path} is no SavedModel: it has no {GRAPH_FILE}")
    index = read_index(path / PREFIX)
    graph = read_object_graph(path, index)
    if not is_graph_of_base(graph):
        raise FailedPrecondition(f"{path} is no base: write one by millpond.delta.export_base")
    tables = tuple(_read_tables(graph, index))
    return Base(path, tables, tuple(stored_identity(index, table.key) for table in tables))


def _read_tables(graph: ObjectGraph, index: CheckpointIndex) -> list[Table]:
    parts = {name: graph.children(graph.child(name)) for name in ("tables", "ids", "rows")}
    names = Counter(graph.variable_name(node) for node in parts["tables"].values())
    found = []
    for number, node in sorted(parts["tables"].items(), key=lambda item: int(item[0])):
        key = graph.key(node)
        entry = index.entries[key]
        rows, columns = entry_shape(entry)
        name = graph.variable_name(node)
        table = Table(
            name if names[name] == 1 else key.partition("/.")[0].removeprefix("model/"),
            key,
            graph.key(parts["ids"][number]),
            graph.key(parts["rows"][number]),
            (rows, columns),
            tf.as_dtype(entry.dtype),
        )
        found.append(table)
    return found


def save_root(
    root: tf.Module, path: Path, signatures: Mapping[str, Any], tables: Sequence[Variable]
) -> None:
    """Saves all below `root`, with the tables in a shard of their own. Raises InvalidArgument and OSError."""
    handles = {id(value_of(table)) for table in tables}
    options = tf.saved_model.SaveOptions(experimental_sharding_callback=_TablesApart(handles))
    try:
        tf.saved_model.save(root, str(path), signatures=signatures, options=options)
    except (AssertionError, ValueError, TypeError) as error:
        # TensorFlow's errors for what a SavedModel cannot hold, such as a variable that nothing tracks.
        raise InvalidArgument(f"the model cannot be saved: {error}") from error


class _TablesApart(tf.train.experimental.ShardingCallback):  # type: ignore[misc]
    """Puts the tables into the first shard, and everything else into the second one."""

    def __init__(self, table_ids: set[int]) -> None:
        self._table_ids = frozenset(table_ids)

    @property
    def description(self) -> str:
        return "Tables of which deltas are made are in a shard of their own."

    def __call__(self, tensors: Sequence[Any]) -> Sequence[Any]:
        shards: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for item in tensors:
            is_table = id(value_of(item.trackable)) in self._table_ids
            shards[0 if is_table else 1].setdefault(item.checkpoint_key, {})[item.slice_spec] = (
                item.tensor
            )
        return [shard for shard in shards if shard]


def _tables(root: tf.Module, given: Sequence[Variable] | None, bytes_min: int) -> list[Variable]:
    """Each table once, as the model tracks it: if a Keras variable is tracked, its value is not.

    Raises InvalidArgument if there is none, or one that cannot have deltas.
    """
    tracked = {id(value_of(item)): item for item in tf.train.TrackableView(root).descendants()}
    if given is None:
        found = [item for item in tracked.values() if _is_found(value_of(item), bytes_min)]
        if not found:
            raise InvalidArgument(
                f"the model has no table of {bytes_min} bytes: name its tables=[…], or give table_bytes_min"
            )
        return found
    chosen = {id(value_of(item)): item for item in given}
    if not chosen:
        raise InvalidArgument("tables is empty: without tables there are no deltas")
    for key, item in chosen.items():
        if problem := _problem_of(value_of(item), is_tracked=key in tracked):
            raise InvalidArgument(f"{name_of(item)} cannot be a table: {problem}")
    return [tracked[key] for key in chosen]


def _is_found(item: Any, bytes_min: int) -> bool:
    if not isinstance(item, tf.Variable) or _problem_of(item, is_tracked=True):
        return False
    return is_large_table(item.shape.as_list(), item.dtype, bytes_min)


def is_large_table(shape: Sequence[int], dtype: tf.DType, bytes_min: int) -> bool:
    """True if a matrix is a table without being named."""
    rows, columns = shape
    is_tall = rows >= _ROWS_PER_COLUMN_MIN * columns
    return bool(is_tall and rows * columns * dtype.size >= bytes_min)


def _problem_of(variable: Any, *, is_tracked: bool) -> str:
    """Why the variable cannot be a table; "" if it can."""
    if not isinstance(variable, tf.Variable):
        return "it is no variable of TensorFlow"
    if isinstance(variable, tf.distribute.DistributedValues):
        return "it is spread over replicas: export on one replica, outside of the strategy's scope"
    if not is_tracked:
        return "the model does not track it"
    return _problem_of_rows(variable)


def _problem_of_rows(variable: tf.Variable) -> str:
    if variable._save_slice_info is not None:  # noqa: SLF001 (there is no public name for it)
        return "it is one part of a partitioned variable: its checkpoint has only slices"
    if variable.shape.rank != 2 or not variable.shape.is_fully_defined():
        return f"it has the shape {variable.shape}, and not rows and columns"
    if not math.prod(variable.shape):
        return "it is empty"
    return (
        ""
        if variable.dtype in TABLE_DTYPES
        else f"TensorFlow writes no rows of {variable.dtype.name}"
    )


def _refuse_other_state(graph: ObjectGraph, root: tf.Module) -> None:
    """Raises InvalidArgument if the checkpoint has values that are in no variable.

    A delta could not bring them up to date.
    """
    for key, item in graph.values(root).items():
        if not isinstance(value_of(item), tf.Variable):
            raise InvalidArgument(
                f"the model saves {key}, which is a {type(item).__name__} and no variable: a delta cannot "
                "bring it up to date"
            )
