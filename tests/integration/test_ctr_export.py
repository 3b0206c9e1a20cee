"""The exported CTR model, run by TensorFlow, against the reference answer computed without
TensorFlow.
"""

import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from loadtest.drive.ctr_deltas import delta_model, write_deltas
from loadtest.drive.demo_model import DemoModel
from loadtest.plan.ctr_deltas import changed_ids, delta_answer
from serving.base.clock import SystemClock
from serving.base.errors import FailedPrecondition
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto
from serving.commands.ctr_export import export_ctr_model
from serving.commands.ctr_model import reference_answer, request_inputs
from serving.core.cancellation import Cancellation
from tests.integration.processes import millpond
from warmup.replay import WARM_UP_FILE, warm_up

TABLE_ROWS = 100


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ctr")
    for version in (1, 2):
        export_ctr_model(directory, version, table_rows=TABLE_ROWS)
    return directory


@pytest.fixture(scope="module")
def deltas(tmp_path_factory: pytest.TempPathFactory) -> DemoModel:
    directory = tmp_path_factory.mktemp("deltas")
    write_deltas(directory, TABLE_ROWS)
    return delta_model(directory, TABLE_ROWS)


@pytest.mark.parametrize("version", [1, 2])
def test_exported_ctr_model_answers_as_the_reference(directory: Path, version: int):
    inputs = request_inputs(3, 25, TABLE_ROWS)
    inputs["sparse"][0] = 10**12
    inputs["sparse"][1] = -1
    predict = tf.saved_model.load(str(directory / str(version))).signatures["serving_default"]
    outputs = predict(**{name: tf.constant(array) for name, array in inputs.items()})
    expected = reference_answer(version, inputs, TABLE_ROWS)
    np.testing.assert_allclose(outputs["ctr"].numpy(), expected, atol=1e-5)
    assert outputs["version"].numpy().tolist() == [version] * 25


@pytest.mark.parametrize("delta", [1, 2])
def test_ctr_delta_answers_as_its_reference(deltas: DemoModel, delta: int):
    inputs = request_inputs(3, 25, TABLE_ROWS)
    path = (deltas.base_path if delta == 1 else deltas.staged) / str(delta)
    predict = tf.saved_model.load(str(path)).signatures["serving_default"]
    outputs = predict(**{name: tf.constant(array) for name, array in inputs.items()})
    expected = delta_answer(delta, inputs, TABLE_ROWS)
    np.testing.assert_allclose(outputs["ctr"].numpy(), expected, atol=1e-5)
    assert (path / WARM_UP_FILE).exists()


def test_ctr_deltas_link_to_one_base(deltas: DemoModel):
    shard = "variables/variables.data-00000-of-00002"
    one, two = deltas.base_path / "1" / shard, deltas.staged / "2" / shard
    assert one.samefile(two)
    assert changed_ids(1, TABLE_ROWS).tolist() == [1]


def test_exported_ctr_model_has_mixed_warm_up_records(directory: Path):
    row_counts = []

    def ask(method: str, request: bytes) -> bytes:
        assert method == "Predict"
        message = predict_pb2.PredictRequest.FromString(request)
        assert message.model_spec.name == directory.name
        row_counts.append(len(from_tensor_proto(message.inputs["sparse"])))
        return b""

    result = warm_up(directory / "1", ask, Cancellation(), iterations=1, clock=SystemClock())
    assert result.record_count == len(row_counts) == 3
    assert row_counts == [1, 10, 100]


def test_export_ctr_model_leaves_only_versions_behind(directory: Path):
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2"]


def test_export_ctr_model_keeps_existing_version(directory: Path):
    before = (directory / "1" / "saved_model.pb").stat().st_mtime_ns
    with pytest.raises(FailedPrecondition, match="is there already"):
        export_ctr_model(directory, 1, table_rows=TABLE_ROWS)
    assert (directory / "1" / "saved_model.pb").stat().st_mtime_ns == before


def test_export_ctr_model_may_omit_warm_up_records(tmp_path: Path):
    path = export_ctr_model(tmp_path, 3, table_rows=10, with_warm_up=False)
    assert not (path / "assets.extra").exists()


def test_demo_model_prints_only_path(tmp_path: Path):
    result = millpond("demo-model", tmp_path, "--version=4", "--rows=10")
    assert (result.returncode, result.stdout) == (0, f"{tmp_path / '4'}\n"), result.stderr
    assert "oneDNN" not in result.stderr


def test_demo_model_on_failing_disk_leaves_nothing(tmp_path: Path):
    command = [sys.executable, "-m", "serving", "demo-model", str(tmp_path), "--version=4"]
    result = subprocess.run(
        [*command, "--rows=1000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        # This imitates a full disk: TensorFlow writes files larger than this limit.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert result.returncode == 1
    assert f"millpond demo-model: {tmp_path}/4: " in result.stderr.splitlines()[-1]
    assert not {"Traceback", "oneDNN"} & set(re.findall(r"\w+", result.stderr))
    assert list(tmp_path.iterdir()) == []
