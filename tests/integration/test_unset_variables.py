"""Keras models whose signature reads variables that the export did not track."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import wait_for_states
from tests.integration.conftest import StartServer
from tests.integration.exports import drop

X = np.array([[1.0, 2.0, 3.0]], np.float32)


@pytest.fixture(scope="module")
def keras_model() -> Any:
    from tensorflow import keras

    inputs = keras.Input(shape=(3,), name="x")
    normed = keras.layers.BatchNormalization(name="norm")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, name="dense")(normed))


@pytest.fixture(scope="module")
def saved_export(keras_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel as `tf.saved_model.save` writes a Keras 3 model: its variables are not in it."""
    import tensorflow as tf

    path = tmp_path_factory.mktemp("saved") / "model"

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def serve(x: Any) -> dict[str, Any]:
        return {"y": keras_model(x)}

    tf.saved_model.save(keras_model, str(path), signatures={"serving_default": serve})
    return path


@pytest.fixture(scope="module")
def good_export(keras_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "model"
    keras_model.export(str(path), verbose=False)
    return path


def test_version_with_unset_variables_never_serves(
    start_server: StartServer,
    saved_export: Path,
    good_export: Path,
    keras_model: Any,
    base_path: Path,
):
    drop(good_export, base_path, 1)
    server = start_server(model_name="m", base_path=base_path)
    server.wait_until_available("m", 1)
    drop(saved_export, base_path, 2)
    with Client(server.target) as client:
        wait_for_states(client, "m", {1: AVAILABLE, 2: END})
        (status,) = [status for status in client.model_status("m") if status.version == 2]
        assert status.error_code == StatusCode.FAILED_PRECONDITION
        assert "'dense/kernel'" in status.error_message
        assert "model.export(path)" in status.error_message
        (answer,) = client.predict("m", {"x": X}).outputs.values()
    assert np.allclose(answer, keras_model(X), rtol=1e-6)
