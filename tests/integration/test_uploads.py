"""Uploads to an accelerator that do not end well: of a plugin over that for CPUs, which is told how to fail."""

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from loadtest.drive.faulty_device import CRASH, FAIL, HOLD, FaultyDevice, faulty_plugin
from serving.core.servable import AVAILABLE, END
from tests.integration.accelerators import plugin_path
from tests.integration.clients import array, caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle
from tests.integration.logs import wait_for_log
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import child_processes

# 9 MiB: three transfers.
COLUMNS, WIDTH = 2_304, 1_024
PARAMETER_BYTES = 4 * COLUMNS * WIDTH
X = np.ones((2, WIDTH), np.float32)
# No more than two versions' parameters, and the memory of a run. A version that is not loaded must leave none.
QUOTA_BYTES = 5 * PARAMETER_BYTES // 2


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faulty_plugin(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Versions of one graph: each answers with the sum of a row of x, times 2304 and its number."""
    import tensorflow as tf

    made = []
    for number in (1, 2, 3):
        module = tf.Module()
        module.weights = tf.Variable(tf.fill([WIDTH, COLUMNS], float(number)))

        def serve(x: tf.Tensor, module: tf.Module = module) -> Mapping[str, tf.Tensor]:
            return {"y": tf.reduce_sum(tf.matmul(x, module.weights), axis=1)}

        spec = tf.TensorSpec([None, WIDTH], tf.float32, "x")
        directory = tmp_path_factory.mktemp("summed") / "1"
        tf.saved_model.save(
            module, str(directory), signatures=tf.function(serve, input_signature=[spec])
        )
        made.append(let_settle(directory))
    return made


class FailingServer:
    """A server with version 1 of a model on the accelerator, and the faults of its device."""

    def __init__(
        self, start: StartServer, directory: Path, plugin: Path, export: Path, **flags: object
    ) -> None:
        self.device = FaultyDevice(directory / "control", plugin_path())
        self.host = ModelHost(
            start,
            directory,
            accelerator=f"pjrt:{plugin}",
            accelerator_rows="2",
            environment=self.device.environment,
            admin_on_data_port=True,
            **flags,
        )
        settings = {"platform": "pjrt", "accelerator_memory_bytes": QUOTA_BYTES}
        self.model = self.host.model(settings=settings).serve(export)
        self.begun_count = self.device.transfer_count()
        assert self.begun_count == 2, "each later chunk of version 1"

    def wait_for_upload(self) -> None:
        """Waits until another upload is under way."""
        wait_until(lambda: self.device.transfer_count() > self.begun_count, "an upload")


StartFailing = Callable[..., FailingServer]


@pytest.fixture
def start(
    start_server: StartServer, tmp_path: Path, plugin: Path, exports: Sequence[Path]
) -> StartFailing:
    return lambda **flags: FailingServer(start_server, tmp_path, plugin, exports[0], **flags)


def assert_answers(model: HostedModel, version: int, number: int) -> None:
    with caller_to(model.server.target) as caller:
        response = caller.predict(predict_request(model.name, {"x": X}))
        assert response.model_spec.version.value == version
        assert array(response.outputs["y"]).tolist() == [WIDTH * COLUMNS * number] * 2


def assert_nothing_was_left(server: FailingServer, exports: Sequence[Path], version: int) -> None:
    """Fails unless a version that needs all the room beside version 1 has it on the accelerator."""
    server.model.serve(exports[2], version)
    server.model.wait_for_log("signature_on_accelerator", version=version)
    assert_answers(server.model, version, 3)
    server.model.wait_for_states({1: END, version: AVAILABLE})


def test_version_removed_in_its_upload(start: StartFailing, exports: Sequence[Path]) -> None:
    server = start()
    model = server.model
    server.device.tell(HOLD)
    drop(exports[1], model.base_path, 2)
    server.wait_for_upload()
    shutil.rmtree(model.base_path / "2")
    assert_answers(model, 1, 1)
    server.device.end_of(HOLD)
    model.wait_for_states({1: AVAILABLE, 2: END})
    assert_answers(model, 1, 1)
    assert_nothing_was_left(server, exports, 3)


def test_device_lost_in_an_upload(start: StartFailing, exports: Sequence[Path]) -> None:
    server = start()
    model = server.model
    server.device.tell(FAIL)
    drop(exports[1], model.base_path, 2)
    model.wait_for_states({1: AVAILABLE, 2: END})
    assert_answers(model, 1, 1)
    shutil.rmtree(model.base_path / "2")
    server.device.end_of(FAIL)
    assert_nothing_was_left(server, exports, 3)


def test_crash_in_an_upload_blocks_its_version(
    start: StartFailing, exports: Sequence[Path]
) -> None:
    server = start(supervise=True)
    model = server.model
    server.device.tell(CRASH)
    drop(exports[1], model.base_path, 2)
    event = model.wait_for_log("version_crashed")
    assert event["version"] == 2
    assert "while it loaded this version" in event["reason"]
    model.wait_until_available(1)
    assert_answers(model, 1, 1)


def test_server_killed_in_an_upload(start: StartFailing, exports: Sequence[Path]) -> None:
    server = start(supervise=True)
    model = server.model
    server.device.tell(HOLD)
    drop(exports[1], model.base_path, 2)
    server.wait_for_upload()
    os.kill(child_processes(model.server.process_id)[0], signal.SIGKILL)
    wait_for_log(model.server, "server_restarts")
    server.device.end_of(HOLD)
    model.wait_until_available(2)
    assert_answers(model, 2, 2)
    assert model.logged("version_crashed") == []
