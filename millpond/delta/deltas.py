"""Writes a delta version: links to a base's files, and a shard of what has changed since the base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from millpond.checkpoint_index import CheckpointIndex, entry_shape, read_index
from millpond.delta.bases import Base, Table, open_base
from millpond.delta.delta_writing import (
    Delta,
    own_bytes,
    saved_beside,
    write_checkpoint,
    write_fingerprint,
    written_delta,
)
from millpond.delta.model_root import Variable, name_of, tracked_model, value_of
from millpond.delta.object_graph import OBJECT_GRAPH_KEY, ObjectGraph, object_graph_bytes
from millpond.delta.row_changes import Ids, LiveRows, StoredRows, changed_rows, snapshot
from millpond.table_changes import CHANGED_RATIO_MAX, TableChange, check_changes, check_ratio
from millpond.version_files import (
    FINGERPRINT_FILE,
    PREFIX,
    VARIABLES,
    link_tree,
    refuse_target,
)
from serving.base.errors import FailedPrecondition, InvalidArgument

ChangedIds = Mapping[str, Any] | Iterable[tuple[Variable, Any]]
"""The ids of the rows that have changed since the base, of some tables, by their name or the variable.

Ids may repeat, and a table may be there several times, as if two features share it: all of its ids count.
"""


def export_delta(
    model: Any,
    base: Base | Path | str,
    path: Path | str,
    *,
    changed_ids: ChangedIds = (),
    verify: bool = False,
    changed_ratio_max: float = CHANGED_RATIO_MAX,
    copy: bool = False,
) -> Delta:
    """Writes `model` as a version that has only what has changed since `base`, and returns its figures.

    Each table is compared with the base, unless `changed_ids` has the ids of all its rows that changed since
    the base; with `verify` it is compared too. The rest of the model is written whole. With `copy` the
    base's files are copied if they cannot be linked.

    Raises FailedPrecondition if `path` exists or lies inside the base, `base` is not the one that it was, the
    model is not the one of the base, more than `changed_ratio_max` of all rows have changed, or no link can be
    made. Raises InvalidArgument for wrong arguments, DataLoss for a damaged base, another MillpondError if TensorFlow
    cannot write, and OSError. After an error nothing is left at `path` or beside it. Warns of a table with so
    many changed rows that a server reads it in full for later deltas.
    """
    path = Path(path)
    check_ratio(changed_ratio_max)
    found = _opened(base)
    refuse_target(path, found.path)
    index = read_index(found.path / PREFIX)
    graph_bytes = object_graph_bytes(found.path, index)
    model_values = _values_of_model(model, ObjectGraph(graph_bytes), found, index)
    changes = _changes(model_values, found, index, changed_ids, verify=verify)
    check_changes(changes, changed_ratio_max)
    tensors = _tensors(model_values, changes, found) | {OBJECT_GRAPH_KEY: tf.constant(graph_bytes)}
    with saved_beside(path) as partial:
        link_tree(found.path, partial, {VARIABLES, FINGERPRINT_FILE}, may_copy=copy)
        linked = {table.key: table.key for table in found.tables}
        write_checkpoint(index, linked, tensors, partial, may_copy=copy)
        write_fingerprint(found.path, partial)
        written_bytes = own_bytes(partial)
    return written_delta(path, changes, written_bytes)


def _opened(base: Base | Path | str) -> Base:
    """The base, read anew. Raises FailedPrecondition if it is not the one that it was."""
    if not isinstance(base, Base):
        return open_base(base)
    found = open_base(base.path)
    if found != base:
        raise FailedPrecondition(
            f"{base.path} is not the base that this was: it was replaced, and the delta would be wrong; "
            "open it again by millpond.delta.open_base, without ids of before"
        )
    return found


def _values_of_model(
    model: Any, graph: ObjectGraph, base: Base, index: CheckpointIndex
) -> Mapping[str, Any]:
    """The model's variables by the keys of the base.

    Raises FailedPrecondition if one is missing, or has another shape or dtype than in the base.
    """
    values = {key: value_of(item) for key, item in graph.values(tracked_model(model)).items()}
    own = {key for table in base.tables for key in (table.ids_key, table.rows_key)}
    for key in sorted(index.entries.keys() - own - {OBJECT_GRAPH_KEY}):
        if key not in values:
            raise FailedPrecondition(
                f"the model has no {key}, which the base has: export a new base"
            )
        _refuse_other_kind(values[key], key, index.entries[key])
    return values


def _refuse_other_kind(variable: Any, key: str, entry: Any) -> None:
    shape = tf.TensorShape(entry_shape(entry))
    if variable.dtype != entry.dtype or not variable.shape.is_compatible_with(shape):
        raise FailedPrecondition(
            f"{key} is {variable.dtype.name}{variable.shape}, and {tf.as_dtype(entry.dtype).name}{shape} in "
            "the base: export a new base"
        )
    if entry.slices:
        raise FailedPrecondition(f"{key} is stored in slices: a delta needs whole variables")


def _changes(
    values: Mapping[str, Any],
    base: Base,
    index: CheckpointIndex,
    given: ChangedIds,
    *,
    verify: bool,
) -> list[TableChange]:
    """The rows that a delta has, of each table."""
    named = _named_ids(given, values, base)
    found = []
    for table in base.tables:
        ids = named.get(table.name)
        if ids is None or verify:
            differing = _compared(LiveRows(values[table.key]), table, index)
            if ids is not None and (left_out := np.setdiff1d(differing, ids)).size:
                raise InvalidArgument(
                    f"{table.name}: {left_out.size} rows have changed that changed_ids leaves out, "
                    f"the first one is {left_out[0]}"
                )
            ids = differing if ids is None else ids
        found.append(TableChange(table.name, table.shape[0], table.row_bytes, ids))
    return found


def _compared(rows: LiveRows, table: Table, index: CheckpointIndex) -> Ids:
    entry = index.entries[table.key]
    shard = index.shard(entry.shard_id)
    with closing(StoredRows(shard, entry, table.shape, table.row_bytes)) as stored:
        return changed_rows(stored, rows)


def _named_ids(given: ChangedIds, values: Mapping[str, Any], base: Base) -> Mapping[str, Ids]:
    """The given ids by the tables' names. Raises InvalidArgument."""
    tables = {table.name: table for table in base.tables}
    names = {id(values[table.key]): name for name, table in tables.items()}
    pairs = given.items() if isinstance(given, Mapping) else given
    found: dict[str, Ids] = {}
    for which, ids in pairs:
        name = which if isinstance(which, str) else names.get(id(value_of(which)))
        if name not in tables:
            text = which if isinstance(which, str) else name_of(which)
            raise InvalidArgument(f"{text} is no table of the base: {', '.join(tables)}")
        checked = _checked_ids(np.asarray(ids), tables[name])
        found[name] = np.union1d(found.get(name, checked), checked)
    return found


def _checked_ids(ids: NDArray[Any], table: Table) -> Ids:
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InvalidArgument(f"{table.name}: its changed ids must be a list of whole numbers")
    if ids.size and (ids.min() < 0 or ids.max() >= table.shape[0]):
        wrong = ids[(ids < 0) | (ids >= table.shape[0])][0]
        raise InvalidArgument(f"{table.name}: there is no row {wrong} of {table.shape[0]}")
    return ids.astype(np.int64)


def _tensors(
    values: Mapping[str, Any], changes: Sequence[TableChange], base: Base
) -> dict[str, Any]:
    """The contents of the delta's own shard, by key."""
    tables = {table.key for table in base.tables}
    found = {key: snapshot(item) for key, item in values.items() if key not in tables}
    for table, change in zip(base.tables, changes, strict=True):
        found[table.ids_key] = tf.constant(change.ids, tf.int64)
        found[table.rows_key] = tf.gather(snapshot(values[table.key]), found[table.ids_key])
    return found
