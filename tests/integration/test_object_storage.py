"""Base paths in object storage, on a real S3 server: uploads, failures, slow links, removals."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from loadtest.drive.s3_server import BUCKET, SECRET, S3Server, s3_environment, s3_server
from serving import ModelServer
from serving.base.clock import SystemClock
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from serving.storage.version_copy import partial_directory
from tests.integration.clients import is_right, wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged, wait_for_log
from tests.integration.processes import millpond
from tests.integration.slow_link import SlowLink

URL = f"s3://{BUCKET}/scale"
X = np.array([1.0, 2.5], np.float32)
# Two shards of 400 KB.
OFFSET_COUNT = 200_000

StartStored = Callable[..., ModelServer]


@pytest.fixture(scope="module")
def module_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log", SystemClock()) as server:
        yield server


@pytest.fixture
def s3(module_s3: S3Server) -> S3Server:
    module_s3.remove("scale")
    return module_s3


@pytest.fixture
def link(s3: S3Server) -> Iterator[SlowLink]:
    with SlowLink(s3.port) as link:
        yield link


@pytest.fixture
def start(
    start_server: StartServer, link: SlowLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartStored]:
    for name, value in s3_environment(link.port).items():
        monkeypatch.setenv(name, value)
    started: list[ModelServer] = []

    def start(**flags: object) -> ModelServer:
        settings = {
            "model_name": "scale",
            "base_path": URL,
            "model_cache_directory": tmp_path / "cache",
            "model_store_poll_wait_seconds": 1,
        }
        server = start_server(**{**settings, **flags})
        started.append(server)
        return server

    yield start
    for server in started:
        assert SECRET not in server.log_path.read_text()


@pytest.fixture
def write(scale_model: ScaleModel, tmp_path: Path) -> Callable[[int], Path]:
    """Writes a version to a local directory, from which tests upload it."""
    return lambda version: scale_model.write(
        tmp_path / "exports", version, offset_count=OFFSET_COUNT
    )


def assert_serves(server: ModelServer, version: int) -> None:
    with Client(server.target) as client:
        prediction = client.predict("scale", {"x": X})
    assert prediction.version == version
    assert is_right(prediction.outputs["y"], ScaleModel.answer(version, X))


def mirror_directory(tmp_path: Path) -> Path:
    (mirror,) = (path for path in (tmp_path / "cache").iterdir() if path.name[0] != ".")
    return mirror


def cached(tmp_path: Path) -> set[str]:
    """Returns the entries of the model's directory in the cache."""
    return {path.name for path in mirror_directory(tmp_path).iterdir()}


def test_uploaded_versions_are_swapped(
    s3: S3Server, start: StartStored, write: Callable[[int], Path], tmp_path: Path
):
    s3.upload(write(1), "scale/1")
    server = start()
    server.wait_until_available("scale", 1)
    assert_serves(server, 1)
    s3.upload(write(2), "scale/2")
    server.wait_until_available("scale", 2)
    assert_serves(server, 2)
    assert cached(tmp_path) == {"1", "2"}
    with Client(server.target) as client:
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})


def test_version_removed_from_the_store_is_unloaded(
    s3: S3Server, start: StartStored, write: Callable[[int], Path], tmp_path: Path
):
    s3.upload(write(1), "scale/1")
    s3.upload(write(2), "scale/2")
    server = start()
    server.wait_until_available("scale", 2)
    s3.remove("scale/2")
    server.wait_until_available("scale", 1)
    assert_serves(server, 1)
    assert "2" not in cached(tmp_path)
    s3.remove("scale/1")
    wait_for_log(server, "last_version_gone_from_store")
    assert_serves(server, 1)


def test_half_written_upload_is_not_served(
    s3: S3Server, start: StartStored, write: Callable[[int], Path], tmp_path: Path
):
    s3.upload(write(1), "scale/1")
    server = start()
    server.wait_until_available("scale", 1)
    second = write(2)
    s3.upload_file(second / "saved_model.pb", "scale/2/saved_model.pb")
    for path in sorted((second / "variables").iterdir())[:-1]:
        s3.upload_file(path, f"scale/2/variables/{path.name}")
    wait_for_log(server, "version_incomplete", version=2)
    assert cached(tmp_path) == {"1"}
    assert_serves(server, 1)
    s3.upload(second, "scale/2")
    server.wait_until_available("scale", 2)
    assert_serves(server, 2)


def test_broken_connections_lose_no_progress(
    s3: S3Server, start: StartStored, link: SlowLink, write: Callable[[int], Path]
):
    version = write(1)
    s3.upload(version, "scale/1")
    size = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
    link.cut_after_bytes, link.cuts_left = 150_000, 20
    server = start()
    server.wait_until_available("scale", 1)
    assert link.cuts_left < 20
    assert_serves(server, 1)
    # Each cut loses one read at most.
    assert link.passed_bytes < 6 * size


