"""Base paths in object storage, on a real S3 server: uploads, failures, slow links, removals."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from loadtest.drive.s3_server import BUCKET, SECRET, S3Server, s3_environment, s3_server
from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.base.clock import SystemClock
from serving.base.protos import prediction_log_pb2
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from serving.storage.mirrors import mirror_name
from serving.storage.version_copy import partial_directory
from tests.integration.clients import is_right, wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.delta_exports import TrainedModel
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged, wait_for_log
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import millpond
from tests.integration.slow_link import SlowLink
from warmup.records import read_records

X = np.array([1.0, 2.5], np.float32)
# Two shards of 400 KB.
OFFSET_COUNT = 200_000

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log", SystemClock()) as server:
        yield server


@contextmanager
def own_link(s3: S3Server) -> Iterator[SlowLink]:
    """The link to the store of the servers that are started inside `with`."""
    with pytest.MonkeyPatch.context() as patch, SlowLink(s3.port) as link:
        # The server's own retries are tested, and not the pauses of its library.
        for name, value in {**s3_environment(link.port), "AWS_MAX_ATTEMPTS": "1"}.items():
            patch.setenv(name, value)
        yield link


@pytest.fixture(scope="module")
def module_link(s3: S3Server) -> Iterator[SlowLink]:
    """The link between the module's host and the store."""
    with own_link(s3) as link:
        yield link


@pytest.fixture
def link(module_link: SlowLink) -> Iterator[SlowLink]:
    """The link, which a test may slow down or break."""
    yield module_link
    module_link.bytes_per_second = module_link.cut_after_bytes = module_link.cuts_left = 0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def host_flags(module_link: SlowLink, cache: Path) -> Mapping[str, object]:
    del module_link
    return {"model_cache_directory": cache, "model_store_poll_wait_seconds": 1}


@dataclass
class StoredModel:
    """A model whose versions lie in the store."""

    key: str
    host: ModelHost
    cache: Path

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.key}"

    @property
    def mirror(self) -> Path:
        """The directory of the versions that were copied."""
        return self.cache / mirror_name(self.key, self.url)

    def cached(self) -> set[str]:
        return {path.name for path in self.mirror.iterdir()}

    def add(self) -> HostedModel:
        """Adds the model to the server."""
        self.host.configure(self.key, self.url, {}, "")
        return HostedModel(self.host, self.key, self.mirror)


@pytest.fixture
def stored(host: ModelHost, cache: Path) -> StoredModel:
    """A model whose server is the module's. Nothing is stored yet."""
    return StoredModel(f"stored_{next(_numbers)}", host, cache)


@pytest.fixture
def write(scale_model: ScaleModel, tmp_path: Path) -> Callable[[int], Path]:
    """Writes a version to a local directory, from which tests upload it."""
    return lambda version: scale_model.write(
        tmp_path / "exports", version, offset_count=OFFSET_COUNT
    )


def size_of(version: Path) -> int:
    return sum(path.stat().st_size for path in version.rglob("*") if path.is_file())


def assert_serves(server: ModelServer, name: str, version: int) -> None:
    with Client(server.target) as client:
        prediction = client.predict(name, {"x": X})
    assert prediction.version == version
    assert is_right(prediction.outputs["y"], ScaleModel.answer(version, X))
    assert SECRET not in server.log_path.read_text()


def assert_comes(model: HostedModel, version: int) -> None:
    """Waits for the version, and asserts that it answers."""
    model.wait_until_available(version)
    assert_serves(model.server, model.name, version)


def assert_comes_back(model: HostedModel, version: int) -> None:
    """Waits for a lower version, and asserts that it answers once the higher one is gone."""
    with Client(model.server.target) as client:
        wait_for_states(client, model.name, {version: AVAILABLE, version + 1: END})
    assert_serves(model.server, model.name, version)


def test_uploaded_versions_are_swapped(
    s3: S3Server, stored: StoredModel, write: Callable[[int], Path]
):
    s3.upload(write(1), f"{stored.key}/1")
    model = stored.add()
    assert_comes(model, 1)
    s3.upload(write(2), f"{stored.key}/2")
    assert_comes(model, 2)
    assert stored.cached() == {"1", "2"}
    with Client(model.server.target) as client:
        wait_for_states(client, model.name, {1: END, 2: AVAILABLE})


def test_delta_brings_only_its_rows_from_the_store(
    s3: S3Server, stored: StoredModel, tmp_path: Path
):
    trained = TrainedModel(tmp_path / "trained", rows=20_000)
    s3.upload(trained.export_base(1), f"{stored.key}/1")
    model = stored.add()
    model.wait_until_available(1)
    trained.train()
    s3.upload(trained.export_delta(2), f"{stored.key}/2")
    model.wait_until_available(2)
    shards = [
        (stored.mirror / version / "variables" / "variables.data-00000-of-00002").stat()
        for version in ("1", "2")
    ]
    assert shards[0].st_size == 2 * 20_000 * 8 * 4
    assert shards[0].st_ino == shards[1].st_ino
    copied = model.only_logged("store_copy_complete", version=2)
    assert copied["bytes"] - copied["linked_bytes"] < 10_000
    ids = np.arange(100)
    with Client(model.server.target) as client:
        found = client.predict(model.name, {"ids": ids}).outputs["y"]
    assert found.tobytes() == trained.answer(ids).tobytes()


