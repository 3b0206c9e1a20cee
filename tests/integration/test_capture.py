"""Capture: live requests of a running server become the warm-up file of the next version.

A request of `slow` computes for the seconds that it carries, so the seconds of a stage show which
requests were replayed.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import Caller, array, caller_to, predict_request
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle
from tests.integration.logs import wait_for_log
from tests.integration.processes import millpond
from warmup.__main__ import main as warmup
from warmup.prediction_log import WARM_UP_FILE, has_response, read_logs

RUN_SECONDS = 0.3


def capture(server: ModelServer, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return millpond("capture", "--target", server.admin_target, *arguments)


@pytest.fixture
def server(start_server: StartServer, slow_export: Path, base_path: Path) -> ModelServer:
    """Serves version 1 of `slow`."""
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path)
    server.wait_until_available("slow", 1)
    return server


def test_next_version_replays_captured_requests(
    server: ModelServer, caller: Caller, slow_export: Path, base_path: Path, tmp_path: Path
):
    request = predict_request(
        "slow", {"seconds": np.float64(RUN_SECONDS)}, version=1, output_filter=["rounds"]
    )
    caller.predict(request)
    caller.predict(predict_request("slow", {"x": np.int32(4)}, signature_name="quick"))
    version = shutil.copytree(slow_export, tmp_path / "2")
    result = capture(server, "slow", "--output", version, "--with-responses")
    assert result.stdout == f"{version / WARM_UP_FILE}: 2 records, 2 with a response\n", (
        result.stderr
    )
    assert warmup(["check", str(version)]) == 0
    drop(let_settle(version), base_path, 2)
    available = wait_for_log(server, "version_available", version=2)
    assert available["warm_up_seconds"] >= RUN_SECONDS


def test_captured_records_hold_requests_and_answers(
    server: ModelServer, caller: Caller, tmp_path: Path
):
    request = predict_request("slow", {"x": np.int32(4)}, version=1, signature_name="quick")
    for _ in range(3):
        caller.predict(request)
    path = tmp_path / "requests"
    assert capture(server, "slow", "--output", path, "--with-responses").returncode == 0
    (log,) = read_logs(path)
    request.model_spec.ClearField("version")
    assert log.predict_log.request == request
    assert has_response(log)
    assert log.predict_log.response.model_spec.version.value == 1
    assert array(log.predict_log.response.outputs["y"]) == 5


def test_capture_before_requests_exits_one_with_remedy(server: ModelServer, tmp_path: Path):
    result = capture(server, "slow", "--output", tmp_path / "requests")
    assert result.returncode == 1
    assert "send it live traffic first" in result.stderr


def test_capture_without_kept_requests_exits_one(
    start_server: StartServer, slow_export: Path, base_path: Path, tmp_path: Path
):
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, self_warmup_requests=0)
    result = capture(server, "slow", "--output", tmp_path / "requests")
    assert result.returncode == 1
    assert "--self_warmup_requests above 0" in result.stderr


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
