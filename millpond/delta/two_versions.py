"""Makes a delta version of two ordinary versions of a model.

The graph of an ordinary version has nothing that writes rows, so the delta's graph is the old version's, loaded
and saved again by TensorFlow with that part added. No variable is read for it: they stay uninitialized, and
TensorFlow writes no values of such ones. The tables are then linked straight from the old version's file, so no
base is needed on disk, and a server that has the old version has the tables.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from millpond.checkpoint_index import (
    CheckpointIndex,
    entry_shape,
    read_index,
    stored_identity,
)
from millpond.delta.bases import (
    TABLE_BYTES_MIN,
    TABLE_DTYPES,
    is_large_table,
    open_base,
    save_root,
)
from millpond.delta.delta_writing import (
    Delta,
    errors_of_tensorflow,
    own_bytes,
    saved_beside,
    write_checkpoint,
    write_fingerprint,
    written_delta,
)
from millpond.delta.graph_digest import graph_digest
from millpond.delta.model_root import add_changes, put_below
from millpond.delta.object_graph import (
    OBJECT_GRAPH_KEY,
    ObjectGraph,
    is_graph_of_base,
    object_graph_bytes,
    read_object_graph,
    read_tensors,
)
from millpond.delta.row_changes import Ids, PatchedRows, StoredRows, changed_rows
from millpond.table_changes import CHANGED_RATIO_MAX, TableChange, check_changes, check_ratio
from millpond.version_files import (
    FINGERPRINT_FILE,
    GRAPH_FILE,
    PREFIX,
    VARIABLES,
    link_tree,
    locked_directory,
    refuse_target,
)
from serving.base.errors import FailedPrecondition, InvalidArgument

_EXTRAS = "assets.extra"
_ASSETS = "assets"


@dataclass(frozen=True)
class _Version:
    """A version on disk, as far as its checkpoint says what it is.

    If its index has the keys of another version, `own_keys` has the keys of its checkpoint by those.
    """

    path: Path
    index: CheckpointIndex
    graph: ObjectGraph
    own_keys: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> _Version:
        """Raises FailedPrecondition, DataLoss and OSError."""
        if not (path / GRAPH_FILE).is_file():
            raise FailedPrecondition(f"{path} is no SavedModel: it has no {GRAPH_FILE}")
        index = read_index(path / PREFIX)
        return cls(path, index, read_object_graph(path, index))

    def tensors(self, keys: Iterable[str]) -> Mapping[str, Any]:
        """Reads values by key. Raises DataLoss."""
        own = {key: self.own_keys.get(key, key) for key in keys}
        values = read_tensors(self.path, own.values())
        return {key: values[mine] for key, mine in own.items()}

    def rows(self, table: _StoredTable) -> StoredRows:
        entry = self.index.entries[table.key]
        shard = self.index.shard(entry.shard_id)
        return StoredRows(shard, entry, table.shape, table.row_bytes)


@dataclass(frozen=True)
class _StoredTable:
    """A table, and if the versions have bases, the keys of its changed rows in them."""

    name: str
    key: str
    shape: tuple[int, int]
    dtype: tf.DType
    ids_key: str = ""
    rows_key: str = ""

    @property
    def row_bytes(self) -> int:
        return self.shape[1] * int(self.dtype.size)

    def change(self, ids: Ids) -> TableChange:
        return TableChange(self.name, self.shape[0], self.row_bytes, ids)


@dataclass(frozen=True)
class _DeltaGraph:
    """The keys of the delta: `keys` by those of the old version, and two for each table."""

    keys: Mapping[str, str]
    ids_keys: Sequence[str]
    rows_keys: Sequence[str]
    object_graph: bytes


def delta_of_versions(
    old: Path | str,
    new: Path | str,
    path: Path | str,
    *,
    table_names: Collection[str] = (),
    table_bytes_min: int = TABLE_BYTES_MIN,
    changed_ratio_max: float = CHANGED_RATIO_MAX,
    copy: bool = False,
) -> Delta:
    """Writes a version that answers as `new`, with the tables of `old` and the rows that differ.

    If `old` is a base or one of its deltas, the delta is of that base. Else the tables are those named like
    "model/table", or the large ones, as `export_base` chooses them. `new` may be an ordinary version if `old` is
    one, or is a delta that this function has made of ordinary versions.

    Raises FailedPrecondition if `path` exists or lies inside one of the two, they have different graphs, assets
    or variables, more than `changed_ratio_max` of the rows differ, or no link can be made; InvalidArgument if
    there is no such table; DataLoss for a damaged version; and OSError. After an error nothing is left. Warns as
    `export_delta` does.
    """
    old, new, path = Path(old), Path(new), Path(path)
    check_ratio(changed_ratio_max)
    refuse_target(path, old, new)
    versions = _read_alike(old, new, path)
    _refuse_other_variables(*versions)
    tables = _tables(versions[0], table_names, table_bytes_min)
    with ExitStack() as stack:
        rows = [_new_rows(versions[1], table, stack) for table in tables]
        changes = [_change(*versions, *pair) for pair in zip(tables, rows, strict=True)]
        check_changes(changes, changed_ratio_max)
        with saved_beside(path) as partial:
            graph = _write_graph(versions[0], tables, partial, may_copy=copy)
            tensors = _tensors(versions[1], tables, graph)
            for number, (table, change) in enumerate(zip(tables, changes, strict=True)):
                tensors[graph.ids_keys[number]] = tf.constant(change.ids, tf.int64)
                contents = rows[number].rows_of(change.ids).view(table.dtype.as_numpy_dtype)
                tensors[graph.rows_keys[number]] = tf.constant(contents, table.dtype)
            linked = {graph.keys[table.key]: table.key for table in tables}
            write_checkpoint(versions[0].index, linked, tensors, partial, may_copy=copy)
            write_fingerprint(partial, partial)
            _link_extras(versions[1].path, partial, may_copy=copy)
            written_bytes = own_bytes(partial)
    return written_delta(path, changes, written_bytes)


def _read_alike(old_path: Path, new_path: Path, path: Path) -> tuple[_Version, _Version]:
    """Reads two versions, by the keys of the old one, for a delta at `path`.

    Raises FailedPrecondition if their graphs differ.
    """
    old, new = _Version.read(old_path), _Version.read(new_path)
    if is_graph_of_base(old.graph) and not is_graph_of_base(new.graph):
        found = _by_keys_of(old, new, path)
    else:
        found = new if graph_digest(old_path) == graph_digest(new_path) else None
    if found is None:
        raise FailedPrecondition(
            f"{old_path} and {new_path} have different graphs: a delta has the graph of the old one, and only "
            "other values of variables"
        )
    return old, found


def _by_keys_of(old: _Version, new: _Version, path: Path) -> _Version | None:
    """An ordinary version by the keys of a delta of ordinary versions; None if the graphs differ.

    The graph of such a delta is that of an ordinary version with a part that writes rows. So the new version's graph
    gets one too, beside `path`, and is compared then.
    """
    if "model" not in old.graph.children(old.graph.root):
        return None
    keys = new.graph.same_values(old.graph, old.graph.child("model"))
    own_keys = {theirs: mine for mine, theirs in keys.items()}
    tables = [replace(table, key=own_keys.get(table.key, "")) for table in _tables(old, (), 0)]
    if not all(table.key for table in tables):
        return None
    with errors_of_tensorflow(new.path), locked_directory(path) as folder:
        extended = folder / "version"
        _write_extended_graph(new, tables, extended)
        if graph_digest(extended) != graph_digest(old.path):
            return None
    entries = {keys.get(key, key): entry for key, entry in new.index.entries.items()}
    return replace(new, index=replace(new.index, entries=entries), own_keys=own_keys)


def _refuse_other_variables(old: _Version, new: _Version) -> None:
    """Raises FailedPrecondition if the versions of a graph differ in more than the values of variables."""
    if different := _different_assets(old.path / _ASSETS, new.path / _ASSETS):
        raise FailedPrecondition(
            f"the asset {different[0]} differs: a delta has those of {old.path}"
        )
    kinds = [
        {key: _kind(item) for key, item in version.index.entries.items()} for version in (old, new)
    ]
    own = _keys_of_changes(old)
    for key in sorted(kinds[0].keys() | kinds[1].keys() - own):
        was, now = (kind.get(key, "absent") for kind in kinds)
        if was != now and key not in own:
            raise FailedPrecondition(f"{key} is {was} in {old.path}, and {now} in {new.path}")


def _different_assets(old: Path, new: Path) -> Sequence[str]:
    names = {
        str(path.relative_to(folder))
        for folder in (old, new)
        for path in folder.rglob("*")
        if path.is_file()
    }
    _, different, unreadable = filecmp.cmpfiles(old, new, sorted(names), shallow=False)
    return different + unreadable


def _kind(entry: Any) -> str:
    slices = " in slices" if entry.slices else ""
    return f"{tf.as_dtype(entry.dtype).name}{list(entry_shape(entry))}{slices}"


def _keys_of_changes(version: _Version) -> set[str]:
    if not is_graph_of_base(version.graph):
        return set()
    tables = open_base(version.path).tables
    return {key for table in tables for key in (table.ids_key, table.rows_key)}


def _tables(old: _Version, names: Collection[str], bytes_min: int) -> Sequence[_StoredTable]:
    """Raises InvalidArgument if there is no table, or not one of a name."""
    if is_graph_of_base(old.graph):
        if names:
            raise InvalidArgument(
                f"{old.path} is a base: its tables are those that it was made with"
            )
        return [
            _StoredTable(item.name, item.key, item.shape, item.dtype, item.ids_key, item.rows_key)
            for item in open_base(old.path).tables
        ]
    matrices = {item.name: item for item in _matrices(old.index)}
    if unknown := sorted(set(names) - matrices.keys()):
        raise InvalidArgument(f"{unknown[0]} is no table: there are {', '.join(sorted(matrices))}")
    found = [
        item
        for name, item in sorted(matrices.items())
        if (name in names if names else is_large_table(item.shape, item.dtype, bytes_min))
    ]
    if not found:
        raise InvalidArgument(f"{old.path} has no table of {bytes_min} bytes: name its tables")
    return found


def _matrices(index: CheckpointIndex) -> Iterator[_StoredTable]:
    for key, entry in index.entries.items():
        shape, dtype = entry_shape(entry), tf.as_dtype(entry.dtype)
        if len(shape) == 2 and 0 not in shape and dtype in TABLE_DTYPES and not entry.slices:
            yield _StoredTable(key.partition("/.")[0], key, (shape[0], shape[1]), dtype)


def _new_rows(new: _Version, table: _StoredTable, stack: ExitStack) -> StoredRows | PatchedRows:
    """The rows of the new version, with its own changes if it is a delta."""
    stored = stack.enter_context(closing(new.rows(table)))
    if table.ids_key not in new.index.entries:
        return stored
    changes = new.tensors([table.ids_key, table.rows_key])
    as_bytes = (
        np.ascontiguousarray(changes[table.rows_key]).view(np.uint8).reshape(-1, stored.row_bytes)
    )
    return PatchedRows(stored, changes[table.ids_key], as_bytes)


def _change(
    old: _Version, new: _Version, table: _StoredTable, rows: StoredRows | PatchedRows
) -> TableChange:
    is_same_file = stored_identity(old.index, table.key) == stored_identity(new.index, table.key)
    if is_same_file and isinstance(rows, StoredRows):
        return table.change(np.empty(0, np.int64))
    with closing(old.rows(table)) as stored:
        return table.change(changed_rows(stored, rows))


def _write_graph(
    old: _Version, tables: Sequence[_StoredTable], partial: Path, *, may_copy: bool
) -> _DeltaGraph:
    """Puts everything but the checkpoint into `partial`."""
    if not is_graph_of_base(old.graph):
        return _write_extended_graph(old, tables, partial)
    link_tree(old.path, partial, {VARIABLES, _EXTRAS, FINGERPRINT_FILE}, may_copy=may_copy)
    # A copy, because the delta writes its own into it.
    if (old.path / FINGERPRINT_FILE).is_file():
        shutil.copyfile(old.path / FINGERPRINT_FILE, partial / FINGERPRINT_FILE)
    own = _keys_of_changes(old) | {OBJECT_GRAPH_KEY}
    return _DeltaGraph(
        {key: key for key in old.index.entries.keys() - own},
        [table.ids_key for table in tables],
        [table.rows_key for table in tables],
        object_graph_bytes(old.path, old.index),
    )


def _write_extended_graph(
    old: _Version, tables: Sequence[_StoredTable], partial: Path
) -> _DeltaGraph:
    """Saves the graph of an ordinary version again, with what writes the rows of a delta."""
    options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
    root = tf.Module()
    put_below(root, tf.saved_model.load(str(old.path), options=options))
    variables = old.graph.values(root.model)
    add_changes(root, [variables[table.key] for table in tables])
    save_root(root, partial, dict(root.model.signatures), root.tables)
    serialized = object_graph_bytes(partial)
    shutil.rmtree(partial / VARIABLES)
    graph = ObjectGraph(serialized)
    keys = old.graph.same_values(graph, graph.child("model"))
    if missing := sorted(old.index.entries.keys() - keys.keys() - {OBJECT_GRAPH_KEY}):
        raise FailedPrecondition(f"{missing[0]} is no variable: a delta cannot bring it up to date")
    ids_keys, rows_keys = (_keys_of_list(graph, name) for name in ("ids", "rows"))
    return _DeltaGraph(keys, ids_keys, rows_keys, serialized)


def _keys_of_list(graph: ObjectGraph, name: str) -> list[str]:
    nodes = graph.children(graph.child(name))
    return [graph.key(nodes[str(number)]) for number in range(len(nodes))]


def _tensors(new: _Version, tables: Sequence[_StoredTable], graph: _DeltaGraph) -> dict[str, Any]:
    """The new version's values of all that is in no table, by the delta's keys."""
    whole = graph.keys.keys() - {table.key for table in tables}
    values = new.tensors(sorted(whole))
    found = {graph.keys[key]: tf.constant(value) for key, value in values.items()}
    return found | {OBJECT_GRAPH_KEY: tf.constant(graph.object_graph)}


def _link_extras(new: Path, partial: Path, *, may_copy: bool) -> None:
    """Links the new version's warm-up requests, and whatever else a server reads beside the model."""
    if (new / _EXTRAS).is_dir():
        link_tree(new / _EXTRAS, partial / _EXTRAS, may_copy=may_copy)