def test_version_removed_from_the_store_is_unloaded(
    s3: S3Server, stored: StoredModel, write: Callable[[int], Path]
):
    s3.upload(write(1), f"{stored.key}/1")
    s3.upload(write(2), f"{stored.key}/2")
    model = stored.add()
    model.wait_until_available(2)
    s3.remove(f"{stored.key}/2")
    assert_comes_back(model, 1)
    assert "2" not in stored.cached()
    s3.remove(f"{stored.key}/1")
    model.wait_for_log("last_version_gone_from_store")
    assert_serves(model.server, model.name, 1)


def test_half_written_upload_is_not_served(
    s3: S3Server, stored: StoredModel, write: Callable[[int], Path]
):
    s3.upload(write(1), f"{stored.key}/1")
    model = stored.add()
    model.wait_until_available(1)
    second, key = write(2), f"{stored.key}/2"
    s3.upload_file(second / "saved_model.pb", f"{key}/saved_model.pb")
    for path in sorted((second / "variables").iterdir())[:-1]:
        s3.upload_file(path, f"{key}/variables/{path.name}")
    model.wait_for_log("version_incomplete", version=2)
    assert stored.cached() == {"1"}
    assert_serves(model.server, model.name, 1)
    s3.upload(second, key)
    assert_comes(model, 2)


def test_broken_connections_lose_no_progress(
    s3: S3Server, stored: StoredModel, link: SlowLink, write: Callable[[int], Path]
):
    version = write(1)
    s3.upload(version, f"{stored.key}/1")
    link.passed_bytes = 0
    link.cut_after_bytes, link.cuts_left = 150_000, 20
    assert_comes(stored.add(), 1)
    assert link.cuts_left < 20
    # Each cut loses one read at most.
    assert link.passed_bytes < 6 * size_of(version)


def test_slow_link_is_followed_to_the_end(
    s3: S3Server, stored: StoredModel, link: SlowLink, write: Callable[[int], Path]
):
    s3.upload(write(1), f"{stored.key}/1")
    link.bytes_per_second = 400_000
    model = stored.add()
    model.wait_for_log("version_fetching", version=1)
    assert_comes(model, 1)


def test_version_removed_while_it_is_copied_goes(
    s3: S3Server, stored: StoredModel, link: SlowLink, write: Callable[[int], Path]
):
    s3.upload(write(1), f"{stored.key}/1")
    model = stored.add()
    model.wait_until_available(1)
    link.bytes_per_second = 50_000
    s3.upload(write(2), f"{stored.key}/2")
    partial = partial_directory(stored.mirror, 2)
    wait_until(partial.exists, "the copy of version 2")
    s3.remove(f"{stored.key}/2")
    link.bytes_per_second = 0
    wait_until(lambda: not partial.exists(), "the end of the copy")
    assert stored.cached() == {"1"}
    assert_serves(model.server, model.name, 1)


def test_store_that_refuses_is_explained(host: ModelHost):
    url = "s3://no-such-bucket/scale"
    host.configure("refused", url, {}, "")
    unreadable = wait_for_log(host.server, "store_unreadable", model="refused")
    assert unreadable["level"] == "warning"
    assert url in unreadable["reason"]
    assert "credentials" in unreadable["remedy"]
    assert not logged(host.server, "base_path_unreadable", model="refused")


def test_config_file_moves_a_model_into_the_store(
    s3: S3Server,
    stored: StoredModel,
    scale_model: ScaleModel,
    base_path: Path,
    write: Callable[[int], Path],
):
    scale_model.write(base_path, 1)
    s3.upload(write(2), f"{stored.key}/2")
    stored.host.configure(stored.key, base_path, {}, "")
    HostedModel(stored.host, stored.key, base_path).wait_until_available(1)
    model = stored.add()
    assert_comes(model, 2)
    stored.host.configure(stored.key, base_path, {}, "")
    assert_comes_back(model, 1)


# --- Servers that end, and one beside another ---------------------------------------------------------


@dataclass
class Restarts:
    """A server that was killed in the middle of a copy, and those after it with the same cache."""

    size_bytes: int
    copied_bytes: int
    """The bytes that the first server had copied."""
    passed_bytes: int
    """The bytes that the second one read, until it served."""
    beside: ModelServer
    """Ran beside the second one."""
    last: ModelServer
    """Started when the others had ended, and the store was away."""


