"""A model that computes for the time in its request, on a machine of any speed.

    python -m loadtest.drive.life_slow_model DIRECTORY

exports it to DIRECTORY. This is a separate process, to keep TensorFlow out of the clients' process.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from serving.base.errors import InvalidConfig
from serving.base.protos import predict_pb2
from serving.commands.ctr_request import predict_request

SLOW_MODEL_NAME = "slow"


def prepare_slow_model(base_path: Path) -> None:
    """Exports version 1 into `base_path`. Raises InvalidConfig if the export fails."""
    base_path.mkdir(parents=True)
    command = [sys.executable, "-m", "loadtest.drive.life_slow_model", str(base_path / "1")]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
        raise InvalidConfig(f"the slow model could not be exported to {base_path}; see above")


def slow_request(seconds: float) -> predict_pb2.PredictRequest:
    """Makes a request that computes for `seconds` on one core."""
    return predict_request(SLOW_MODEL_NAME, {"seconds": np.array(seconds, np.float64)})


def compute_for(seconds: Any) -> dict[str, Any]:
    """Builds the graph, which loops over small kernels for `seconds`, float64[], and returns the count of
    turns as `rounds`.
    """
    import tensorflow as tf

    end = tf.timestamp() + seconds
    matrix = tf.eye(16)
    rounds, _ = tf.while_loop(
        lambda rounds, value: tf.timestamp() < end,
        lambda rounds, value: (rounds + 1, tf.matmul(value, matrix)),
        (tf.constant(0, tf.int64), matrix),
    )
    return {"rounds": rounds}


def export(directory: Path) -> None:
    """Exports a model whose `serving_default` is `compute_for`."""
    import tensorflow as tf

    signature = tf.function(
        compute_for, input_signature=[tf.TensorSpec([], tf.float64, name="seconds")]
    )
    tf.saved_model.save(tf.Module(), str(directory), signatures={"serving_default": signature})


if __name__ == "__main__":
    export(Path(sys.argv[1]))
