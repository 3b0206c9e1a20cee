"""Exports of Keras on JAX and of jax2tf. Run in the environment build/jax:
`python -m tests.integration.jax_exports DIR`, which writes each into a directory in DIR.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"


def export_normalized(directory: Path) -> None:
    """Exports a model that assigns the averages of its BatchNormalization in each call."""
    import keras

    layers = [
        keras.Input((4,), name="x"),
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    keras.Sequential(layers).export(str(directory))


def export_counting(directory: Path) -> None:
    """Exports a compiled model that counts its calls: it returns the number, and the sum of each row."""
    import tensorflow as tf
    from jax.experimental import jax2tf  # type: ignore[import-not-found]

    module = tf.Module()
    module.calls = tf.Variable(0, dtype=tf.int64)
    add = jax2tf.convert(
        lambda x: x.sum(axis=1), polymorphic_shapes=["(rows, 4)"], with_gradient=False
    )

    def serving_default(x: Any) -> dict[str, Any]:
        return {"output_0": add(x), "calls": module.calls.assign_add(1)}

    x = tf.TensorSpec([None, 4], tf.float32, name="x")
    signature = tf.function(serving_default, autograph=False).get_concrete_function(x)
    tf.saved_model.save(module, str(directory), signatures={"serving_default": signature})


def export_layers(directory: Path) -> None:
    """Exports two layers as one module of StableHLO for any number of rows; the weights are variables."""
    import jax.numpy as jnp  # type: ignore[import-not-found]
    import tensorflow as tf
    from jax.experimental import jax2tf

    module = tf.Module()
    module.first = tf.Variable(tf.reshape(tf.range(32.0) / 50, [4, 8]))
    module.second = tf.Variable(tf.reshape(tf.range(16.0) / 20, [8, 2]))
    layers = jax2tf.convert(
        lambda first, second, x: jnp.tanh(x @ first) @ second,
        polymorphic_shapes=[None, None, "(rows, 4)"],
        with_gradient=False,
    )

    def serving_default(x: Any) -> dict[str, Any]:
        return {"output_0": layers(module.first, module.second, x)}

    x = tf.TensorSpec([None, 4], tf.float32, name="x")
    signature = tf.function(serving_default, autograph=False).get_concrete_function(x)
    tf.saved_model.save(module, str(directory), signatures={"serving_default": signature})


if __name__ == "__main__":
    export_normalized(Path(sys.argv[1], "normalized"))
    export_counting(Path(sys.argv[1], "counting"))
    export_layers(Path(sys.argv[1], "layers"))