@pytest.fixture(scope="module")
def restarts(
    s3: S3Server,
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Restarts]:
    own_cache = tmp_path_factory.mktemp("own_cache")
    # Its largest file takes several reads.
    version = scale_model.write(tmp_path_factory.mktemp("export"), 1, offset_count=4_000_000)
    s3.upload(version, "scale/1")

    def start() -> ModelServer:
        return start_module_server(
            model_name="scale",
            base_path=f"s3://{BUCKET}/scale",
            model_cache_directory=own_cache,
            model_store_poll_wait_seconds=1,
        )

    def started_and_asked() -> ModelServer:
        server = start()
        server.wait_until_available("scale", 1)
        assert_serves(server, "scale", 1)
        return server

    def copied_bytes() -> int:
        return sum(path.stat().st_size for path in own_cache.rglob("*.data-*"))

    with own_link(s3) as link:
        link.bytes_per_second = 4_000_000
        first = start()
        wait_until(lambda: copied_bytes() > size_of(version) / 5, "a part of the copy")
        first.kill()
        before, link.passed_bytes, link.bytes_per_second = copied_bytes(), 0, 0
        second = started_and_asked()
        passed = link.passed_bytes
        beside = started_and_asked()
        beside.stop()
        second.stop()
        link.is_refusing = True
        last = started_and_asked()
        yield Restarts(size_of(version), before, passed, beside, last)


def test_killed_server_goes_on_where_it_stopped(restarts: Restarts):
    assert restarts.passed_bytes < restarts.size_bytes - restarts.copied_bytes + 200_000


def test_second_server_serves_the_copies_of_the_first(restarts: Restarts):
    in_use = wait_for_log(restarts.beside, "model_cache_in_use")
    assert "--model_cache_directory" in in_use["remedy"]


def test_cached_version_serves_without_the_store(restarts: Restarts):
    wait_for_log(restarts.last, "store_unreadable")
    assert_serves(restarts.last, "scale", 1)


def test_missing_package_is_named_at_the_start():
    result = millpond("serve", "--model_base_path=gs://b/m", "--port=0", "--rest_api_port=0")
    assert result.returncode != 0
    assert "pip install 'millpond[gs]'" in result.stderr
    assert "Traceback" not in result.stderr


# --- Request logs ---------------------------------------------------------------------------------


@dataclass
class LoggedModel:
    """A model whose requests are logged to the store."""

    model: HostedModel
    store: S3Server

    @property
    def prefix(self) -> str:
        return f"logs/{self.model.name}"

    def log(self, request_count: int) -> None:
        """Logs so many requests, and turns the log off."""
        url = f"s3://{BUCKET}/{self.prefix}"
        self.model.configure(
            config="logging_config { sampling_config { sampling_rate: 1 } "
            f'log_collector_config {{ filename_prefix: "{url}" }} }}'
        )
        with Client(self.model.server.target) as client:
            for _ in range(request_count):
                client.predict(self.model.name, {"x": X})
        self.model.configure()

    def figure(self, name: str) -> int:
        metrics = ServerPages(self.model.server.url).metrics()
        return round(metrics.value(f"serving_request_log_{name}", model=self.model.name) or 0)

    def wait_for_keys(self) -> list[str]:
        wait_until(lambda: bool(self.store.keys(self.prefix)), "an upload")
        return self.store.keys(self.prefix)

    def records(self, key: str, directory: Path) -> list[bytes]:
        copy = directory / "copy"
        answer = self.store.client.get_object(Bucket=BUCKET, Key=key)
        copy.write_bytes(answer["Body"].read())
        return list(read_records(copy))


@pytest.fixture
def logged_model(host: ModelHost, scale_model: ScaleModel, s3: S3Server) -> LoggedModel:
    model = host.model(prefix="logged")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    return LoggedModel(model, s3)


def test_log_goes_to_the_store(
    logged_model: LoggedModel, link: SlowLink, cache: Path, tmp_path: Path
):
    del link
    logged_model.log(3)
    (key,) = logged_model.wait_for_keys()
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record)
        for record in logged_model.records(key, tmp_path)
    ]
    assert [log.log_metadata.model_spec.name for log in logs] == [logged_model.model.name] * 3
    wait_until(lambda: logged_model.figure("uploaded_files_total") == 1, "the count")
    (place,) = (cache / "request-logs").glob(f"{logged_model.model.name}-*")
    assert [path.name for path in place.iterdir()] == [".lock"]


def test_log_waits_while_the_store_is_away(
    logged_model: LoggedModel, link: SlowLink, tmp_path: Path
):
    link.is_refusing = True
    try:
        logged_model.log(2)
        event = logged_model.model.wait_for_log("request_log_upload_failed")
        assert event["filename_prefix"] == f"s3://{BUCKET}/{logged_model.prefix}"
        assert logged_model.figure("unsent_files") == 1
        assert logged_model.figure("upload_failures_total") > 0
    finally:
        link.is_refusing = False
    (key,) = logged_model.wait_for_keys()
    assert len(logged_model.records(key, tmp_path)) == 2
    wait_until(lambda: logged_model.figure("unsent_files") == 0, "the count")
    assert SECRET not in logged_model.model.server.log_path.read_text()
