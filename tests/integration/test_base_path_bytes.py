"""Base paths whose bytes are not UTF-8: Linux has them, and text has not."""

import os
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.integration.clients import (
    Caller,
    array,
    caller_to,
    is_right,
    predict_request,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import wait_for_log
from tests.integration.processes import millpond

X = np.array([1, 2, 3], np.float32)

NAME = b"caf\xe9"
SHOWN = r"caf\xe9"


def write(scale_model: ScaleModel, base_path: Path, version: int) -> None:
    """Writes a version elsewhere and moves it: TensorFlow's own writer takes only text."""
    elsewhere = base_path.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    scale_model.write(elsewhere, version)
    (elsewhere / str(version)).rename(base_path / str(version))


@pytest.fixture
def base_path(tmp_path: Path, scale_model: ScaleModel) -> Path:
    """A base path with version 1."""
    path = tmp_path / os.fsdecode(NAME)
    path.mkdir()
    write(scale_model, path, 1)
    return path


def answering(caller: Caller, version: int, model: str = "m") -> bool:
    response = caller.predict(predict_request(model, {"x": X}))
    right = is_right(array(response.outputs["y"]), ScaleModel.answer(version, X))
    return bool(right and response.model_spec.version.value == version)


def config_of(base_path: Path) -> bytes:
    quoted = os.fsencode(base_path)
    return b'model_config_list { config { name: "m" base_path: "%s" } }' % quoted


def test_base_path_of_bytes_by_flag(
    start_server: StartServer, base_path: Path, scale_model: ScaleModel
) -> None:
    server = start_server(model_base_path=base_path)
    server.wait_until_available("default", 1)
    with caller_to(server.target) as caller:
        assert answering(caller, 1, "default")
        # A version that cannot be loaded: its error names the path, and everybody can read it.
        (base_path / "2").mkdir()
        (base_path / "2" / "saved_model.pb").write_bytes(b"torn")
        event = wait_for_log(server, "load_failed", version=2)
        write(scale_model, base_path, 3)
        wait_until(lambda: answering(caller, 3, "default"), "version 3")
    assert SHOWN in str(event["reason"])
    for path in ("/metrics", "/v1/page", "/v1/swaps", "/v1/models/default"):
        assert httpx.get(f"{server.url}{path}").status_code == 200, path
    shown = millpond("status", "--target", server.admin_target)
    assert (shown.returncode, shown.stderr.strip()) == (0, f"server {server.admin_target}")


def test_base_path_of_bytes_by_config_file_and_rpc(
    start_server: StartServer, base_path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "models.config"
    file.write_bytes(config_of(base_path))
    server = start_server(model_config_file=file, model_config_file_poll_wait_seconds=0.05)
    server.wait_until_available("m", 1)
    again = millpond("config", "plan", file, "--target", server.admin_target)
    assert (again.stdout, again.stderr) == ("no changes\n", "")
    moved = base_path.with_name(os.fsdecode(b"moved\xff"))
    os.rename(base_path, moved)
    file.write_bytes(config_of(moved))
    event = wait_for_log(server, "config_changed")
    assert r"moved\xff" in " ".join(event["changes"])
    with caller_to(server.target) as caller:
        assert answering(caller, 1)
    sent = tmp_path / "sent.config"
    sent.write_bytes(config_of(base_path))
    applied = millpond("config", "apply", sent, "--target", server.admin_target)
    assert applied.returncode == 0, applied.stderr


def test_waiting_model_shows_its_base_path_of_bytes(
    start_server: StartServer, tmp_path: Path
) -> None:
    empty = tmp_path / os.fsdecode(NAME)
    empty.mkdir()
    server = start_server(model_base_path=empty, listen_before_ready=True)
    wait_for_log(server, "no_version_in_base_path")
    ready = httpx.get(f"{server.url}/readyz")
    assert ready.status_code == 503
    page = httpx.get(f"{server.url}/v1/page")
    assert SHOWN in page.json()["waiting"][0]["base_path"]
