"""State that outlives a server: rolled-back versions, and the report of a state that could not be
written.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE
from serving.manager.blocked_version_rows import FILE_NAME, read_blocked_versions
from tests.integration.clients import wait_for_states
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged, wait_for_log
from tests.integration.processes import millpond

KILL_COUNT = 2
LONG_KILL_COUNT = 20


@dataclass(frozen=True)
class Place:
    """Starts servers on one state directory, the one after the other."""

    start_server: StartServer
    config_file: Path
    state: Path
    base_paths: dict[str, Path]

    def start(self) -> ModelServer:
        return self.start_server(
            model_config_file=self.config_file,
            model_settings_file=self.config_file.with_name("settings.toml"),
            state_directory=self.state,
        )

    def blocked_on_disk(self) -> dict[str, list[int]]:
        """Returns the blocked versions of each model."""
        rows = read_blocked_versions(self.state / FILE_NAME)
        return {name: sorted(versions) for name, versions in rows.items()}


def make_place(
    start_server: StartServer,
    scale_model: ScaleModel,
    directory: Path,
    write_config: WriteConfig,
    names: Iterable[str],
) -> Place:
    """Makes models with versions 1 and 2. They keep the version before."""
    base_paths = {name: directory / name for name in names}
    for base_path in base_paths.values():
        for version in (1, 2):
            base_path.mkdir(exist_ok=True)
            scale_model.write(base_path, version)
    config_file = write_config(directory, base_paths)
    config_file.with_name("settings.toml").write_text("[default]\nkeep_previous_seconds = 600\n")
    return Place(start_server, config_file, directory / "state", base_paths)


@pytest.fixture
def place(
    start_server: StartServer, scale_model: ScaleModel, tmp_path: Path, write_config: WriteConfig
) -> Place:
    """One model, `scale`."""
    return make_place(start_server, scale_model, tmp_path, write_config, ["scale"])


# --- What a second life does ------------------------------------------------------------------------


@dataclass(frozen=True)
class SecondLife:
    """A server whose predecessor has rolled back version 2 of `kept` and `lost`, and of `allowed` too,
    which was allowed again. Version 1 of `lost` is gone.
    """

    server: ModelServer
    base_paths: dict[str, Path]


@pytest.fixture(scope="module", params=[ModelServer.stop, ModelServer.kill])
def second_life(
    request: pytest.FixtureRequest,
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
    write_config: WriteConfig,
) -> SecondLife:
    end: Callable[[ModelServer], None] = request.param
    place = make_place(
        *(start_module_server, scale_model, tmp_path_factory.mktemp("place"), write_config),
        ["kept", "lost", "allowed"],
    )
    first = place.start()
    with Client(first.admin_target) as client:
        for name in place.base_paths:
            first.wait_until_available(name, 2)
            client.rollback(name, is_cold_allowed=True)
            # The reply comes after the write.
            assert place.blocked_on_disk()[name] == [2]
            wait_for_states(client, name, {1: AVAILABLE})
        assert client.allow("allowed", 2) == ""
        assert place.blocked_on_disk() == {"kept": [2], "lost": [2]}
    end(first)
    shutil.rmtree(place.base_paths["lost"] / "1")
    return SecondLife(place.start(), place.base_paths)


def versions_loaded(server: ModelServer, name: str) -> list[object]:
    return [event["version"] for event in logged(server, "load_started", model=name)]


def test_rolled_back_version_survives_restart_blocked(second_life: SecondLife):
    server = second_life.server
    server.wait_until_available("kept", 1)
    assert versions_loaded(server, "kept") == [1]
    with Client(server.admin_target) as client:
        described = client.describe_models()["kept"]
    assert (described["default_version"], described["blocked"]) == (1, [2])
    (block,) = described["blocked_versions"]
    assert (block["version"], block["by"]) == (2, "operator")


def test_version_allowed_again_serves_after_restart(second_life: SecondLife):
    second_life.server.wait_until_available("allowed", 2)
    assert versions_loaded(second_life.server, "allowed") == [2]


def test_rolled_back_version_serves_as_fallback(second_life: SecondLife, scale_model: ScaleModel):
    server = second_life.server
    server.wait_until_available("lost", 2)
    wait_for_log(server, "last_resort_serves", model="lost")
    scale_model.write(second_life.base_paths["lost"], 1)
    server.wait_until_available("lost", 1)
    with Client(server.admin_target) as client:
        assert client.describe_models()["lost"]["default_version"] == 1


# --- Writes -------------------------------------------------------------------------------------------


def test_unwritable_state_is_logged_and_rollback_holds(place: Place):
    place.state.write_text("no directory")
    server = place.start()
    server.wait_until_available("scale", 2)
    wait_for_log(server, "blocked_versions_not_kept")
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


@pytest.mark.parametrize(
    "kill_count", [KILL_COUNT, pytest.param(LONG_KILL_COUNT, marks=pytest.mark.soak)]
)
def test_acknowledged_rollback_survives_kill(
    place: Place, scale_model: ScaleModel, kill_count: int
):
    rolled_back: list[int] = []
    for version in range(3, 3 + kill_count):
        scale_model.write(place.base_paths["scale"], version)
        server = place.start()
        server.wait_until_available("scale", version)
        with Client(server.admin_target) as client:
            assert client.describe_models()["scale"]["blocked"] == rolled_back
            client.rollback("scale", is_cold_allowed=True)
            server.kill()
        rolled_back.append(version)
    last = place.start()
    last.wait_until_available("scale", 2)
    with Client(last.admin_target) as client:
        described = client.describe_models()["scale"]
    assert (described["default_version"], described["blocked"]) == (2, rolled_back)
