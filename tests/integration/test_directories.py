"""Directories as people and disks leave them: odd names, half copies, vanished paths."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LOADING
from tests.integration.clients import NOT_SERVING, SERVING, Caller, caller_to, is_right, wait_until
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel, drop, let_settle, write_warm_up
from tests.integration.held import Held
from tests.integration.logs import wait_for_a_poll
from tests.integration.model_host import HostedModel, ModelHost

X = np.array([1.0, 2.5, -3.0], np.float32)


def assert_serves(model: HostedModel, version: int) -> None:
    """Asserts that the model answers with the parameters of that version."""
    with Client(model.server.target) as client:
        prediction = client.predict(model.name, {"x": X})
    assert prediction.version == version
    assert prediction.outputs["version"] == version
    assert is_right(prediction.outputs["y"], ScaleModel.answer(version, X))


def known_versions(model: HostedModel) -> list[int]:
    with Client(model.server.target) as client:
        return [status.version for status in client.model_status(model.name)]


@pytest.fixture
def scale(host: ModelHost, scale_model: ScaleModel) -> HostedModel:
    """A model whose version 1 serves."""
    model = host.model(prefix="scale")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    return model


# --- Names ------------------------------------------------------------------------------------------


def test_source_ignores_odd_names(host: ModelHost, scale_model: ScaleModel, base_path: Path):
    version = scale_model.write(base_path, 2)
    for name in ("abc", "3.denied", "-4", "+5", "6e1", " 7", "８", ".9.partial", "1_0", "0x0b"):
        shutil.copytree(version, base_path / name)
    (base_path / "12").write_text("a file")
    shutil.copytree(version, base_path / str(2**63))
    model = host.model(base_path, prefix="odd")
    model.wait_until_available(2)
    model.wait_for_log("numeric_file_ignored", name="12")
    model.wait_for_log("version_above_int64_ignored", name=str(2**63))
    assert known_versions(model) == [2]
    assert_serves(model, 2)


def test_second_spelling_of_live_version_is_ignored(
    host: ModelHost, scale_model: ScaleModel, tmp_path: Path
):
    model = host.model(prefix="spelt")
    drop(scale_model.write(tmp_path, 7), model.base_path, "007")
    model.wait_until_available(7)
    drop(scale_model.write(tmp_path, 8), model.base_path, "7")
    model.wait_for_log("duplicate_version_ignored", name="7", used="007")
    assert_serves(model, 7)
    assert len(model.logged("load_started")) == 1


def test_source_symbolic_link_to_a_version_is_one(
    host: ModelHost, scale_model: ScaleModel, tmp_path: Path
):
    # Kubernetes mounts volumes like this, and people link to other places like this.
    model = host.model(prefix="linked")
    (model.base_path / "5").symlink_to(scale_model.write(tmp_path, 5))
    model.wait_until_available(5)
    assert_serves(model, 5)


# --- Half copies ------------------------------------------------------------------------------------

FILES = (
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00002",
    "variables/variables.data-00001-of-00002",
)


def _remove(path: Path) -> None:
    path.unlink()


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


# Every cut of every file: tests/native/saved_model_check_test.cc.
@pytest.mark.parametrize(
    ("file", "spoil"), [(FILES[0], _remove), (FILES[1], _halve), (FILES[3], _shorten)]
)
def test_half_copied_version_waits_until_complete(
    scale: HostedModel,
    scale_model: ScaleModel,
    tmp_path: Path,
    file: str,
    spoil: Callable[[Path], None],
):
    whole = scale_model.write(tmp_path, 2, offset_count=1_000)
    beside = shutil.copytree(whole, scale.base_path / ".partial")
    spoil(beside / file)
    version = let_settle(beside).rename(scale.base_path / "2")
    if spoil is _halve:
        # The file is there, is still, and does not parse: the version is broken.
        scale.wait_for_log("load_failed", version=2)
        scale.wait_for_states({1: AVAILABLE, 2: END})
    else:
        incomplete = scale.wait_for_log("version_incomplete", version=2)
        assert Path(file).name in incomplete["reason"]
        assert known_versions(scale) == [1]
    assert_serves(scale, 1)

    shutil.copy2(whole / file, version / file)
    let_settle(version)
    scale.wait_for_states({1: END, 2: AVAILABLE})
    assert_serves(scale, 2)


def test_pipe_in_a_version_stops_no_source(scale: HostedModel, scale_model: ScaleModel):
    def make_pipe(directory: Path) -> None:
        (directory / FILES[0]).unlink()
        os.mkfifo(directory / FILES[0])

    version = scale_model.write(scale.base_path, 2, prepare=make_pipe)
    note = scale.wait_for_log("version_incomplete", version=2)
    assert f"{FILES[0]} is a named pipe" in str(note["reason"])
    # The same source finds later versions, and the broken version once it is mended.
    scale_model.write(scale.base_path, 3)
    scale.wait_until_available(3)
    (version / FILES[0]).unlink()
    shutil.rmtree(scale.base_path / "3")
    shutil.copytree(scale.base_path / "1", version, dirs_exist_ok=True)
    let_settle(version)
    scale.wait_until_available(2)


def test_broken_version_spares_sound_one_at_start(
    host: ModelHost, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    _halve(scale_model.write(base_path, 2) / "saved_model.pb")
    let_settle(base_path / "2")
    model = host.model(base_path, prefix="broken")
    model.wait_for_states({1: AVAILABLE, 2: END})
    assert_serves(model, 1)


def test_lower_version_serves_if_newer_ones_fail(
    host: ModelHost, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    for version in (2, 3):
        scale_model.write(base_path, version, prepare=_add_failing_warm_up)
    model = host.model(base_path, prefix="spoiled")
    model.wait_for_states({1: AVAILABLE, 2: END, 3: END})
    assert_serves(model, 1)
    # A version that is mended in place is loaded.
    shutil.copytree(base_path / "1", base_path / "3", dirs_exist_ok=True)
    write_warm_up(base_path / "3", model.name, [{"x": np.zeros(1, np.float32)}])
    let_settle(base_path / "3")
    model.wait_for_states({1: END, 2: END, 3: AVAILABLE})


def _add_failing_warm_up(version: Path) -> None:
    write_warm_up(version, "spoiled", [{"unknown": np.zeros(1, np.float32)}])


def test_version_copied_by_file_serves_once_complete(
    scale: HostedModel, scale_model: ScaleModel, tmp_path: Path
):
    # This is the worst order: the graph and the index come first, and the files that they need come
    # last. let_settle is left out, so the server waits until the directory has been unchanged for a
    # second.
    whole = scale_model.write(tmp_path, 2, offset_count=1_000)
    version = scale.base_path / "2"
    (version / "variables").mkdir(parents=True)
    for file in FILES:
        shutil.copyfile(whole / file, version / file)
        if file != FILES[-1]:
            wait_for_a_poll(scale.server, scale.base_path, scale.name)
            assert_serves(scale, 1)
    scale.wait_for_states({2: AVAILABLE, 1: END})
    assert_serves(scale, 2)
    assert not scale.logged("load_failed")


def test_version_without_variables_needs_no_folder(host: ModelHost, echo_export: Path):
    model = host.model(prefix="echo")
    beside = drop(echo_export, model.base_path, "1.prepared")
    shutil.rmtree(beside / "variables")
    let_settle(beside).rename(model.base_path / "1")
    model.wait_until_available(1)
    with Client(model.server.target) as client:
        answer = client.predict(model.name, {"count": np.int32(2)}, signature_name="fill")
    assert answer.outputs["ones"].tolist() == [1.0, 1.0]


# --- Directories that go away -----------------------------------------------------------------------


def test_version_removed_during_load_keeps_old_one(
    host: ModelHost, slow_export: Path, tmp_path: Path
):
    model = host.model(prefix="slow").serve(slow_export, 1)
    # The load takes as long as its warm-up record: long enough for a removal during the load.
    second = shutil.copytree(slow_export, tmp_path / "second")
    write_warm_up(second, model.name, [{"seconds": np.float64(np.inf)}])
    drop(second, model.base_path, 2)
    model.wait_for_states({1: AVAILABLE, 2: LOADING})
    # Before, the load may be refused for a directory that is half removed.
    model.wait_for_log("restored", version=2)
    shutil.rmtree(model.base_path / "2")
    model.wait_for_states({1: AVAILABLE, 2: END})
    with Client(model.server.target) as client:
        (status,) = client.model_status(model.name, 2)
        assert status.error_code in (StatusCode.NOT_FOUND, StatusCode.CANCELLED)
        answer = client.predict(model.name, {"x": np.int32(4)}, signature_name="quick")
    assert (answer.version, answer.outputs["y"].tolist()) == (1, 5)
    # The number can be used again once a poll has seen the removal.
    wait_for_a_poll(model.server, model.base_path, model.name)
    model.serve(slow_export, 2)
    model.wait_for_states({1: END, 2: AVAILABLE})


@pytest.mark.parametrize("bad", ["missing", "a_file", "empty"])
def test_one_models_bad_path_does_not_stop_the_others(
    scale: HostedModel, host: ModelHost, scale_model: ScaleModel, tmp_path: Path, bad: str
):
    bad_path = tmp_path / "bad"
    if bad == "a_file":
        bad_path.write_text("no directory")
    elif bad == "empty":
        bad_path.mkdir()
    model = host.model(bad_path, prefix="bad")
    model.wait_for_log("no_version_in_base_path" if bad == "empty" else "base_path_unreadable")
    with caller_to(scale.server.target) as caller:
        # Health follows the states on its own thread.
        wait_until(lambda: _health(caller, model.name) == NOT_SERVING, "the bad model's health")
        assert caller.health(scale.name) == SERVING
        scale_model.write(scale.base_path, 2)
        scale.wait_for_states({2: AVAILABLE, 1: END})
        assert_serves(scale, 2)
        # A broken version may be mended.
        if bad == "a_file":
            bad_path.unlink()
        bad_path.mkdir(exist_ok=True)
        scale_model.write(bad_path, 4)
        model.wait_until_available(4)
        assert_serves(model, 4)
        wait_until(lambda: caller.health(model.name) == SERVING, "the health of the mended model")


def _health(caller: Caller, service: str) -> int | None:
    """Returns the status of the service, or None if the server does not know it yet."""
    try:
        return caller.health(service)
    except grpc.RpcError:
        return None


def test_one_models_bad_path_keeps_server_not_serving(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    tmp_path: Path,
    write_config: WriteConfig,
):
    scale_model.write(base_path, 1)
    bad_path = tmp_path / "bad"
    server = start_server(
        model_config_file=write_config(tmp_path, {"bad": bad_path, "good": base_path})
    )
    server.wait_until_available("good", 1)
    with caller_to(server.target) as caller:
        wait_until(lambda: caller.health("good") == SERVING, "the good model to be SERVING")
        assert (caller.health("bad"), caller.health("")) == (NOT_SERVING, NOT_SERVING)
        bad_path.mkdir()
        scale_model.write(bad_path, 4)
        wait_until(lambda: caller.health("") == SERVING, "the whole server to be SERVING")


def test_vanished_base_path_spares_other_models(
    scale: HostedModel, host: ModelHost, scale_model: ScaleModel
):
    lost = host.model(prefix="lost")
    scale_model.write(lost.base_path, 3)
    lost.wait_until_available(3)
    shutil.rmtree(lost.base_path)
    lost.wait_for_log("base_path_unreadable")
    scale_model.write(scale.base_path, 2)
    scale.wait_for_states({2: AVAILABLE, 1: END})
    assert_serves(scale, 2)
    assert_serves(lost, 3)


@pytest.mark.usefixtures("scale")  # The server is up, so its start does not wait for this load.
def test_base_path_away_during_a_load_costs_no_version(
    host: ModelHost, slow_export: Path, held: Held, base_path: Path, tmp_path: Path
):
    version = shutil.copytree(slow_export, base_path / "1")
    write_warm_up(version, "slow", [held.inputs], signature_name="held")
    let_settle(version)
    model = host.model(base_path, prefix="away")
    model.wait_for_states({1: LOADING})
    away = base_path.rename(tmp_path / "away")
    held.release()
    model.wait_for_states({1: END})
    away.rename(base_path)
    model.wait_until_available(1)


# --- Versions that change ---------------------------------------------------------------------------


def test_overwritten_live_version_stays_as_loaded(
    scale: HostedModel, scale_model: ScaleModel, tmp_path: Path
):
    version, other = scale.base_path / "1", scale_model.write(tmp_path, 6)
    for file in FILES:
        shutil.copyfile(other / file, version / file)
    wait_for_a_poll(scale.server, scale.base_path, scale.name)
    assert_serves(scale, 1)
    for file in (FILES[0], FILES[-1]):
        (version / file).write_bytes(b"")
    wait_for_a_poll(scale.server, scale.base_path, scale.name)
    assert_serves(scale, 1)
    assert len(scale.logged("load_started")) == 1
    scale.wait_for_states({1: AVAILABLE})


def test_version_withdrawn_by_renaming_is_unloaded(scale: HostedModel, scale_model: ScaleModel):
    path = scale_model.write(scale.base_path, 2)
    scale.wait_for_states({1: END, 2: AVAILABLE})
    denied = path.rename(path.with_name("2.denied"))
    scale.wait_for_states({1: AVAILABLE, 2: END})
    denied.rename(path)
    scale.wait_for_states({1: END, 2: AVAILABLE})
    assert_serves(scale, 2)
