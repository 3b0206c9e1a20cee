"""Base paths that hang or lead nowhere: each stops its own model only."""

import os
import shutil
from pathlib import Path

import pytest

from serving.client import Client
from serving.core.servable import AVAILABLE
from tests.integration.clients import wait_for_states, wait_until
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel, let_settle
from tests.integration.logs import wait_for_log


def thread_count(process_id: int) -> int:
    return len(os.listdir(f"/proc/{process_id}/task"))


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index", "fingerprint.pb"])
def test_pipe_in_a_version_stops_no_source(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, name: str
):
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 1)
    version = scale_model.write(base_path, 2, prepare=lambda directory: _make_pipe(directory, name))
    note = wait_for_log(server, "version_incomplete", version=2)
    assert f"{name} is a named pipe" in str(note["reason"])
    with Client(server.admin_target) as client:
        # The same source finds later versions, and the broken version once it is mended.
        scale_model.write(base_path, 3)
        wait_for_states(client, "scale", {3: AVAILABLE})
        (version / name).unlink()
        shutil.rmtree(base_path / "3")
        shutil.copytree(base_path / "1", version, dirs_exist_ok=True)
        let_settle(version)
        wait_for_states(client, "scale", {2: AVAILABLE})


def _make_pipe(directory: Path, name: str) -> None:
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name)


def test_bad_paths_need_no_threads(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    tmp_path: Path,
    write_config: WriteConfig,
):
    scale_model.write(base_path, 1)
    alone = start_server(model_name="good", base_path=base_path)
    alone.wait_until_available("good", 1)
    few_count = thread_count(alone.process_id)
    alone.stop()
    paths = {f"bad-{number}": tmp_path / f"nowhere-{number}" for number in range(300)}
    server = start_server(model_config_file=write_config(tmp_path, {**paths, "good": base_path}))
    server.wait_until_available("good", 1)
    with Client(server.admin_target) as client:

        def are_all_noted() -> bool:
            models = client.describe_models()
            return all(models[name]["notes"] for name in paths)

        wait_until(are_all_noted, "each bad path to be reported", 60)
    assert thread_count(server.process_id) <= few_count + 20
