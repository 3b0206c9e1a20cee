"""A model with tables, and its bases and deltas, for tests of both sides of a delta version.

Importing this does not import TensorFlow; making a model does (5 s).
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class TrainedModel:
    """A model that is trained at random: `tables` of `rows` × `columns`, and the matrix `dense`.

    Its signature maps `ids` int64 [n] to `y` float32 [n, 4]: the ids' rows of all tables, side by side,
    times `dense`. `export_base` and `export_delta` write version N as `base_path/N`. Nothing of it changes once
    it has that name: a server may have read it, and a table is known by its file's time.
    """

    def __init__(
        self,
        base_path: Path,
        *,
        rows: int = 1000,
        columns: int = 8,
        table_count: int = 2,
        seed: int = 0,
    ) -> None:
        import tensorflow as tf

        self.base_path = base_path
        self.random = np.random.default_rng(seed)
        self.module = tf.Module()
        self.module.tables = [
            tf.Variable(self._normal(rows, columns), name=f"table_{k}") for k in range(table_count)
        ]
        self.module.dense = tf.Variable(self._normal(table_count * columns, 4), name="dense")
        self._base: Any = None

        def answer(ids: Any) -> dict[str, Any]:
            found = [tf.nn.embedding_lookup(table, ids) for table in self.module.tables]
            return {"y": tf.matmul(tf.concat(found, 1), self.module.dense)}

        spec = tf.TensorSpec([None], tf.int64, name="ids")
        self._answer = tf.function(answer, input_signature=[spec])

    def train(self, changed_count: int = 10) -> Sequence[Any]:
        """Changes so many rows of each table, and `dense`. Returns the ids of each table."""
        changed = []
        for table in self.module.tables:
            rows, columns = table.shape
            ids = np.sort(self.random.choice(rows, changed_count, replace=False))
            table.scatter_nd_update(ids[:, np.newaxis], self._normal(changed_count, columns))
            changed.append(ids)
        self.module.dense.assign(self._normal(*self.module.dense.shape))
        return changed

    def export_base(self, version: int) -> Path:
        from millpond.delta import export_base

        path = self.base_path / str(version)
        self._base = export_base(
            self.module, path, signatures=self._answer, tables=self.module.tables
        )
        return path

    def export_delta(self, version: int, **arguments: Any) -> Path:
        """Writes a delta of the last base."""
        from millpond.delta import export_delta

        path = self.base_path / str(version)
        export_delta(self.module, self._base, path, **arguments)
        return path

    def replace_tables(self) -> None:
        """Puts another file with the same bytes in the place of the last base's tables."""
        from millpond.delta import open_base

        shard = self._base.path / "variables" / "variables.data-00000-of-00002"
        copy = shutil.copy2(shard, self._base.path.with_name("copy"))
        os.replace(copy, shard)
        self._base = open_base(self._base.path)

    def answer(self, ids: Any) -> Any:
        """The answer that the model has now, by the function that was exported."""
        return self._answer(ids)["y"].numpy()

    def _normal(self, *shape: int) -> Any:
        return self.random.normal(size=shape).astype(np.float32)


def loaded_answer(version: Path, ids: Any) -> Any:
    """The answer of a version that TensorFlow itself has loaded."""
    import tensorflow as tf

    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    return signature(ids=tf.constant(ids, tf.int64))["y"].numpy()


def session_answer(version: Path, ids: Any) -> Any:
    """The answer of a version in a session of TensorFlow 1."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        signatures = v1.saved_model.load(session, ["serve"], str(version)).signature_def
        signature = signatures["serving_default"]
        return session.run(
            signature.outputs["y"].name, {signature.inputs["ids"].name: np.asarray(ids, np.int64)}
        )
