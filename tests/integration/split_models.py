"""Exports random graphs of which a part cannot run on an accelerator, with the answers of TensorFlow.

    python -m tests.integration.split_models DIRECTORY

Each graph is a signature `random_N` of the SavedModel DIRECTORY/1. DIRECTORY/answers.npz has its inputs and
outputs for each of ROW_COUNTS, as `random_N/ROWS/in/NAME` and `random_N/ROWS/out/NAME`.
"""

import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.integration.exports import let_settle

GRAPH_COUNT = 16
STEP_COUNT = 12
ROW_COUNTS = (1, 3, 4, 9)
WIDTH = 8
WORDS = ("apple", "pear", "plum", "fig")

Tensor = Any


class RandomGraph(tf.Module):  # type: ignore[misc]
    """A function of words, numbers and ids that is made of random steps."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._draws = np.random.default_rng(seed)
        initializer = tf.lookup.KeyValueTensorInitializer(
            list(WORDS), list(range(len(WORDS))), key_dtype=tf.string, value_dtype=tf.int64
        )
        self.words = tf.lookup.StaticHashTable(initializer, default_value=len(WORDS))
        self.table = self._variable(50, WIDTH)
        self.weights = [self._variable(WIDTH, WIDTH) for _ in range(STEP_COUNT)]
        self._plan = [self._random.choice(self._steps()) for _ in range(STEP_COUNT)]
        self._choices = [self._random.random() for _ in range(4 * STEP_COUNT)]
        self._says_texts = self._random.random() < 0.5

    def _variable(self, *shape: int) -> Any:
        return tf.Variable(self._draws.standard_normal(shape).astype(np.float32) / 3)

    def _steps(self) -> list[Callable[..., None]]:
        return [
            self._dense,
            self._dense,
            self._looked_up,
            self._gathered,
            self._hashed,
            self._reshaped,
            self._joined,
            self._checked,
            self._spelled,
            self._squeezed,
        ]

    def serve(self, text: Tensor, x: Tensor, ids: Tensor) -> dict[str, Tensor]:
        self._left = list(self._choices)
        floats, integers, texts = [x], [ids], [text]
        for index, step in enumerate(self._plan):
            step(index, floats, integers, texts)
        merged = tf.add_n([tf.tanh(value) for value in floats])
        outputs = {"score": tf.matmul(merged, self.weights[0]), "id": integers[-1] + 1}
        if self._says_texts:
            outputs["text"] = tf.strings.lower(texts[-1])
        return outputs

    def _pick(self, values: list[Tensor]) -> Tensor:
        return values[int(self._left.pop() * len(values))]

    # Each step takes tensors of earlier steps: floats of WIDTH a row, one integer or one text a row.

    def _dense(self, index: int, floats: list[Tensor], *_: Any) -> None:
        floats.append(tf.nn.relu(tf.matmul(self._pick(floats), self.weights[index])))

    def _looked_up(self, _: int, floats: Any, integers: list[Tensor], texts: list[Tensor]) -> None:
        integers.append(self.words.lookup(self._pick(texts)))

    def _gathered(self, _: int, floats: list[Tensor], integers: list[Tensor], __: Any) -> None:
        floats.append(tf.gather(self.table, tf.math.floormod(self._pick(integers), 50)))

    def _hashed(self, _: int, floats: list[Tensor], integers: list[Tensor], texts: Any) -> None:
        bucket = tf.strings.to_hash_bucket_fast(self._pick(texts), 50)
        integers.append(tf.cast(tf.cast(bucket, tf.int32) + 1, tf.int64))

    def _reshaped(self, _: int, floats: list[Tensor], __: Any, texts: list[Tensor]) -> None:
        rows = tf.shape(self._pick(texts))[0]
        halves = tf.reshape(self._pick(floats), tf.stack([rows, 2, WIDTH // 2]))
        floats.append(tf.reshape(tf.transpose(halves, [0, 2, 1]), [rows, WIDTH]))

    def _joined(self, index: int, floats: list[Tensor], *_: Any) -> None:
        both = tf.concat([self._pick(floats), self._pick(floats)], axis=1)
        floats.append(both[:, index % WIDTH : index % WIDTH + WIDTH])

    def _checked(self, _: int, floats: list[Tensor], integers: list[Tensor], __: Any) -> None:
        checked = tf.debugging.assert_greater(self._pick(integers), tf.constant(-1000, tf.int64))
        with tf.control_dependencies([checked] if checked is not None else []):
            floats.append(tf.identity(self._pick(floats)) * 0.5)

    def _spelled(self, _: int, __: Any, integers: list[Tensor], texts: list[Tensor]) -> None:
        texts.append(tf.strings.join([self._pick(texts), tf.strings.as_string(integers[0])]))

    def _squeezed(self, _: int, floats: list[Tensor], integers: list[Tensor], __: Any) -> None:
        integers.append(tf.cast(tf.argmax(self._pick(floats), axis=1), tf.int64))


def request_inputs(seed: int, rows: int) -> dict[str, Any]:
    """The inputs of one random request."""
    draws = np.random.default_rng(seed)
    return {
        "text": draws.choice(np.array([*WORDS, "Quince"], dtype=object), rows),
        "x": draws.standard_normal((rows, WIDTH)).astype(np.float32),
        "ids": draws.integers(0, 1000, rows, np.int64),
    }


def signature_of(graph: RandomGraph) -> Any:
    return tf.function(graph.serve, autograph=False).get_concrete_function(
        tf.TensorSpec([None], tf.string, "text"),
        tf.TensorSpec([None, WIDTH], tf.float32, "x"),
        tf.TensorSpec([None], tf.int64, "ids"),
    )


def answers_of(name: str, signature: Any) -> Mapping[str, Any]:
    """The inputs and outputs of a signature, by their names in answers.npz."""
    arrays = {}
    for rows in ROW_COUNTS:
        inputs = request_inputs(rows, rows)
        outputs = signature(**{key: tf.constant(value) for key, value in inputs.items()})
        for key, value in inputs.items():
            arrays[f"{name}/{rows}/in/{key}"] = value.astype(str) if key == "text" else value
        for key, value in outputs.items():
            arrays[f"{name}/{rows}/out/{key}"] = (
                value.numpy().astype(str) if value.dtype == tf.string else value.numpy()
            )
    return arrays


def main(directory: Path) -> None:
    module = tf.Module()
    module.graphs = [RandomGraph(seed) for seed in range(GRAPH_COUNT)]
    signatures = {
        f"random_{index}": signature_of(graph) for index, graph in enumerate(module.graphs)
    }
    arrays: dict[str, Any] = {}
    for name, signature in signatures.items():
        arrays |= answers_of(name, signature)
    np.savez(directory / "answers.npz", **arrays)
    tf.saved_model.save(module, str(directory / "1"), signatures=signatures)
    let_settle(directory / "1")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
