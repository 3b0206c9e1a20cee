"""Capture: live requests of a running server become the warm-up file of the next version.

A request of `slow` computes for the seconds that it carries, so the seconds of a stage show which
requests were replayed.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np

from tests.integration.clients import array, caller_to, predict_request
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle
from tests.integration.model_host import HostedModel
from tests.integration.processes import millpond
from warmup.__main__ import main as warmup
from warmup.prediction_log import WARM_UP_FILE, has_response, read_logs

RUN_SECONDS = 0.3


def capture(model: HostedModel, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return millpond("capture", "--target", model.server.admin_target, model.name, *arguments)


def test_next_version_replays_captured_requests(
    slow: HostedModel, slow_export: Path, tmp_path: Path
):
    inputs = {"seconds": np.float64(RUN_SECONDS)}
    with caller_to(slow.server.target) as caller:
        caller.predict(predict_request(slow.name, inputs, version=1, output_filter=["rounds"]))
        inputs = {"x": np.int32(4)}
        caller.predict(predict_request(slow.name, inputs, signature_name="quick"))
    version = shutil.copytree(slow_export, tmp_path / "2")
    result = capture(slow, "--output", version, "--with-responses")
    assert result.stdout == f"{version / WARM_UP_FILE}: 2 records, 2 with a response\n", (
        result.stderr
    )
    assert warmup(["check", str(version)]) == 0
    drop(let_settle(version), slow.base_path, 2)
    available = slow.wait_for_log("version_available", version=2)
    assert available["warm_up_seconds"] >= RUN_SECONDS


def test_captured_records_hold_requests_and_answers(slow: HostedModel, tmp_path: Path):
    inputs = {"x": np.int32(4)}
    request = predict_request(slow.name, inputs, version=1, signature_name="quick")
    with caller_to(slow.server.target) as caller:
        for _ in range(3):
            caller.predict(request)
    path = tmp_path / "requests"
    assert capture(slow, "--output", path, "--with-responses").returncode == 0
    (log,) = read_logs(path)
    request.model_spec.ClearField("version")
    assert log.predict_log.request == request
    assert has_response(log)
    assert log.predict_log.response.model_spec.version.value == 1
    assert array(log.predict_log.response.outputs["y"]) == 5


def test_capture_before_requests_exits_one_with_remedy(slow: HostedModel, tmp_path: Path):
    result = capture(slow, "--output", tmp_path / "requests")
    assert result.returncode == 1
    assert "send it live traffic first" in result.stderr


def test_server_writes_recent_requests_at_its_stop(
    start_server: StartServer, slow_export: Path, base_path: Path, tmp_path: Path
):
    drop(slow_export, base_path, 1)
    directory = tmp_path / "captured"
    server = start_server(
        model_name="slow", base_path=base_path, warmup_capture_directory=directory
    )
    server.wait_until_available("slow", 1)
    with caller_to(server.target) as caller:
        caller.predict(predict_request("slow", {"x": np.int32(4)}, signature_name="quick"))
    server.stop()
    (log,) = read_logs(directory / "slow" / WARM_UP_FILE.name)
    assert array(log.predict_log.request.inputs["x"]) == 4
