"""A model that is trained from version to version, and the exact answer of each version."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MODEL_NAME = "trained"
TABLE_COUNT = 2
_COLUMN_COUNT = 16
_OUTPUT_COUNT = 4
# A delta may have a fifth of the rows, and the popular rows are all that training ever changes.
_POPULAR_RATIO = 0.15
# With these limits no sum of an answer reaches 2^24.
_ROW_VALUE_MAX, _DENSE_VALUE_MAX = 999, 9
_VERSIONS_ON_DISK_MAX = 4

Array = npt.NDArray[Any]


class DeltaSeries:
    """Writes the bases and deltas of a model. Making it imports TensorFlow (5 s).

    The model has two tables of `row_count` rows. Its signature maps `ids` int64 [n] to `y` float32 [n, 4]: the
    ids' rows, side by side, times the matrix `dense`. All numbers are whole, and small enough that float32 holds
    each sum exactly, in any order of adding. So NumPy's answer has the bits of TensorFlow's.

    `probes` are the ids of requests, int64 [requests, ids]. Half of them are popular rows, which training changes.
    `answers` has the answers of each sound version to them. Versions count up from 1, and old ones are deleted.
    """

    def __init__(
        self, directory: Path, row_count: int, probe_shape: tuple[int, int], seed: int
    ) -> None:
        import tensorflow as tf

        self.base_path = directory / "versions"
        self.newest = 0
        self.changed_row_count = 0
        self._beside = directory / "beside"
        for path in (self.base_path, self._beside):
            path.mkdir()
        self._random = np.random.default_rng(seed)
        self._popular = self._random.choice(
            row_count, round(_POPULAR_RATIO * row_count), replace=False
        )
        self._tables = [self._rows(row_count) for _ in range(TABLE_COUNT)]
        self._dense = self._new_dense()
        self._base: Any = None
        self._module = tf.Module()
        self._module.tables = [tf.Variable(table) for table in self._tables]
        self._module.dense = tf.Variable(self._dense)
        self.probes = self._drawn_probes(row_count, probe_shape)
        self.answers: dict[int, Array] = {}

        def answer(ids: Any) -> dict[str, Any]:
            rows = [tf.nn.embedding_lookup(table, ids) for table in self._module.tables]
            return {"y": tf.matmul(tf.concat(rows, 1), self._module.dense)}

        self._answer = tf.function(
            answer, input_signature=[tf.TensorSpec([None], tf.int64, name="ids")]
        )

    @property
    def row_count(self) -> int:
        """The rows of each table."""
        return len(self._tables[0])

    @property
    def table_bytes(self) -> int:
        """The bytes of both tables."""
        return sum(table.nbytes for table in self._tables)

    def answer(self, ids: Array) -> Array:
        """The answer of the newest sound version to `ids`, computed by NumPy."""
        rows = np.concatenate([table[ids] for table in self._tables], axis=-1)
        return (rows.astype(np.int64) @ self._dense.astype(np.int64)).astype(np.float32)

    def answer_of_tensorflow(self, version: int) -> Array:
        """The answer of `tf.saved_model.load` of a version to all ids."""
        import tensorflow as tf

        signature = tf.saved_model.load(str(self.base_path / str(version))).signatures[
            "serving_default"
        ]
        answer: Array = signature(ids=tf.range(self.row_count, dtype=tf.int64))["y"].numpy()
        return answer

    def train(self, changed_ratio: float) -> None:
        """Changes that share of the rows, all of them popular, and `dense`."""
        count = max(1, round(changed_ratio * self.row_count))
        for table, variable in zip(self._tables, self._module.tables, strict=True):
            ids = self._random.choice(self._popular, count, replace=False)
            table[ids] = self._rows(count)
            variable.scatter_nd_update(ids[:, np.newaxis], table[ids])
        self._dense = self._new_dense()
        self._module.dense.assign(self._dense)

    def publish_base(self) -> int:
        """Writes what the model is now as a base, and returns its version."""
        from millpond.delta import export_base

        path = self.base_path / str(self.newest + 1)
        self._base = export_base(
            self._module, path, signatures=self._answer, tables=self._module.tables
        )
        return self._published()

    def publish_delta(self) -> int:
        """Writes what the model is now as a delta of the last base, and returns its version."""
        self._export(self.base_path)
        return self._published()

    def publish_broken(self) -> int:
        """Adds a delta that has a wrong bit in its own shard, and returns its version."""
        path = self._export(self._beside)
        _flip_a_bit(path / "variables" / "variables.data-00001-of-00002", self._random)
        return self._published_beside(path)

    def publish_unfit(self) -> int:
        """Adds a delta that loads and then answers NaN, and returns its version."""
        with self._dense_of(np.full_like(self._dense, np.nan)):
            path = self._export(self._beside)
        return self._published_beside(path)

    def replace_shard(self) -> None:
        """Puts another file with the same bytes in the place of the base's shard with the tables.

        The deltas that follow have links to the new file.
        """
        from millpond.delta import open_base

        shard = self._base.path / "variables" / "variables.data-00000-of-00002"
        copy = shutil.copy2(shard, self._beside / "copy")
        os.replace(copy, shard)
        self._base = open_base(self._base.path)

    def remove(self, version: int) -> None:
        """Deletes a version."""
        shutil.rmtree(self.base_path / str(version))

    def _export(self, directory: Path) -> Path:
        from millpond.delta import export_delta

        path = directory / str(self.newest + 1)
        delta = export_delta(self._module, self._base, path)
        self.changed_row_count = sum(delta.changed_rows.values())
        return path

    def _published(self) -> int:
        self.newest += 1
        self.answers[self.newest] = self.answer(self.probes)
        kept = {self._base.path.name}
        others = sorted(int(path.name) for path in self.base_path.iterdir() if path.name.isdigit())
        for version in others[:-_VERSIONS_ON_DISK_MAX]:
            if str(version) not in kept:
                self.remove(version)
        return self.newest

    def _published_beside(self, path: Path) -> int:
        self.newest += 1
        path.rename(self.base_path / path.name)
        return self.newest

    @contextmanager
    def _dense_of(self, value: Array) -> Iterator[None]:
        self._module.dense.assign(value)
        try:
            yield
        finally:
            self._module.dense.assign(self._dense)

    def _drawn_probes(self, row_count: int, shape: tuple[int, int]) -> Array:
        popular = self._random.choice(self._popular, shape)
        any_row = self._random.integers(0, row_count, shape)
        return np.where(np.arange(shape[1]) % 2 == 0, popular, any_row)

    def _rows(self, count: int) -> Array:
        values = self._random.integers(-_ROW_VALUE_MAX, _ROW_VALUE_MAX, (count, _COLUMN_COUNT))
        return values.astype(np.float32)

    def _new_dense(self) -> Array:
        shape = (TABLE_COUNT * _COLUMN_COUNT, _OUTPUT_COUNT)
        return self._random.integers(-_DENSE_VALUE_MAX, _DENSE_VALUE_MAX, shape).astype(np.float32)


def _flip_a_bit(path: Path, random: np.random.Generator) -> None:
    """Flips a bit of a delta's rows. The times stay, because a server waits for a file that is new."""
    status = path.stat()
    with path.open("r+b") as file:
        # Rows take most of the file, and so its middle.
        position = int(random.integers(status.st_size // 3, status.st_size // 3 * 2))
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << int(random.integers(0, 8))]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
