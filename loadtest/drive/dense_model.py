"""Two dense ranking models, for which a CPU is slow: a wide MLP and a transformer over the fields of a row.

    python -m loadtest.drive.dense_model DIRECTORY --kind mlp --parameters 100000000

exports one to DIRECTORY/1. This is a separate process, to keep TensorFlow out of the clients' process. The weights
are random by a fixed seed, because speed and equality do not depend on training, and can be computed without
TensorFlow, so that a model may be kept without them.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.drive.lean_models import Weights, fill, make_lean
from loadtest.plan.dense_load import FEATURE_COUNT, INPUT, OUTPUT
from serving.base.errors import InvalidConfig

_HIDDEN_LAYER_COUNT = 6
_FIELD_COUNT = 16
_BLOCK_COUNT = 8
_HEAD_SIZE = 64
# Widths are multiples of it, as the tiles of a GPU's products are.
_WIDTH_STEP = 64
# The matrices of a transformer's block have 12 times the squared width: 4 of attention, 8 of its MLP.
_BLOCK_SQUARES = 12


def dense_base_path(directory: Path, kind: str, parameter_count: int) -> Path:
    """The base path of the model below `directory`, also before its export."""
    return directory / f"{kind}-{parameter_count}"


def prepare_dense_model(
    directory: Path,
    kind: str,
    parameter_count: int,
    say: Callable[[str], None],
    *,
    is_lean: bool = False,
) -> Path:
    """Exports the model if it does not exist yet, without its weights if `is_lean`, and returns its base path.

    If it does, it gets its weights. Raises InvalidConfig, OSError.
    """
    base_path = dense_base_path(directory, kind, parameter_count)
    if (base_path / "1").exists():
        if not is_lean:
            fill(base_path)
        say(f"{kind} was exported before")
        return base_path
    command = [sys.executable, "-m", "loadtest.drive.dense_model", str(base_path)]
    command += [f"--kind={kind}", f"--parameters={parameter_count}", *["--lean"] * is_lean]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
        raise InvalidConfig(f"the model {kind} could not be exported to {base_path}; see above")
    return base_path


def width_of(kind: str, parameter_count: int) -> int:
    """The width whose square matrices have about `parameter_count` weights together, a multiple of 64."""
    squares = _HIDDEN_LAYER_COUNT if kind == "mlp" else _BLOCK_COUNT * _BLOCK_SQUARES
    steps = round(np.sqrt(parameter_count / squares) / _WIDTH_STEP)
    return _WIDTH_STEP * max(int(steps), 1)


class _Weights:
    """Makes the variables of a model, and keeps them for its export."""

    def __init__(self) -> None:
        import tensorflow as tf

        self._tf = tf
        self.made: list[Weights] = []
        self.module = tf.Module()
        self.module.variables_made = []

    def matrix(self, rows: int, columns: int) -> Any:
        """Random weights with which activations keep their size from layer to layer."""
        weights = Weights("dense", (len(self.made), rows, columns))
        self.made.append(weights)
        variable = self._tf.Variable(weights.values())
        self.module.variables_made.append(variable)
        return variable


def _mlp(weights: _Weights, width: int) -> Callable[[Any], Any]:
    import tensorflow as tf

    first, last = weights.matrix(FEATURE_COUNT, width), weights.matrix(width, 1)
    hidden = [weights.matrix(width, width) for _ in range(_HIDDEN_LAYER_COUNT)]

    def answer(x: Any) -> Any:
        activations = tf.nn.relu(x @ first)
        for matrix in hidden:
            activations = np.float32(np.sqrt(2)) * tf.nn.relu(activations @ matrix)
        return tf.sigmoid(activations @ last)

    return answer


def _transformer(weights: _Weights, width: int) -> Callable[[Any], Any]:
    import tensorflow as tf

    field_size, last = FEATURE_COUNT // _FIELD_COUNT, weights.matrix(width, 1)
    first = weights.matrix(field_size, width)
    blocks = [_block(weights, width) for _ in range(_BLOCK_COUNT)]

    def answer(x: Any) -> Any:
        fields = tf.reshape(x, [-1, field_size]) @ first
        fields = tf.reshape(fields, [-1, _FIELD_COUNT, width])
        for block in blocks:
            fields = block(fields)
        return tf.sigmoid(tf.reduce_mean(fields, 1) @ last)

    return answer


def _block(weights: _Weights, width: int) -> Callable[[Any], Any]:
    """Attention among the fields of a row, and an MLP for each field, both beside a residual."""
    import tensorflow as tf

    query, key, value, out = (weights.matrix(width, width) for _ in range(4))
    up, down = weights.matrix(width, 4 * width), weights.matrix(4 * width, width)

    def product(fields: Any, matrix: Any) -> Any:
        flat = tf.reshape(fields, [-1, fields.shape[-1]]) @ matrix
        return tf.reshape(flat, [-1, _FIELD_COUNT, matrix.shape[-1]])

    def heads(fields: Any) -> Any:
        split = tf.reshape(fields, [-1, _FIELD_COUNT, width // _HEAD_SIZE, _HEAD_SIZE])
        return tf.transpose(split, [0, 2, 1, 3])

    def block(fields: Any) -> Any:
        normed = _normed(fields)
        scores = tf.matmul(
            heads(product(normed, query)), heads(product(normed, key)), transpose_b=True
        )
        mixed = tf.nn.softmax(scores / np.float32(np.sqrt(_HEAD_SIZE))) @ heads(
            product(normed, value)
        )
        joined = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, _FIELD_COUNT, width])
        fields = fields + product(joined, out)
        return fields + product(tf.nn.relu(product(_normed(fields), up)), down)

    return block


def _normed(fields: Any) -> Any:
    import tensorflow as tf

    centred = fields - tf.reduce_mean(fields, -1, keepdims=True)
    return centred * tf.math.rsqrt(
        tf.reduce_mean(tf.square(centred), -1, keepdims=True) + np.float32(1e-5)
    )


KINDS: Mapping[str, Callable[[_Weights, int], Callable[[Any], Any]]] = {
    "mlp": _mlp,
    "transformer": _transformer,
}
"""The models by name."""


def export(directory: Path, kind: str, parameter_count: int, *, is_lean: bool = False) -> None:
    """Exports the model as version 1 below `directory`, without its weights if `is_lean`."""
    import tensorflow as tf

    weights = _Weights()
    answer = KINDS[kind](weights, width_of(kind, parameter_count))
    spec = tf.TensorSpec([None, FEATURE_COUNT], tf.float32, INPUT)
    serve = tf.function(lambda x: {OUTPUT: answer(x)}, input_signature=[spec])
    partial = directory / ".1"
    tf.saved_model.save(weights.module, str(partial), signatures=serve)
    # Renamed when it is complete, so that an interrupted export is not taken for a model.
    partial.rename(directory / "1")
    if is_lean:
        make_lean(directory, weights.made)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--lean", action="store_true")
    parsed = parser.parse_args()
    export(parsed.directory, parsed.kind, parsed.parameters, is_lean=parsed.lean)


if __name__ == "__main__":
    _main()
