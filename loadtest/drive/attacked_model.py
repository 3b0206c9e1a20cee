"""A model whose small requests cost much: memory, strings, or time.

    python -m loadtest.drive.attacked_model DIRECTORY

exports it to DIRECTORY. This is a separate process, to keep TensorFlow out of the clients' process.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from loadtest.drive.life_slow_model import compute_for
from serving.base.errors import InvalidConfig


def export_attacked_model(directory: Path) -> None:
    """Exports a version to `directory`. Raises InvalidConfig if that fails."""
    command = [sys.executable, "-m", "loadtest.drive.attacked_model", str(directory)]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
        raise InvalidConfig(f"the attacked model could not be exported to {directory}; see above")


def export(directory: Path) -> None:
    """Exports `serving_default` (the lengths of strings), `zeros` (the sum of as many floats as asked for)
    and `slow` (computes for as many seconds as asked for).
    """
    import tensorflow as tf

    def made(function: Any, dtype: Any, shape: Any, name: str) -> Any:
        spec = tf.TensorSpec(shape, dtype, name=name)
        return tf.function(function, input_signature=[spec])

    signatures = {
        "serving_default": made(lambda x: {"y": tf.strings.length(x)}, tf.string, [None], "x"),
        "zeros": made(lambda n: {"y": tf.reduce_sum(tf.zeros([n]))}, tf.int32, [], "count"),
        "slow": made(compute_for, tf.float64, [], "seconds"),
    }
    tf.saved_model.save(tf.Module(), str(directory), signatures=signatures)


if __name__ == "__main__":
    export(Path(sys.argv[1]))
