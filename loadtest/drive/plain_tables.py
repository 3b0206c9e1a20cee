"""Versions of the trained model that are written without TensorFlow, and without their tables in memory.

So a trainer of tables that are as large as half of a machine's memory leaves that memory to the server, and a
machine without TensorFlow's Python package can have one. docs/delta.md has the format.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from loadtest.drive.trained_model import DELTA, FULL, WrittenVersion
from loadtest.drive.version_template import StoredValue, VersionTemplate
from loadtest.plan.checksums import joined, of_zeros
from loadtest.plan.row_values import ROW_BYTES, TABLE_COUNT, Ids, RowValues
from millpond.checkpoint_index import masked, shard_path, write_index
from millpond.version_files import (
    GRAPH_FILE,
    PREFIX,
    VARIABLES,
    link_tree,
    written_beside,
)

_PIECE_ROWS = 1 << 20
_THREAD_COUNT = 4
_SHARD_COUNT = 2
_VERSION = "version"
_VALUE_KEY_END = "/.ATTRIBUTES/VARIABLE_VALUE"


class PlainTables:
    """Writes what `TrainedTables` writes, from the templates in a directory (see `version_template`)."""

    def __init__(self, directory: Path, values: RowValues, templates: Path) -> None:
        self.base_path = directory / "versions"
        self._beside = directory / "beside"
        self._values = values
        self._templates = {kind: VersionTemplate(templates / kind) for kind in (DELTA, FULL)}
        # The version in which each row of the pool changed last; 0: never.
        self._last_changed = [np.zeros(values.pool_count, np.int32) for _ in range(TABLE_COUNT)]
        self._version = 1
        self._base_entries: Mapping[str, Any] = {}
        for path in (self.base_path, self._beside):
            path.mkdir()

    def train(self, version: int) -> None:
        """Changes the rows that `version` changes. Version 1 is as it was made."""
        for table, last_changed in enumerate(self._last_changed):
            ids = self._values.changed_ids(table, version)
            last_changed[ids // self._values.pool_stride] = version
        self._version = version

    def publish_base(self) -> None:
        """Writes version 1, of which deltas can be made, to where servers look."""
        with written_beside(self.base_path / "1") as partial:
            self._base_entries = self._write_whole(self._templates[DELTA], partial)

    def export_delta(self, version: int) -> WrittenVersion:
        """Writes a delta of the base beside the place where servers look. `publish` follows."""
        written = self._written(version)
        template = self._templates[DELTA]
        with written_beside(written.path) as partial:
            link_tree(self.base_path / "1", partial, {VARIABLES}, may_copy=False)
            (partial / VARIABLES).mkdir()
            tables = shard_path(self.base_path / "1" / PREFIX, 0, _SHARD_COUNT)
            os.link(tables, shard_path(partial / PREFIX, 0, _SHARD_COUNT))
            rows = {
                key: value
                for table in range(TABLE_COUNT)
                for key, value in self._changed_rows(template, table).items()
            }
            self._write_rest(template, partial, self._base_entries, rows)
        return written

    def export_whole(self, version: int) -> WrittenVersion:
        """Writes all tables beside the place where servers look. `publish` follows."""
        written = self._written(version)
        with written_beside(written.path) as partial:
            self._write_whole(self._templates[FULL], partial)
        return written

    def publish(self, written: WrittenVersion) -> None:
        """Moves a version to where servers find it."""
        os.rename(written.path, self.base_path / str(written.version))

    def _written(self, version: int) -> WrittenVersion:
        return WrittenVersion(self._beside / str(version), version)

    def _write_whole(self, template: VersionTemplate, version: Path) -> Mapping[str, Any]:
        (version / VARIABLES).mkdir()
        (version / GRAPH_FILE).write_bytes(template.graph_of(self._values.row_count))
        entries = self._write_tables(template, version)
        self._write_rest(template, version, entries, {})
        return entries

    def _write_tables(self, template: VersionTemplate, version: Path) -> Mapping[str, Any]:
        """Writes the shard with the tables, and returns their entries by key."""
        table_bytes = self._values.row_count * ROW_BYTES
        entries = {}
        with shard_path(version / PREFIX, 0, _SHARD_COUNT).open("xb") as file:
            os.ftruncate(file.fileno(), TABLE_COUNT * table_bytes)
            for table, (key, small) in enumerate(sorted(template.table_entries.items())):
                offset = table * table_bytes
                crc = self._write_table(file.fileno(), table, offset)
                entries[key] = _entry(small, offset, table_bytes, masked(crc), 0)
                entries[key].shape.dim[0].size = self._values.row_count
        return entries

    def _write_table(self, descriptor: int, table: int, offset: int) -> int:
        """Writes a table, and returns its checksum. Of a sparse one without changes the file is a hole."""
        if self._values.is_sparse and not self._last_changed[table].any():
            return of_zeros(self._values.row_count * ROW_BYTES)

        def write(piece: tuple[int, int]) -> tuple[int, int]:
            start, stop = piece
            ids, last_changed = self._piece(table, start, stop)
            rows = self._values.rows(table, ids, last_changed).tobytes()
            os.pwrite(descriptor, rows, offset + start * ROW_BYTES)
            return google_crc32c.value(rows), len(rows)

        with ThreadPoolExecutor(_THREAD_COUNT) as threads:
            return joined(threads.map(write, self._pieces()))

    def _pieces(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self._values.row_count, _PIECE_ROWS):
            yield start, min(start + _PIECE_ROWS, self._values.row_count)

    def _piece(self, table: int, start: int, stop: int) -> tuple[Ids, Ids]:
        """The ids from `start` to `stop`, and the versions in which these rows changed last."""
        ids = np.arange(start, stop)
        last_changed = np.zeros(stop - start, np.int64)
        stride = self._values.pool_stride
        first = -(-start // stride)
        of_pool = self._last_changed[table][first : -(-stop // stride)]
        last_changed[(first + np.arange(len(of_pool))) * stride - start] = of_pool
        return ids, last_changed

    def _changed_rows(self, template: VersionTemplate, table: int) -> Mapping[str, StoredValue]:
        """The ids of the rows that differ from the base, and these rows, by their keys."""
        positions = np.flatnonzero(self._last_changed[table])
        ids = self._values.pool_ids(positions)
        rows = self._values.rows(table, ids, self._last_changed[table][positions])
        return dict(
            _stored(template, f"{name}/{table}", array)
            for name, array in (("ids", ids), ("rows", rows))
        )

    def _write_rest(
        self,
        template: VersionTemplate,
        version: Path,
        tables: Mapping[str, Any],
        changed: Mapping[str, StoredValue],
    ) -> None:
        """Writes the shard with everything but the tables, and the index of both."""
        number = dict([_stored(template, _VERSION, np.array(self._version, np.int64))])
        entries = dict(tables)
        with shard_path(version / PREFIX, 1, _SHARD_COUNT).open("xb") as file:
            for key, value in sorted({**template.values, **number, **changed}.items()):
                size = len(value.contents)
                entries[key] = _entry(value.entry, file.tell(), size, value.entry.crc32c, 1)
                file.write(value.contents)
        write_index(version / PREFIX, _SHARD_COUNT, entries)


def _stored(
    template: VersionTemplate, part: str, array: npt.NDArray[Any]
) -> tuple[str, StoredValue]:
    """The key of which `part` is the object's path, and `array` as its value."""
    (key,) = (key for key in template.values if f"/{key}".endswith(f"/{part}{_VALUE_KEY_END}"))
    contents = array.tobytes()
    entry = _entry(
        template.values[key].entry, 0, len(contents), masked(google_crc32c.value(contents)), 1
    )
    for dimension, size in zip(entry.shape.dim, array.shape, strict=True):
        dimension.size = size
    return key, StoredValue(entry, contents)


def _entry(like: Any, offset: int, size: int, crc32c: int, shard: int) -> Any:
    entry = type(like)()
    entry.CopyFrom(like)
    entry.offset, entry.size, entry.crc32c, entry.shard_id = offset, size, crc32c, shard
    return entry
