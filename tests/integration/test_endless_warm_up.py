"""A version with an endless warm-up fails, and its predecessor and other versions serve."""

import math
import shutil
from pathlib import Path

import numpy as np

from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle, write_warm_up
from tests.integration.logs import logged

FOR_EVER = np.float64(math.inf)


def drop_endless(slow_export: Path, base_path: Path, version: int, tmp_path: Path) -> None:
    """Drops a version with a warm-up record that never ends."""
    directory = tmp_path / f"endless-{version}"
    shutil.copytree(slow_export, directory)
    write_warm_up(directory, "slow", [{"seconds": FOR_EVER}])
    let_settle(directory).rename(base_path / str(version))


def assert_answers(client: Client, version: int) -> None:
    prediction = client.predict("slow", {"x": np.int32(1)}, signature_name="quick")
    assert (prediction.version, int(prediction.outputs["y"])) == (version, 2)


def test_endless_warm_up_fails_its_version_alone(
    start_server: StartServer, slow_export: Path, base_path: Path, tmp_path: Path
):
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, warmup_request_seconds=0.5)
    server.wait_until_available("slow", 1)
    drop_endless(slow_export, base_path, 2, tmp_path)
    with Client(server.target) as client:
        wait_for_states(client, "slow", {1: AVAILABLE, 2: END})
        assert_answers(client, 1)
        (failed,) = (item for item in client.model_status("slow") if item.version == 2)
        assert "--warmup_request_seconds" in failed.error_message
        drop(slow_export, base_path, 3)
        wait_for_states(client, "slow", {3: AVAILABLE})
        assert_answers(client, 3)


def test_endless_warm_up_ends_with_its_directory(
    start_server: StartServer, slow_export: Path, base_path: Path, tmp_path: Path
):
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, warmup_request_seconds=0)
    server.wait_until_available("slow", 1)
    drop_endless(slow_export, base_path, 2, tmp_path)
    wait_until(lambda: logged(server, "load_started", version=2), "the load of version 2")
    shutil.rmtree(base_path / "2")
    with Client(server.target) as client:
        wait_for_states(client, "slow", {2: END})
        assert_answers(client, 1)


def test_server_stops_during_an_endless_warm_up(
    start_server: StartServer, slow_export: Path, base_path: Path, tmp_path: Path
):
    drop_endless(slow_export, base_path, 1, tmp_path)
    server = start_server(model_name="slow", base_path=base_path, warmup_request_seconds=0)
    wait_until(lambda: logged(server, "load_started", version=1), "the load")
    server.stop()
