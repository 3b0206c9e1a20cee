"""A model of two large tables, of which a share of the rows changes from version to version."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.plan.row_load import INPUT, OUTPUT, VERSION_OUTPUT
from loadtest.plan.row_values import TABLE_COUNT, RowValues, dense

MODEL_NAME = "trained"

DELTA, FULL = "delta", "full"
"""The kinds of versions: a base with deltas of it, and versions as any trainer writes them."""


@dataclass(frozen=True)
class WrittenVersion:
    """A version that no server sees yet."""

    path: Path
    version: int

    @property
    def own_bytes(self) -> int:
        """The bytes of the files that are no links to another version's."""
        status = [path.stat() for path in self.path.rglob("*") if path.is_file()]
        return sum(each.st_size for each in status if each.st_nlink == 1)


class TrainedTables:
    """Writes a base and its deltas by `millpond.delta`, or whole versions. Making it imports TensorFlow (5 s).

    A delta has all rows that have changed since the base.
    """

    def __init__(self, directory: Path, values: RowValues) -> None:
        import tensorflow as tf

        self.base_path = directory / "versions"
        self._beside = directory / "beside"
        self._values = values
        self._changed = [np.empty(0, np.int64) for _ in range(TABLE_COUNT)]
        self._base: Any = None
        self._module = tf.Module()
        self._module.tables = [self._first_table(table) for table in range(TABLE_COUNT)]
        self._module.dense = tf.Variable(dense())
        self._module.version = tf.Variable(1, dtype=tf.int64)
        for path in (self.base_path, self._beside):
            path.mkdir()

        def answer(ids: Any) -> dict[str, Any]:
            rows = [tf.nn.embedding_lookup(table, ids) for table in self._module.tables]
            y = tf.matmul(tf.concat(rows, 1), self._module.dense)
            return {OUTPUT: y, VERSION_OUTPUT: tf.fill(tf.shape(ids), self._module.version)}

        self._answer = tf.function(
            answer, input_signature=[tf.TensorSpec([None], tf.int64, name=INPUT)]
        )

    @property
    def changed_row_count(self) -> int:
        """The rows that differ from the base."""
        return sum(len(ids) for ids in self._changed)

    def train(self, version: int) -> None:
        """Changes the rows that `version` changes. Version 1 is as it was made."""
        for number, table in enumerate(self._module.tables):
            ids = self._values.changed_ids(number, version)
            rows = self._values.rows(number, ids, version)
            table.scatter_nd_update(ids[:, np.newaxis], rows)
            self._changed[number] = np.union1d(self._changed[number], ids)
        self._module.version.assign(version)

    def publish_base(self) -> None:
        """Writes version 1, of which deltas can be made, to where servers look."""
        from millpond.delta import export_base

        self._base = export_base(
            self._module,
            self.base_path / "1",
            signatures=self._answer,
            tables=self._module.tables,
        )

    def export_delta(self, version: int) -> WrittenVersion:
        """Writes a delta of the base beside the place where servers look. `publish` follows."""
        from millpond.delta import export_delta

        written = self._written(version)
        changed_ids = zip(self._module.tables, self._changed, strict=True)
        export_delta(self._module, self._base, written.path, changed_ids=changed_ids)
        return written

    def export_whole(self, version: int) -> WrittenVersion:
        """Writes all tables, as any trainer does, beside the place where servers look. `publish` follows."""
        import tensorflow as tf

        from millpond.version_files import written_beside

        written = self._written(version)
        with written_beside(written.path) as partial:
            tf.saved_model.save(self._module, str(partial), signatures=self._answer)
        return written

    def publish(self, written: WrittenVersion) -> None:
        """Moves a version to where servers find it."""
        os.rename(written.path, self.base_path / str(written.version))

    def _written(self, version: int) -> WrittenVersion:
        return WrittenVersion(self._beside / str(version), version)

    def _first_table(self, table: int) -> Any:
        import tensorflow as tf

        return tf.Variable(self._values.rows(table, np.arange(self._values.row_count), 0))
