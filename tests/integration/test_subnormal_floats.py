"""Subnormal floats in a served version, against TensorFlow's session.

TensorFlow's own threads take subnormal floats for zero, and Millpond runs most graphs on threads of another
kind. `tests/native/subnormal_floats_test.cc` has each kind of graph.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import Caller, array, predict_request
from tests.integration.exports import let_settle
from tests.integration.model_host import ModelHost

Arrays = Mapping[str, Any]

SIGNATURE = "serving_default"
SUBNORMAL = np.float32(1e-40)


def export_division(directory: Path) -> Path:
    """Exports x -> `third`, `as_double`, `looped` (divided by 3 in a loop) and `initial` (a variable's)."""
    import tensorflow as tf

    module = tf.Module()
    module.subnormal = tf.Variable(SUBNORMAL)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(x: Any) -> dict[str, Any]:
        _, looped = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y / 3), (0, x))
        return {
            "third": x / 3,
            "as_double": tf.cast(x, tf.float64),
            "looped": looped,
            "initial": tf.cast(module.subnormal, tf.float64) + 0 * tf.cast(x, tf.float64),
        }

    tf.saved_model.save(module, str(directory), signatures={SIGNATURE: serve})
    return let_settle(directory)


def stock_answer(export: Path, x: Any) -> Arrays:
    """The answer of TensorFlow's session in its default configuration."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        graph = v1.saved_model.loader.load(session, ["serve"], str(export))
        signature = graph.signature_def[SIGNATURE]
        outputs = {name: info.name for name, info in signature.outputs.items()}
        answer: Arrays = session.run(outputs, {signature.inputs["x"].name: x})
        return answer


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_division(tmp_path_factory.mktemp("division") / "1")


@pytest.fixture(scope="module")
def server(module_host: ModelHost, export: Path) -> ModelServer:
    return module_host.model(name="division").serve(export).server


# The last one is so large that kernels share it with the threads of a pool.
@pytest.mark.parametrize("row_count", [1, 100, 1_000_000])
def test_subnormal_floats_are_those_of_tensorflow(caller: Caller, export: Path, row_count: int):
    x = np.resize(np.array([SUBNORMAL, -SUBNORMAL, 1, 2e-38], np.float32), row_count)
    expected = stock_answer(export, x)
    assert expected["as_double"][0] == 0, "TensorFlow does not flush subnormal floats any more"
    outputs = caller.predict(predict_request("division", {"x": x})).outputs
    assert set(outputs) == set(expected)
    for name, tensor in outputs.items():
        np.testing.assert_array_equal(array(tensor), expected[name], err_msg=name)
