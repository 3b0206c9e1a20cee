"""A model that mixes the rows of a run only if a rare value is among them, and clients that check its
answers.

    python -m loadtest.drive.mixing_model DIRECTORY

exports it to DIRECTORY. This is a separate process, to keep TensorFlow out of the clients' process. If a
server runs requests of several clients together, and takes a few samples as evidence that rows are
independent, it answers wrongly here as soon as a rare request is among them.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np

from loadtest.drive.traffic import Answer, Send, Traffic
from serving.base.clock import Clock
from serving.base.errors import InvalidConfig
from serving.base.tensor_proto import from_tensor_proto
from serving.client.stubs import PredictionServiceStub
from serving.commands.ctr_request import predict_request

MODEL_NAME = "mixing"

BURST = 8
"""Requests that are sent at once, so that a server which batches runs some of them together."""

_BURSTS_PER_SECOND = 10
_THREAD_COUNT = 2
_RARE = np.float32(777)
_RARE_SHARE = 0.02
_ROWS_MAX = 4
_TIMEOUT_SECONDS = 10

_Array = np.ndarray[Any, Any]


def write_mixing_model(base_path: Path) -> None:
    """Exports version 1 of the model to `base_path`. Raises InvalidConfig if that fails."""
    path = base_path / "1"
    command = [sys.executable, "-m", "loadtest.drive.mixing_model", str(path)]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
        raise InvalidConfig(f"the model could not be exported to {path}; see above")


def inputs_of(burst: int) -> list[_Array]:
    """Draws the inputs of one burst, float32[rows] each; some have the rare value."""
    dice = Random(burst)
    arrays = []
    for _ in range(BURST):
        x = np.array([dice.uniform(-5, 5) for _ in range(dice.randint(1, _ROWS_MAX))], np.float32)
        if dice.random() < _RARE_SHARE:
            x[dice.randrange(len(x))] = _RARE
        arrays.append(x)
    return arrays


def expected(x: _Array) -> _Array:
    """The right answer to a request that runs alone: float32[rows]."""
    doubled = x * np.float32(2)
    return doubled if (x == _RARE).any() else x


def sender(stub: Any) -> Send:
    """Makes a `Send` of one burst, whose answer is right if the answers to all its requests are."""

    def send(burst: int) -> Answer:
        arrays = inputs_of(burst)
        calls = [
            stub.Predict.future(predict_request(MODEL_NAME, {"x": x}), timeout=_TIMEOUT_SECONDS)
            for x in arrays
        ]
        answers = [call.result() for call in calls]
        is_right = all(
            np.array_equal(from_tensor_proto(answer.outputs["y"]), expected(x))
            for x, answer in zip(arrays, answers, strict=True)
        )
        return Answer(answers[0].model_spec.version.value, is_right)

    return send


@contextmanager
def mixing_clients(target: str, clock: Clock) -> Iterator[Traffic]:
    """Sends bursts to the model at `target` until the end of `with`; the outcomes are of bursts."""
    with ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(target))
        traffic = Traffic(
            sender(PredictionServiceStub(channel)),
            rate_per_second=_BURSTS_PER_SECOND,
            thread_count=_THREAD_COUNT,
            clock=clock,
        )
        yield stack.enter_context(traffic)


def export(directory: Path) -> None:
    """Exports `y = x`, and `y = 2 x` for all rows of a run in which a row has the rare value."""
    import tensorflow as tf

    def serving_default(x: Any) -> dict[str, Any]:
        has_rare = tf.reduce_any(tf.equal(x, _RARE))
        return {"y": tf.cond(has_rare, lambda: 2 * x, lambda: tf.identity(x))}

    signature = tf.function(
        serving_default, input_signature=[tf.TensorSpec([None], tf.float32, name="x")]
    )
    tf.saved_model.save(tf.Module(), str(directory), signatures=signature)


if __name__ == "__main__":
    export(Path(sys.argv[1]))