def test_slow_link_is_followed_to_the_end(
    s3: S3Server, start: StartStored, link: SlowLink, write: Callable[[int], Path]
):
    s3.upload(write(1), "scale/1")
    link.bytes_per_second = 200_000
    server = start()
    wait_for_log(server, "version_fetching", version=1)
    server.wait_until_available("scale", 1)
    assert_serves(server, 1)


def test_version_removed_while_it_is_copied_goes(
    s3: S3Server, start: StartStored, link: SlowLink, write: Callable[[int], Path], tmp_path: Path
):
    s3.upload(write(1), "scale/1")
    server = start()
    server.wait_until_available("scale", 1)
    link.bytes_per_second = 50_000
    s3.upload(write(2), "scale/2")
    partial = partial_directory(mirror_directory(tmp_path), 2)
    wait_until(partial.exists, "the copy of version 2")
    s3.remove("scale/2")
    link.bytes_per_second = 0
    wait_until(lambda: not partial.exists(), "the end of the copy")
    assert cached(tmp_path) == {"1"}
    assert_serves(server, 1)


def test_killed_server_goes_on_where_it_stopped(
    s3: S3Server, start: StartStored, link: SlowLink, write: Callable[[int], Path], tmp_path: Path
):
    version = write(1)
    s3.upload(version, "scale/1")
    size = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
    link.bytes_per_second, link.cut_after_bytes, link.cuts_left = 400_000, 500_000, 1_000
    server = start()

    def copied_bytes() -> int:
        files = (tmp_path / "cache").rglob("*.data-*")
        return sum(path.stat().st_size for path in files)

    wait_until(lambda: copied_bytes() > size / 3, "a third of the copy")
    server.kill()
    before, link.passed_bytes = copied_bytes(), 0
    link.bytes_per_second = link.cuts_left = 0
    again = start()
    again.wait_until_available("scale", 1)
    assert_serves(again, 1)
    assert link.passed_bytes < size - before + 200_000


def test_cached_version_serves_without_the_store(
    s3: S3Server, start: StartStored, link: SlowLink, write: Callable[[int], Path]
):
    s3.upload(write(1), "scale/1")
    first = start()
    first.wait_until_available("scale", 1)
    first.stop()
    link.is_refusing = True
    server = start()
    server.wait_until_available("scale", 1)
    wait_for_log(server, "store_unreadable")
    assert_serves(server, 1)


def test_second_server_serves_the_copies_of_the_first(
    s3: S3Server, start: StartStored, write: Callable[[int], Path]
):
    s3.upload(write(1), "scale/1")
    start().wait_until_available("scale", 1)
    server = start()
    server.wait_until_available("scale", 1)
    in_use = wait_for_log(server, "model_cache_in_use")
    assert "--model_cache_directory" in in_use["remedy"]
    assert_serves(server, 1)


def test_store_that_refuses_is_explained(
    s3: S3Server, start: StartStored, monkeypatch: pytest.MonkeyPatch
):
    del s3
    server = start(base_path="s3://no-such-bucket/scale")
    unreadable = wait_for_log(server, "store_unreadable")
    assert unreadable["level"] == "warning"
    assert "s3://no-such-bucket/scale" in unreadable["reason"]
    assert "credentials" in unreadable["remedy"]
    assert not logged(server, "base_path_unreadable")


def test_config_file_moves_a_model_into_the_store(
    s3: S3Server,
    start: StartStored,
    scale_model: ScaleModel,
    write: Callable[[int], Path],
    base_path: Path,
    tmp_path: Path,
):
    scale_model.write(base_path, 1)
    s3.upload(write(2), "scale/2")
    config = tmp_path / "models.config"

    def write_config(path: object) -> None:
        text = f'model_config_list {{ config {{ name: "scale" base_path: "{path}" }} }}'
        beside = config.with_suffix(".new")
        beside.write_text(text)
        beside.rename(config)

    write_config(base_path)
    server = start(
        model_name=None,
        base_path=None,
        model_config_file=config,
        model_config_file_poll_wait_seconds=0.1,
    )
    server.wait_until_available("scale", 1)
    write_config(URL)
    server.wait_until_available("scale", 2)
    assert_serves(server, 2)
    write_config(base_path)
    server.wait_until_available("scale", 1)
    assert_serves(server, 1)


def test_missing_package_is_named_at_the_start():
    result = millpond("serve", "--model_base_path=gs://b/m", "--port=0", "--rest_api_port=0")
    assert result.returncode != 0
    assert "pip install 'millpond[gs]'" in result.stderr
    assert "Traceback" not in result.stderr
