"""A model of two large tables, of which a share of the rows changes from version to version."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MODEL_NAME = "trained"
_TABLE_COUNT = 2
_COLUMN_COUNT = 16
_ROW_BYTES = 4 * _COLUMN_COUNT
_OUTPUT_COUNT = 4


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
    """Writes a base and its deltas by `millpond.delta`. Making it imports TensorFlow (5 s).

    The same rows change in each step of training, as those of the most popular ids do: a delta has all rows
    that have changed since the base.
    """

    def __init__(self, directory: Path, table_bytes: float, seed: int) -> None:
        import tensorflow as tf

        self.base_path = directory / "versions"
        self._beside = directory / "beside"
        self._random = np.random.default_rng(seed)
        self._row_count = round(table_bytes / _TABLE_COUNT / _ROW_BYTES)
        self._changed: list[tuple[Any, Any]] = []
        self._base: Any = None
        self._module = tf.Module()
        self._module.tables = [
            tf.Variable(tf.random.stateless_normal((self._row_count, _COLUMN_COUNT), (seed, k)))
            for k in range(_TABLE_COUNT)
        ]
        self._module.dense = tf.Variable(self._normal(_TABLE_COUNT * _COLUMN_COUNT, _OUTPUT_COUNT))
        for path in (self.base_path, self._beside):
            path.mkdir()

        def answer(ids: Any) -> dict[str, Any]:
            rows = [tf.nn.embedding_lookup(table, ids) for table in self._module.tables]
            return {"y": tf.matmul(tf.concat(rows, 1), self._module.dense)}

        self._answer = tf.function(
            answer, input_signature=[tf.TensorSpec([None], tf.int64, name="ids")]
        )

    @property
    def table_bytes(self) -> int:
        return _TABLE_COUNT * self._row_count * _ROW_BYTES

    @property
    def changed_row_count(self) -> int:
        """The rows that differ from the base."""
        return sum(len(ids) for _, ids in self._changed)

    def train(self, changed_ratio: float) -> None:
        """Changes that share of the rows."""
        if not self._changed:
            count = max(1, round(changed_ratio * self._row_count))
            self._changed = [
                (table, np.sort(self._random.choice(self._row_count, count, replace=False)))
                for table in self._module.tables
            ]
        for table, ids in self._changed:
            table.scatter_nd_update(ids[:, np.newaxis], self._normal(len(ids), _COLUMN_COUNT))

    def publish_base(self, version: int) -> None:
        from millpond.delta import export_base

        path = self.base_path / str(version)
        self._base = export_base(
            self._module, path, signatures=self._answer, tables=self._module.tables
        )

    def export_delta(self, version: int) -> WrittenVersion:
        """Writes a delta of the base beside the place where servers look. `publish` follows."""
        from millpond.delta import export_delta

        written = WrittenVersion(self._beside / str(version), version)
        export_delta(self._module, self._base, written.path, changed_ids=self._changed)
        return written

    def publish(self, written: WrittenVersion) -> None:
        """Moves a version to where servers find it."""
        os.rename(written.path, self.base_path / str(written.version))

    def _normal(self, *shape: int) -> Any:
        return self._random.normal(size=shape).astype(np.float32)
