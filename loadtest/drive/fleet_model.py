"""A small model in three variants, for fleets: a good one, a slow one, and one that answers NaN.

    python -m loadtest.drive.fleet_model DIRECTORY

exports them to DIRECTORY. This is a separate process, to keep TensorFlow out of the clients' process.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.drive.crashing_model import link_version
from loadtest.drive.traffic import Answer
from serving.base.errors import InvalidConfig
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto
from serving.commands.ctr_request import predict_request

MODEL_NAME = "fleet"
GOOD, SLOW, NAN = "good", "slow", "nan"

SLOW_SECONDS = 0.01
"""The processor time of the slow variant's requests. The good one takes less than a hundredth of it."""

_X = np.arange(8, dtype=np.float32)


class FleetModel:
    """The variants, and a base path to which they are dropped as versions."""

    def __init__(self, directory: Path) -> None:
        """Exports the variants to `directory/exports`, unless they are there. Raises InvalidConfig if that fails."""
        self._exports = directory / "exports"
        self.base_path = directory / "base"
        self.base_path.mkdir(parents=True)
        if self._exports.exists():
            return
        command = [sys.executable, "-m", "loadtest.drive.fleet_model", str(self._exports)]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            raise InvalidConfig(f"the model could not be exported to {self._exports}; see above")

    def drop(self, variant: str, version: int) -> None:
        """Drops a variant as a version."""
        link_version(self._exports / variant, self.base_path, version)


def request() -> predict_pb2.PredictRequest:
    return predict_request(MODEL_NAME, {"x": _X})


def answer_of(response: predict_pb2.PredictResponse) -> Answer:
    """Reads the version that answered, and checks the answer."""
    is_right = np.array_equal(from_tensor_proto(response.outputs["y"]), _X * 2 + 1)
    return Answer(response.model_spec.version.value, is_right)


def export(directory: Path) -> None:
    """Exports `y = 2 x + 1` in each variant."""
    import tensorflow as tf

    module = tf.Module()
    module.scale, module.offset = tf.Variable(2.0), tf.Variable(1.0)

    def good(x: Any) -> dict[str, Any]:
        return {"y": x * module.scale + module.offset}

    def slow(x: Any) -> dict[str, Any]:
        end = tf.timestamp() + SLOW_SECONDS
        (rounds,) = tf.while_loop(
            lambda rounds: tf.timestamp() < end, lambda rounds: (rounds + 1,), (tf.constant(0.0),)
        )
        # The number of turns changes nothing, but the graph must depend on it.
        return {"y": x * module.scale + module.offset + tf.minimum(rounds, 0.0)}

    def nan(x: Any) -> dict[str, Any]:
        return {"y": x * module.scale * float("nan")}

    for name, variant in ((GOOD, good), (SLOW, slow), (NAN, nan)):
        signature = tf.function(
            variant, input_signature=[tf.TensorSpec([None], tf.float32, name="x")]
        )
        tf.saved_model.save(module, str(directory / name), signatures=signature)


if __name__ == "__main__":
    export(Path(sys.argv[1]))
