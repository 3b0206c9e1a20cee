"""State that outlives a server: rolled-back versions, and the report of a state that could not be
written.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE
from serving.manager.blocked_version_rows import FILE_NAME, read_blocked_versions
from tests.integration.clients import wait_for_states
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged
from tests.integration.processes import millpond

Start = Callable[[], ModelServer]


@pytest.fixture
def start(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
) -> Start:
    """Starts a server of `scale` with versions 1 and 2, on the same state each time."""
    for version in (1, 2):
        scale_model.write(base_path, version)
    settings = tmp_path / "settings.toml"
    settings.write_text("[models.scale]\nkeep_previous_seconds = 600\n")

    def start_again() -> ModelServer:
        return start_server(
            model_name="scale",
            base_path=base_path,
            model_settings_file=settings,
            state_directory=tmp_path / "state",
        )

    return start_again


def roll_back(server: ModelServer, file: Path) -> None:
    """Rolls back version 2, loads version 1 from disk for it, and waits until the state is written."""
    server.wait_until_available("scale", 2)
    with Client(server.admin_target) as client:
        client.rollback("scale", is_cold_allowed=True)
        # The reply comes after the write.
        assert 2 in read_blocked_versions(file)["scale"]
        wait_for_states(client, "scale", {1: AVAILABLE})


def versions_loaded(server: ModelServer) -> list[object]:
    return [event["version"] for event in logged(server, "load_started")]


@pytest.mark.parametrize("end", [ModelServer.stop, ModelServer.kill])
def test_rolled_back_version_survives_restart_blocked(
    start: Start, tmp_path: Path, end: Callable[[ModelServer], None]
):
    file = tmp_path / "state" / FILE_NAME
    first = start()
    roll_back(first, file)
    end(first)

    second = start()
    second.wait_until_available("scale", 1)
    assert versions_loaded(second) == [1]
    with Client(second.admin_target) as client:
        described = client.describe_models()["scale"]
        assert (described["default_version"], described["blocked"]) == (1, [2])
        (block,) = described["blocked_versions"]
        assert (block["version"], block["by"]) == (2, "operator")
        assert client.allow("scale", 2) == ""
        assert read_blocked_versions(file) == {}
        wait_for_states(client, "scale", {2: AVAILABLE})
    second.stop()

    third = start()
    third.wait_until_available("scale", 2)
    assert versions_loaded(third) == [2]


def test_rolled_back_version_serves_as_last_resort(
    start: Start, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    first = start()
    roll_back(first, tmp_path / "state" / FILE_NAME)
    first.stop()
    shutil.rmtree(base_path / "1")

    second = start()
    second.wait_until_available("scale", 2)
    assert logged(second, "last_resort_serves")
    scale_model.write(base_path, 1)
    second.wait_until_available("scale", 1)
    with Client(second.admin_target) as client:
        assert client.describe_models()["scale"]["default_version"] == 1


def test_unwritable_state_is_logged_and_rollback_holds(start: Start, tmp_path: Path):
    (tmp_path / "state").write_text("no directory")
    server = start()
    server.wait_until_available("scale", 2)
    assert logged(server, "blocked_versions_not_kept")
    with Client(server.admin_target) as client:
        done = client.rollback("scale", is_cold_allowed=True)
        assert (done.rolled_back, done.version) == (2, None)
        assert "not on disk" in done.warning
        assert "File exists" in done.warning
        wait_for_states(client, "scale", {1: AVAILABLE})
        assert client.describe_models()["scale"]["blocked"] == [2]
    allowed = millpond("allow", "scale", "2", "--target", server.admin_target)
    assert (allowed.returncode, allowed.stdout) == (0, "scale: version 2 may serve again\n")
    assert "warning: done, and in effect until this server ends" in allowed.stderr


KILLED_ROUNDS = 20


def test_acknowledged_rollback_survives_kill(
    start: Start, scale_model: ScaleModel, base_path: Path
):
    rolled_back: list[int] = []
    for version in range(3, 3 + KILLED_ROUNDS):
        scale_model.write(base_path, version)
        server = start()
        server.wait_until_available("scale", version)
        with Client(server.admin_target) as client:
            assert client.describe_models()["scale"]["blocked"] == rolled_back
            client.rollback("scale", is_cold_allowed=True)
            server.kill()
        rolled_back.append(version)
    last = start()
    last.wait_until_available("scale", 2)
    with Client(last.admin_target) as client:
        described = client.describe_models()["scale"]
    assert (described["default_version"], described["blocked"]) == (2, rolled_back)
