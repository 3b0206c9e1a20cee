"""Loads that never end by themselves: they fail alone, and end with their version or with the server."""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LoadStage
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel, drop, let_settle, write_warm_up
from tests.integration.logs import wait_for_log
from tests.integration.model_host import ModelHost

# One loader thread: a load that ended has made room for the next one.
FLAGS: Mapping[str, object] = {"enable_batching": True, "num_load_threads": 1}
FOR_EVER = np.float64(math.inf)


class EndlessProof:
    """A model whose runs of 4 rows or more never end, so that verifying its batches does not.

    `begun` exists once such a run has begun.
    """

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


@pytest.fixture
def endless_verification(tmp_path: Path) -> EndlessProof:
    return EndlessProof(tmp_path)


@pytest.fixture(scope="module")
def endless_warm_up(slow_export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `slow` with a warm-up record that never ends."""
    directory = tmp_path_factory.mktemp("endless") / "export"
    shutil.copytree(slow_export, directory)
    write_warm_up(directory, "slow", [{"seconds": FOR_EVER}])
    return let_settle(directory)


@pytest.fixture(scope="module")
def host_flags() -> Mapping[str, object]:
    return {**FLAGS, "warmup_request_seconds": 0}


def assert_answers(server: ModelServer, name: str, version: int) -> None:
    with Client(server.target) as client:
        prediction = client.predict(name, {"x": np.int32(1)}, signature_name="quick")
    assert (prediction.version, int(prediction.outputs["y"])) == (version, 2)


def wait_for_warm_up(server: ModelServer, name: str, version: int) -> None:
    """Waits until a load is in its warm-up."""

    def is_there() -> bool:
        versions = client.describe_models()[name]["versions"]
        stages = {item["version"]: item["stage"] for item in versions}
        return stages.get(version) == LoadStage.WARM_UP.value

    with Client(server.admin_target) as client:
        wait_until(is_there, f"version {version} of {name} in its warm-up")


def test_endless_warm_up_fails_its_version_alone(
    start_server: StartServer, slow_export: Path, endless_warm_up: Path, base_path: Path
):
    drop(slow_export, base_path, 1)
    # So long that a replayed request of version 3 ends in it on a busy machine, too.
    server = start_server(model_name="slow", base_path=base_path, warmup_request_seconds=3, **FLAGS)
    server.wait_until_available("slow", 1)
    drop(endless_warm_up, base_path, 2)
    wait_for_log(server, "load_failed", version=2)
    assert_answers(server, "slow", 1)
    with Client(server.target) as client:
        (failed,) = client.model_status("slow", 2)
    assert failed.state is END
    assert "--warmup_request_seconds" in failed.error_message
    drop(slow_export, base_path, 3)
    server.wait_until_available("slow", 3)
    assert_answers(server, "slow", 3)


def test_endless_warm_up_ends_with_its_directory(
    host: ModelHost, slow_export: Path, endless_warm_up: Path
):
    model = host.model(prefix="slow").serve(slow_export)
    version = drop(endless_warm_up, model.base_path, 2)
    wait_for_warm_up(model.server, model.name, 2)
    shutil.rmtree(version)
    model.wait_for_states({1: AVAILABLE, 2: END})
    assert_answers(model.server, model.name, 1)
    model.serve(slow_export, 3)


def test_endless_verification_ends_with_its_directory(
    host: ModelHost, endless_verification: EndlessProof, scale_model: ScaleModel
):
    model = host.model(prefix="verify")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    version = drop(endless_verification.path, model.base_path, 2)
    wait_until(endless_verification.begun.exists, "a run of the verification")
    shutil.rmtree(version)
    model.wait_for_states({1: AVAILABLE, 2: END})
    # The loader thread is free again.
    scale_model.write(model.base_path, 3)
    model.wait_until_available(3)


def test_server_stops_during_endless_loads(
    start_server: StartServer,
    endless_warm_up: Path,
    endless_verification: EndlessProof,
    tmp_path: Path,
    write_config: WriteConfig,
):
    base_paths = {name: tmp_path / name for name in ("slow", "verify")}
    drop(endless_warm_up, base_paths["slow"], 1)
    drop(endless_verification.path, base_paths["verify"], 1)
    server = start_server(
        model_config_file=write_config(tmp_path, base_paths),
        enable_batching=True,
        num_load_threads=2,
        warmup_request_seconds=0,
    )
    wait_for_warm_up(server, "slow", 1)
    wait_until(endless_verification.begun.exists, "a run of the verification")
    server.stop()
