"""`python -m warmup` on exported models, and a server that replays the written records.

A request of `slow` computes for the seconds that it carries, so the seconds of a stage show which
requests were replayed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serving.base.tensor_proto import from_tensor_proto
from tests.integration.clients import TIMEOUT_SECONDS
from tests.integration.exports import ECHO_DTYPES, let_settle
from tests.integration.model_host import ModelHost
from warmup.prediction_log import WARM_UP_FILE, read_logs


def warmup(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "warmup", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )


@pytest.fixture
def slow_version(slow_export: Path, tmp_path: Path) -> Path:
    """Returns a copy of `slow` that a test may write to."""
    return shutil.copytree(slow_export, tmp_path / "slow")


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {"num_request_iterations_for_warmup": 2}


def test_server_replays_synthesized_records(slow_version: Path, host: ModelHost):
    result = warmup("synthesize", slow_version, "--signature=serving_default", "--count=3")
    assert result.returncode == 0, result.stderr
    assert warmup("check", slow_version).stdout.endswith(": sound\n")
    logs = list(read_logs(slow_version / WARM_UP_FILE))
    seconds = sum(
        from_tensor_proto(log.predict_log.request.inputs["seconds"]).item() for log in logs
    )
    assert len(logs) == 3
    model = host.model(prefix="slow").serve(let_settle(slow_version))
    available = model.wait_for_log("version_available", version=1)
    assert available["warm_up_seconds"] >= 2 * seconds


def test_synthesized_records_warm_every_dtype(echo_export: Path, tmp_path: Path, host: ModelHost):
    version = shutil.copytree(echo_export, tmp_path / "echo")
    result = warmup("synthesize", version, "--batch-sizes=1,8", "--int-max=2")
    assert result.returncode == 0, result.stderr
    left_out = {line.split("'")[1] for line in result.stderr.splitlines()}
    assert left_out == {f"echo_{dtype}" for dtype in ECHO_DTYPES if dtype.lstrip("u")[0] == "q"}
    assert warmup("check", version).returncode == 0
    host.model(prefix="echo").serve(let_settle(version))


def test_check_lists_records_other_model_refuses(
    echo_export: Path, slow_version: Path, tmp_path: Path
):
    output = tmp_path / "requests"
    assert warmup("synthesize", echo_export, "--signature=pick", "--output", output).returncode == 0
    (slow_version / WARM_UP_FILE).parent.mkdir(exist_ok=True)
    shutil.copy(output, slow_version / WARM_UP_FILE)
    result = warmup("check", slow_version)
    assert result.returncode == 1
    assert result.stdout == (
        "record 1: no signature 'pick'; the version has ['held', 'quick', 'serving_default']\n"
    )
