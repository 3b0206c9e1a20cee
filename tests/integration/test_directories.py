"""Directories as people and disks leave them: odd names, half copies, vanished paths."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LOADING
from tests.integration.clients import (
    NOT_SERVING,
    SERVING,
    caller_to,
    is_right,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel, drop, let_settle, write_warm_up
from tests.integration.logs import logged, wait_for_a_poll, wait_for_log

X = np.array([1.0, 2.5, -3.0], np.float32)
WAIT_SECONDS = 20


def assert_serves(server: ModelServer, version: int, name: str = "scale") -> None:
    """Asserts that the model answers with the parameters of that version."""
    with Client(server.target) as client:
        prediction = client.predict(name, {"x": X})
    assert prediction.version == version
    assert prediction.outputs["version"] == version
    assert is_right(prediction.outputs["y"], ScaleModel.answer(version, X))


def wait_for(server: ModelServer, wanted: Mapping[int, Any], name: str = "scale") -> None:
    with Client(server.target) as client:
        wait_for_states(client, name, wanted, WAIT_SECONDS)


def known_versions(server: ModelServer, name: str = "scale") -> list[int]:
    with Client(server.target) as client:
        return [status.version for status in client.model_status(name)]


@pytest.fixture
def server_of_one(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> ModelServer:
    """Serves version 1 of `scale`."""
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 1)
    return server


# --- Names ------------------------------------------------------------------------------------------


def test_source_ignores_odd_names(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    version = scale_model.write(base_path, 2)
    for name in ("abc", "3.denied", "-4", "+5", "6e1", " 7", "８", ".9.partial", "1_0", "0x0b"):
        shutil.copytree(version, base_path / name)
    (base_path / "12").write_text("a file")
    shutil.copytree(version, base_path / str(2**63))
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 2)
    wait_for_log(server, "numeric_file_ignored", name="12")
    wait_for_log(server, "version_above_int64_ignored", name=str(2**63))
    assert known_versions(server) == [2]
    assert_serves(server, 2)


def test_second_spelling_of_live_version_is_ignored(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    drop(scale_model.write(tmp_path, 7), base_path, "007")
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 7)
    drop(scale_model.write(tmp_path, 8), base_path, "7")
    wait_for_log(server, "duplicate_version_ignored", name="7", used="007")
    assert_serves(server, 7)
    assert len(logged(server, "load_started")) == 1


def test_source_symbolic_link_to_a_version_is_one(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    # Kubernetes mounts volumes like this, and people link to other places like this.
    (base_path / "5").symlink_to(scale_model.write(tmp_path, 5))
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 5)
    assert_serves(server, 5)


# --- Half copies ------------------------------------------------------------------------------------

FILES = (
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00002",
    "variables/variables.data-00001-of-00002",
)


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [_remove, _empty, _halve, _shorten])
@pytest.mark.parametrize("file", FILES)
def test_half_copied_version_waits_until_complete(
    shared_scale: tuple[ModelServer, Path, Iterator[int]],
    scale_model: ScaleModel,
    tmp_path: Path,
    file: str,
    spoil: Callable[[Path], None],
):
    server, base_path, numbers = shared_scale
    version = next(numbers)
    whole = scale_model.write(tmp_path, version, offset_count=1_000)
    beside = shutil.copytree(whole, base_path / ".partial")
    spoil(beside / file)
    let_settle(beside).rename(base_path / str(version))

    if "data-" in file or spoil is _remove:
        incomplete = wait_for_log(server, "version_incomplete", version=version)
        assert Path(file).name in incomplete["reason"]
        assert version not in known_versions(server)
    else:
        # The file is there, is still, and does not parse: the version is broken.
        wait_for_log(server, "load_failed", version=version)
        wait_for(server, {version: END, version - 1: AVAILABLE})
    assert_serves(server, version - 1)

    shutil.copy2(whole / file, base_path / str(version) / file)
    let_settle(base_path / str(version))
    wait_for(server, {version: AVAILABLE, version - 1: END})
    assert_serves(server, version)


def test_broken_version_spares_sound_one_at_restart(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    _halve(scale_model.write(base_path, 2) / "saved_model.pb")
    let_settle(base_path / "2")
    server = start_server(model_name="scale", base_path=base_path)
    wait_for(server, {1: AVAILABLE, 2: END})
    assert_serves(server, 1)


def test_version_copied_by_file_serves_once_complete(
    server_of_one: ModelServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    # This is the worst order: the graph and the index come first, and the files that they need come
    # last. let_settle is left out, so the server waits until the directory has been unchanged for a
    # second.
    whole = scale_model.write(tmp_path, 2, offset_count=1_000)
    (base_path / "2" / "variables").mkdir(parents=True)
    for file in FILES:
        shutil.copyfile(whole / file, base_path / "2" / file)
        if file != FILES[-1]:
            wait_for_a_poll(server_of_one, base_path)
            assert_serves(server_of_one, 1)
    wait_for(server_of_one, {2: AVAILABLE, 1: END})
    assert_serves(server_of_one, 2)
    assert not logged(server_of_one, "load_failed")


def test_version_without_variables_needs_no_folder(
    start_server: StartServer, echo_export: Path, base_path: Path
):
    version = drop(echo_export, base_path, 1)
    shutil.rmtree(version / "variables")
    let_settle(version)
    server = start_server(model_name="echo", base_path=base_path)
    server.wait_until_available("echo", 1)
    with Client(server.target) as client:
        answer = client.predict("echo", {"count": np.int32(2)}, signature_name="fill")
    assert answer.outputs["ones"].tolist() == [1.0, 1.0]


# --- Directories that go away -----------------------------------------------------------------------


def test_version_removed_during_load_keeps_old_one(
    start_server: StartServer, slow_export: Path, base_path: Path
):
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path)
    server.wait_until_available("slow", 1)
    # The load takes as long as its warm-up record: long enough for a removal during the load.
    second = base_path.parent / "second"
    shutil.copytree(slow_export, second)
    write_warm_up(second, "slow", [{"seconds": np.float64(1.0)}] * 2)
    drop(second, base_path, 2)
    wait_for(server, {1: AVAILABLE, 2: LOADING}, "slow")
    shutil.rmtree(base_path / "2")
    wait_for(server, {1: AVAILABLE, 2: END}, "slow")
    with Client(server.target) as client:
        (status,) = client.model_status("slow", 2)
        assert status.error_code in (StatusCode.NOT_FOUND, StatusCode.CANCELLED)
        answer = client.predict("slow", {"x": np.int32(4)}, signature_name="quick")
        assert (answer.version, answer.outputs["y"].tolist()) == (1, 5)
        # The number can be used again once a poll has seen the removal.
        wait_for_a_poll(server, base_path, "slow")
        drop(slow_export, base_path, 2)
        wait_for_states(client, "slow", {1: END, 2: AVAILABLE}, WAIT_SECONDS)


@pytest.mark.parametrize("bad", ["missing", "a_file", "empty"])
def test_one_models_bad_path_does_not_stop_the_others(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    tmp_path: Path,
    write_config: WriteConfig,
    bad: str,
):
    bad_path = tmp_path / "bad"
    if bad == "a_file":
        bad_path.write_text("no directory")
    elif bad == "empty":
        bad_path.mkdir()
    scale_model.write(base_path, 1)
    config = write_config(tmp_path, {"bad": bad_path, "good": base_path})
    server = start_server(model_config_file=config)
    server.wait_until_available("good", 1)
    expected = "no_version_in_base_path" if bad == "empty" else "base_path_unreadable"
    wait_for_log(server, expected, model="bad")
    with caller_to(server.target) as caller:
        assert (caller.health("good"), caller.health("bad")) == (SERVING, NOT_SERVING)
        assert caller.health("") == NOT_SERVING
    scale_model.write(base_path, 2)
    wait_for(server, {2: AVAILABLE, 1: END}, "good")
    assert_serves(server, 2, "good")
    # A broken version may be mended.
    if bad == "a_file":
        bad_path.unlink()
    bad_path.mkdir(exist_ok=True)
    scale_model.write(bad_path, 4)
    wait_for(server, {4: AVAILABLE}, "bad")
    assert_serves(server, 4, "bad")
    with caller_to(server.target) as caller:
        wait_until(lambda: caller.health("") == SERVING, "the whole server to be SERVING")


def test_vanished_base_path_spares_other_models(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    tmp_path: Path,
    write_config: WriteConfig,
):
    lost_path = tmp_path / "lost"
    lost_path.mkdir()
    scale_model.write(lost_path, 3)
    scale_model.write(base_path, 1)
    server = start_server(
        model_config_file=write_config(tmp_path, {"lost": lost_path, "kept": base_path})
    )
    server.wait_until_available("lost", 3)
    server.wait_until_available("kept", 1)
    shutil.rmtree(lost_path)
    wait_for_log(server, "base_path_unreadable", model="lost")
    scale_model.write(base_path, 2)
    wait_for(server, {2: AVAILABLE, 1: END}, "kept")
    assert_serves(server, 2, "kept")
    assert_serves(server, 3, "lost")


# --- Versions that change ---------------------------------------------------------------------------


def test_overwritten_live_version_stays_as_loaded(
    server_of_one: ModelServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    other = scale_model.write(tmp_path, 6)
    for file in FILES:
        shutil.copyfile(other / file, base_path / "1" / file)
    wait_for_a_poll(server_of_one, base_path)
    assert_serves(server_of_one, 1)
    _empty(base_path / "1" / "saved_model.pb")
    _empty(base_path / "1" / FILES[-1])
    wait_for_a_poll(server_of_one, base_path)
    assert_serves(server_of_one, 1)
    assert len(logged(server_of_one, "load_started")) == 1
    wait_for(server_of_one, {1: AVAILABLE})


def test_version_withdrawn_by_renaming_is_unloaded(
    server_of_one: ModelServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 2)
    wait_for(server_of_one, {1: END, 2: AVAILABLE})
    (base_path / "2").rename(base_path / "2.denied")
    wait_for(server_of_one, {1: AVAILABLE, 2: END})
    (base_path / "2.denied").rename(base_path / "2")
    wait_for(server_of_one, {1: END, 2: AVAILABLE})
    assert_serves(server_of_one, 2)
