"""The proof of batching ends with its load, even if a run of a batch never ends."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop, let_settle


class EndlessModel:
    """A model whose runs of 4 rows or more never end. `begun` exists once such a run has begun."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "export"
        self.begun = directory / "begun"
        self._export()

    def _export(self) -> None:
        import tensorflow as tf

        def note() -> Any:
            with tf.control_dependencies([tf.io.write_file(str(self.begun), "")]):
                return tf.constant(1)

        def serving_default(x: Any) -> dict[str, Any]:
            is_endless = tf.shape(x)[0] >= 4
            begun = tf.cond(is_endless, note, lambda: tf.constant(0))
            with tf.control_dependencies([begun]):
                turns = tf.while_loop(
                    lambda turn: is_endless, lambda turn: (turn + 1,), (tf.constant(0, tf.int64),)
                )
            with tf.control_dependencies(turns):
                return {"y": tf.reduce_sum(x, axis=1)}

        spec = tf.TensorSpec([None, None], tf.float32, "x")
        signatures = {"serving_default": tf.function(serving_default).get_concrete_function(x=spec)}
        tf.saved_model.save(tf.Module(), str(self.path), signatures=signatures)
        let_settle(self.path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EndlessModel:
    return EndlessModel(tmp_path_factory.mktemp("endless"))


@pytest.fixture
def server(
    start_server: StartServer, model: EndlessModel, scale_model: ScaleModel, base_path: Path
) -> ModelServer:
    """Returns a server of version 1 whose only loader thread is in an endless run of version 2's proof."""
    model.begun.unlink(missing_ok=True)
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="m",
        base_path=base_path,
        enable_batching=True,
        num_load_threads=1,
        warmup_request_seconds=0,
    )
    server.wait_until_available("m", 1)
    drop(model.path, base_path, 2)
    wait_until(model.begun.exists, "a run of the proof")
    return server


def test_removed_version_ends_its_proof(
    server: ModelServer, scale_model: ScaleModel, base_path: Path
):
    shutil.rmtree(base_path / "2")
    with Client(server.target) as client:
        wait_for_states(client, "m", {2: END})
        # The loader thread is free again.
        scale_model.write(base_path, 3)
        wait_for_states(client, "m", {3: AVAILABLE})


def test_server_stops_during_a_proof(server: ModelServer):
    server.stop()
