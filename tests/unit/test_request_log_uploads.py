"""The uploads of request logs: files wait until they are in the store, and each failure and loss is counted."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.base.errors import InvalidConfig
from serving.core.model_config import ModelConfig
from serving.core.model_settings import ModelSettings, RequestLogSettings
from serving.core.request_logging import RequestLogging
from serving.request_log.log_files import FRAME_BYTES
from serving.request_log.log_uploads import RETRY_SECONDS_MAX
from serving.request_log.request_logs import RequestLogFigures, RequestLogs
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.log_store import FakeLogStores, uploads_to
from tests.unit.fakes.request_log import FakeRequestLog
from warmup.records import read_records

URL = "s3://bucket/logs/m"


class World:
    """Logs whose files go to a store in memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.plane = FakePlane()
        self.stores = FakeLogStores()
        self.begin()

    def restart(self) -> None:
        """Ends the process, and begins a new one over the same directory."""
        self.uploads.stop(0)
        self.begin()

    def begin(self) -> None:
        self.uploads = uploads_to(self.stores, self.directory, self.clock)
        self.logs = RequestLogs(self.plane, uploads=self.uploads, clock=self.clock)

    def model(self, name: str = "m", prefix: str = URL, **keys: object) -> ModelConfig:
        return ModelConfig(
            name=name,
            base_path=f"/{name}",
            logging=RequestLogging(sampling_rate=0.5, filename_prefix=prefix),
            settings=ModelSettings(request_log=RequestLogSettings(**keys)),  # type: ignore[arg-type]
        )

    def log(self) -> FakeRequestLog:
        return self.plane.request_logs[-1]

    def write(self, *records: bytes) -> None:
        """Writes a complete file of these records, and logs on."""
        self.log().put(*records)
        self.logs.write_now()
        self.logs.set_models([])
        self.logs.write_now()

    def figures(self) -> RequestLogFigures:
        return self.logs.figures()["m"]

    def waiting(self) -> Sequence[Path]:
        return sorted(self.directory.glob("m-*/m-*.tfrecord"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.logs.set_models([world.model()])
    yield world
    world.uploads.stop(0)


def test_complete_file_goes_to_the_store(world: World, tmp_path: Path):
    world.write(b"a", b"b")
    (path,) = world.waiting()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    world.uploads.upload_now()
    ((url, content),) = world.stores.objects.items()
    assert url == f"s3://bucket/logs/{path.name}"
    copy = tmp_path / "copy"
    copy.write_bytes(content)
    assert list(read_records(copy)) == [b"a", b"b"]
    assert world.waiting() == []
    uploads = world.figures().uploads
    assert (uploads.file_count, uploads.byte_count) == (1, len(content))
    assert (uploads.failure_count, uploads.waiting_count) == (0, 0)


def test_open_file_is_not_sent(world: World):
    world.log().put(b"a")
    world.logs.write_now()
    world.uploads.upload_now()
    assert world.stores.attempt_count == 0


def test_failed_upload_keeps_counts_and_says_so(world: World):
    world.stores.failure = "no such bucket"
    world.write(b"a")
    with capture_logs() as lines:
        for _ in range(3):
            world.clock.advance(2)
            world.uploads.upload_now()
    (line,) = lines
    assert (line["event"], line["reason"]) == ("request_log_upload_failed", "no such bucket")
    assert len(world.waiting()) == 1
    assert world.figures().uploads.failure_count == world.stores.attempt_count == 3
    assert world.figures().uploads.waiting_count == 1


def test_pauses_double_up_to_their_limit(world: World):
    world.stores.failure = "down"
    world.write(b"a")
    pauses = []
    for _ in range(12):
        world.uploads.upload_now()
        attempt_count, paused_seconds = world.stores.attempt_count, 0
        while world.stores.attempt_count == attempt_count and paused_seconds < 1000:
            world.clock.advance(1)
            paused_seconds += 1
            world.uploads.upload_now()
        pauses.append(paused_seconds)
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert max(pauses) == RETRY_SECONDS_MAX


def test_upload_after_failures_pauses_no_more(world: World):
    world.stores.failure = "down"
    world.write(b"a")
    for _ in range(3):
        world.clock.advance(60)
        world.uploads.upload_now()
    world.stores.failure = ""
    world.clock.advance(60)
    world.uploads.upload_now()
    assert world.waiting() == []
    world.stores.failure = "down again"
    world.logs.set_models([world.model()])
    world.write(b"b")
    world.uploads.upload_now()
    attempt_count = world.stores.attempt_count
    world.clock.advance(1)
    world.uploads.upload_now()
    assert world.stores.attempt_count == attempt_count + 1


def test_unsent_files_above_the_budget_are_counted(world: World):
    world.stores.failure = "down"
    size_bytes = FRAME_BYTES + 1
    world.logs.set_models([world.model(file_bytes_max=size_bytes, disk_bytes_max=2 * size_bytes)])
    world.logs.write_now()
    with capture_logs() as lines:
        for record in (b"a", b"b", b"c"):
            world.log().put(record)
            world.logs.write_now()
    (line,) = [line for line in lines if line["event"] == "request_log_unsent_deleted"]
    assert (len(line["files"]), line["bytes"]) == (1, size_bytes)
    assert world.figures().unsent_file_count == world.figures().deleted_file_count == 1
    world.stores.failure = ""
    world.uploads.upload_now()
    assert len(world.stores.objects) == 2


def test_files_of_an_earlier_process_are_sent(world: World):
    world.write(b"a")
    world.restart()
    world.logs.set_models([world.model()])
    world.logs.write_now()
    world.uploads.upload_now()
    assert len(world.stores.objects) == 1
    assert world.waiting() == []


def test_last_file_of_a_changed_url_goes_to_the_old(world: World):
    world.log().put(b"old")
    world.logs.write_now()
    world.logs.set_models([world.model(prefix="gs://other/m")])
    world.logs.write_now()
    world.write(b"new")
    world.uploads.upload_now()
    assert sorted(url.rpartition("/")[0] for url in world.stores.objects) == [
        "gs://other",
        "s3://bucket/logs",
    ]
    assert world.figures().uploads.file_count == 2


def test_store_that_fails_does_not_stop_another(world: World):
    world.write(b"a")
    world.logs.set_models([world.model("n", prefix="gs://other/n")])
    world.write(b"b")
    world.stores.failure = "down"
    world.uploads.upload_now()
    assert world.stores.attempt_count == 2


def test_stop_sends_the_last_file(tmp_path: Path):
    plane, stores = FakePlane(), FakeLogStores()
    uploads = uploads_to(stores, tmp_path, SystemClock())
    logs = RequestLogs(plane, uploads=uploads, clock=SystemClock())
    logs.start()
    model = ModelConfig(
        name="m",
        base_path="/m",
        logging=RequestLogging(sampling_rate=1, filename_prefix=URL),
    )
    logs.set_models([model])
    plane.request_logs[0].put(b"last")
    assert logs.stop(30)
    assert len(stores.objects) == 1


def test_stop_tries_a_destination_in_a_pause(tmp_path: Path):
    plane, stores, clock = FakePlane(), FakeLogStores(), FakeClock()
    stores.failure = "down"
    uploads = uploads_to(stores, tmp_path, clock)
    logs = RequestLogs(plane, uploads=uploads, clock=clock)
    model = ModelConfig(
        name="m", base_path="/m", logging=RequestLogging(sampling_rate=1, filename_prefix=URL)
    )
    logs.set_models([model])
    plane.request_logs[0].put(b"a")
    logs.write_now()
    logs.set_models([])
    logs.write_now()
    uploads.upload_now()
    uploads.upload_now()
    assert (stores.attempt_count, stores.objects) == (1, {})
    stores.failure = ""
    uploads.start()
    assert uploads.stop(30)
    assert len(stores.objects) == 1


def test_refused_file_does_not_block_newer_ones(world: World):
    world.write(b"bad")
    (bad,) = world.waiting()
    world.stores.refused = {bad.name}
    world.uploads.upload_now()
    world.logs.set_models([world.model()])
    world.write(b"good")
    world.clock.advance(1)
    world.uploads.upload_now()
    assert world.waiting() == [bad]
    assert world.figures().uploads.file_count == world.figures().uploads.waiting_count == 1
    world.stores.refused = set()
    world.clock.advance(1)
    world.uploads.upload_now()
    assert world.waiting() == []


def test_file_deleted_during_its_upload_is_no_error(world: World):
    world.write(b"a")
    (path,) = world.waiting()
    world.stores.failure = "No such file or directory"
    world.stores.before_upload = path.unlink
    with capture_logs() as lines:
        world.uploads.upload_now()
    assert lines == []
    uploads = world.figures().uploads
    assert (uploads.failure_count, uploads.file_count, uploads.waiting_count) == (0, 0, 0)


def test_servers_of_one_cache_have_own_directories(world: World, tmp_path: Path):
    world.write(b"a")
    other = World(tmp_path)
    other.logs.set_models([other.model()])
    other.write(b"b")
    first, second = world.waiting()
    assert first.parent != second.parent
    other.uploads.upload_now()
    assert list(other.stores.objects) == [f"s3://bucket/logs/{second.name}"]
    assert world.waiting() == [first]
    world.uploads.upload_now()
    assert list(world.stores.objects) == [f"s3://bucket/logs/{first.name}"]
    other.uploads.stop(0)


def test_server_adopts_the_files_of_one_that_is_gone(world: World, tmp_path: Path):
    other = World(tmp_path)
    other.logs.set_models([other.model()])
    # Makes each server's directory.
    world.logs.write_now()
    other.write(b"b")
    assert len(world.waiting()) == 1
    other.uploads.stop(0)
    world.write(b"a")
    world.uploads.upload_now()
    assert len(world.stores.objects) == 2
    assert world.waiting() == []


def test_deleted_directory_is_made_again(world: World, tmp_path: Path):
    world.write(b"a")
    world.uploads.upload_now()
    (directory,) = tmp_path.glob("m-*")
    world.logs.set_models([world.model()])
    world.logs.write_now()
    shutil.rmtree(directory)
    world.uploads.upload_now()
    assert world.figures().uploads.failure_count == 0
    world.write(b"b")
    world.uploads.upload_now()
    assert (len(world.stores.objects), world.figures().disk_count) == (2, 0)
    # It is this server's again.
    other = World(tmp_path)
    other.logs.set_models([other.model()])
    other.write(b"c")
    assert world.waiting()[0].parent != directory
    other.uploads.stop(0)


def test_log_without_a_place_stops_no_other(world: World, tmp_path: Path):
    class NoPlace(World):
        def begin(self) -> None:
            self.uploads = uploads_to(self.stores, None, self.clock)
            self.logs = RequestLogs(self.plane, uploads=self.uploads, clock=self.clock)

    lost = NoPlace(tmp_path)
    lost.logs.set_models([lost.model(), lost.model("n", prefix=str(tmp_path / "n"))])
    first, second = lost.plane.request_logs
    with capture_logs() as lines:
        for _ in range(2):
            first.put(b"a")
            second.put(b"b")
            lost.logs.write_now()
    assert [line["event"] for line in lines] == ["request_log_failed"]
    lost.logs.set_models([])
    lost.logs.write_now()
    figures = lost.logs.figures()
    assert (figures["m"].disk_count, figures["m"].pending_count) == (2, 0)
    assert figures["m"].last_error is not None
    assert figures["n"].written_count == 2


def test_idle_uploads_wait_until_they_are_woken(world: World):
    assert world.uploads._wait_seconds() is None
    world.stores.failure = "down"
    world.write(b"a")
    world.uploads.upload_now()
    assert world.uploads._wait_seconds() == 1


def test_url_without_a_place_for_its_files_is_refused(world: World):
    logs = RequestLogs(world.plane, uploads=uploads_to(world.stores), clock=world.clock)
    with pytest.raises(InvalidConfig, match="no directory"):
        logs.check(world.model())


def test_place_that_cannot_be_made_is_refused(world: World, tmp_path: Path):
    (tmp_path / "file").touch()
    uploads = uploads_to(world.stores, tmp_path / "file")
    logs = RequestLogs(world.plane, uploads=uploads, clock=world.clock)
    with pytest.raises(InvalidConfig, match="give another --model_cache_directory"):
        logs.check(world.model())


def test_check_of_a_url_makes_its_place(world: World, tmp_path: Path):
    world.logs.check(world.model("other"))
    assert list(tmp_path.glob("other-*"))
