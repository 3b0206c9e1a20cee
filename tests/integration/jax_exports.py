"""Exports of Keras on JAX. Run in the environment build/jax: `python -m tests.integration.jax_exports DIR`."""

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"


def export_normalized(directory: Path) -> None:
    """Exports a model that assigns the averages of its BatchNormalization in each call."""
    import keras  # type: ignore[import-untyped]

    layers = [
        keras.Input((4,), name="x"),
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    keras.Sequential(layers).export(str(directory))


if __name__ == "__main__":
    export_normalized(Path(sys.argv[1]))
