"""The CTR model as a `tf.function`, behind TensorFlow Serving's body in rows. Imports TensorFlow."""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

EXPORT_VARIABLE, BATCH_VARIABLE = "CTR_EXPORT", "CTR_BATCH"
"""Environment variables for a package that imports its service itself."""

BATCH_REQUESTS_MAX = 16
"""The most requests of a batch: as many as the load has in flight."""

BATCH_WAIT_SECONDS = 0.002
"""The longest wait for further requests of a batch."""

Instances = Sequence[Any]
"""The rows of a request: each a mapping with `dense` and `sparse`."""


def is_batching() -> bool:
    """Returns True if the environment asks for batches."""
    return bool(os.environ.get(BATCH_VARIABLE))


class PeerModel:
    """One exported version. Thread-safe, as a `tf.function` is."""

    def __init__(self, export: str) -> None:
        self._loaded = tf.saved_model.load(export)
        self._predict = self._loaded.signatures["serving_default"]

    def predict(self, instances: Instances) -> list[dict[str, Any]]:
        """Returns a prediction for each row."""
        outputs = self._predict(
            dense=tf.constant(np.array([row["dense"] for row in instances], np.float32)),
            sparse=tf.constant(np.array([row["sparse"] for row in instances], np.int64)),
        )
        columns = {name: tensor.numpy().tolist() for name, tensor in outputs.items()}
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def predict_each(self, requests: Sequence[Instances]) -> list[list[dict[str, Any]]]:
        """Returns the predictions of each request, from one run of the model."""
        rows = iter(self.predict(list(itertools.chain.from_iterable(requests))))
        return [list(itertools.islice(rows, len(instances))) for instances in requests]
