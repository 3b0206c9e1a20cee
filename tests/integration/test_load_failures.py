"""Failing loads: damaged files, too little memory, a version removed again.

The old version serves on.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LOADING
from tests.integration.clients import TIMEOUT_SECONDS, wait_for_states, wait_until
from tests.integration.conftest import REPOSITORY, StartServer
from tests.integration.exports import LARGE_SHARD, SMALL_SHARD, ScaleModel, drop, flip_a_byte
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import anonymous_mib
from tests.integration.steady_clients import scale_clients

X = np.array([1.0, 2.5, -3.0], np.float32)
MB = 1_000_000

# 4 MB: several of the pieces that a restore reads at once.
OFFSET_COUNT = 1_000_000


# --- Damaged checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard", "offset"),
    [(SMALL_SHARD, 0), (LARGE_SHARD, 0), (LARGE_SHARD, 2_000_001), (LARGE_SHARD, -1)],
    ids=["of_a_small_tensor", "first", "in_the_middle", "last"],
)
def test_flipped_checkpoint_byte_keeps_old_version(
    host: ModelHost, scale_model: ScaleModel, shard: str, offset: int
):
    model = host.model(prefix="flipped")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    server = model.server
    with (
        scale_clients(server.target, model.name, count=2).running() as clients,
        Client(server.target) as client,
    ):
        clients.wait_for_answers_of(1, 10)
        scale_model.write(
            model.base_path,
            2,
            offset_count=OFFSET_COUNT,
            prepare=lambda directory: flip_a_byte(directory / shard, offset),
        )
        model.wait_for_states({1: AVAILABLE, 2: END})
        clients.wait_for_answers_of(1, 10)
        (status,) = client.model_status(model.name, 2)
    assert status.error_code == StatusCode.DATA_LOSS
    assert Path(shard).name in status.error_message
    assert (clients.failures, set(clients.answer_counts)) == ([], {1})
    assert not model.logged("arena_leaked")


# --- Versions that change or go during their load ---------------------------------------------------------


@pytest.fixture(scope="module")
def slow_host(
    start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> ModelHost:
    """A server that restores 4 MB a second, and returns all memory of a load."""
    return ModelHost(
        start_module_server,
        tmp_path_factory.mktemp("slow"),
        restore_bytes_per_second=4 * MB,
        arena_spare_slabs=0,
    )


@pytest.fixture
def slow(slow_host: ModelHost, scale_model: ScaleModel) -> Iterator[HostedModel]:
    """A model whose version 1 serves, on the slow server."""
    with slow_host.models_of_a_test():
        model = slow_host.model(prefix="slow")
        scale_model.write(model.base_path, 1)
        model.wait_until_available(1)
        yield model


def wait_for_restore(model: HostedModel, version: int, restored_mib: float) -> None:
    """Waits until a load has touched so much memory that its restore is under way."""
    model.wait_for_states({version: LOADING})
    before_mib = anonymous_mib(model.server.process_id)
    wait_until(
        lambda: anonymous_mib(model.server.process_id) > before_mib + restored_mib,
        f"{restored_mib} MiB of version {version} to be restored",
    )


def test_truncated_shard_is_refused_during_restore(slow: HostedModel, scale_model: ScaleModel):
    server = slow.server
    with (
        scale_clients(server.target, slow.name, count=2).running() as clients,
        Client(server.target) as client,
    ):
        # 100 MB take 25 seconds.
        second = scale_model.write(slow.base_path, 2, offset_count=25 * OFFSET_COUNT)
        wait_for_restore(slow, 2, 4)
        os.truncate(second / LARGE_SHARD, 4_000)
        slow.wait_for_states({1: AVAILABLE, 2: END})
        failure = slow.wait_for_log("load_failed")
        # The files changed meanwhile, so the load is tried again. Then the check finds the shard short.
        assert "changed during the load" in failure["reason"]
        assert failure["will_retry"]
        (status,) = client.model_status(slow.name, 2)
        assert status.error_code == StatusCode.FAILED_PRECONDITION, status
        assert Path(LARGE_SHARD).name in status.error_message
        clients.wait_for_answers_of(1, 10)
    assert clients.failures == []
    assert not slow.logged("arena_leaked")


def test_load_ends_soon_after_directory_removal(slow: HostedModel, scale_model: ScaleModel):
    with scale_clients(slow.server.target, slow.name, count=2).running() as clients:
        clients.wait_for_answers_of(1, 10)
        before_mib = anonymous_mib(slow.server.process_id)
        # 25 seconds again.
        second = scale_model.write(slow.base_path, 2, offset_count=25 * OFFSET_COUNT)
        wait_for_restore(slow, 2, 15)
        shutil.rmtree(second)
        failed = slow.wait_for_log("load_failed", version=2)
        assert (failed["code"], failed["will_retry"]) == ("CANCELLED", False)
        # The load did not go on to the end of the restore.
        assert not slow.logged("restored", version=2)
        slow.wait_for_states({1: AVAILABLE, 2: END})
        wait_until(
            lambda: anonymous_mib(slow.server.process_id) < before_mib + 7,
            "the memory of the cancelled load to be returned",
        )
        assert not slow.logged("arena_leaked")
        scale_model.write(slow.base_path, 3)
        clients.wait_for_answers_of(3, 10)
    assert clients.failures == []


# --- Too little memory --------------------------------------------------------------------------------


def test_version_above_memory_limit_is_never_read(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        model_memory_limit_bytes=30 * MB,
        max_num_load_retries=0,
    )
    server.wait_until_available("scale", 1)
    with (
        scale_clients(server.target, count=2).running() as clients,
        Client(server.target) as client,
    ):

        def assert_refused(version: int, *words: str) -> None:
            wait_for_states(client, "scale", {version: END})
            (status,) = client.model_status("scale", version)
            assert status.error_code == StatusCode.RESOURCE_EXHAUSTED
            for word in ("--model_memory_limit_bytes is 30.0 MB", *words):
                assert word in status.error_message

        # A wrong checksum would only be found by a read.
        scale_model.write(
            base_path,
            2,
            offset_count=9 * OFFSET_COUNT,
            prepare=lambda directory: flip_a_byte(directory / LARGE_SHARD, 0),
        )
        assert_refused(2, "needs 3", "for all versions together")
        clients.wait_for_answers_of(1, 10)
        # One version of 20 MB fits, and a second one does not: old and new are in memory together
        # during a swap.
        scale_model.write(base_path, 3, offset_count=5 * OFFSET_COUNT)
        clients.wait_for_answers_of(3, 10)
        wait_for_states(client, "scale", {1: END, 3: AVAILABLE})
        scale_model.write(base_path, 4, offset_count=5 * OFFSET_COUNT)
        assert_refused(4, "the loaded versions have 2")
        clients.wait_for_answers_of(3, 10)
    assert clients.failures == []
    assert set(clients.answer_counts) == {1, 3}


# --- Keras models whose signature reads variables that the export did not track -------------------------


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
    host: ModelHost, saved_export: Path, good_export: Path, keras_model: Any
):
    x = np.array([[1.0, 2.0, 3.0]], np.float32)
    model = host.model(prefix="keras").serve(good_export)
    drop(saved_export, model.base_path, 2)
    model.wait_for_states({1: AVAILABLE, 2: END})
    with Client(model.server.target) as client:
        (status,) = client.model_status(model.name, 2)
        assert status.error_code == StatusCode.FAILED_PRECONDITION
        assert "'dense/kernel'" in status.error_message
        assert "model.export(path)" in status.error_message
        (answer,) = client.predict(model.name, {"x": x}).outputs.values()
    assert np.allclose(answer, keras_model(x), rtol=1e-6)


# --- Refused at start -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--allocator=glibc", "--allocator=jemalloc or --arena=false"),
        ("--load_priority=nonsense", "auto, idle, nice"),
    ],
)
def test_impossible_flag_is_refused_with_remedy(base_path: Path, flag: str, remedy: str):
    result = subprocess.run(
        [sys.executable, "-m", "serving", "serve", f"--model_base_path={base_path}", flag],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        cwd=REPOSITORY,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert flag.split("=", maxsplit=1)[0] in line
    assert remedy in line


def test_server_without_arenas_serves_on_glibc(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    # The remedy in the refusal of --allocator=glibc.
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, allocator="glibc", arena=False)
    server.wait_until_available("scale", 1)
    scale_model.write(base_path, 2)
    with Client(server.target) as client:
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        assert client.predict("scale", {"x": X}).version == 2
