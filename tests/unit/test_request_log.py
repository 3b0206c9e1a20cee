"""The request logs of all models: what is written where, what is dropped, and that each record is counted."""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from serving.base.clock import Clock, SystemClock
from serving.base.errors import InvalidConfig
from serving.core.model_config import ModelConfig
from serving.core.model_settings import ModelSettings, RequestLogSettings
from serving.core.request_logging import PARQUET, TFRECORD, RequestLogging
from serving.data_plane.request_log import LoggedBatch
from serving.request_log.model_log import FAILURE_LOG_SECONDS, MakeWriter
from serving.request_log.request_logs import Formats, RequestLogFigures, RequestLogs
from serving.request_log.tfrecord_file import TfRecordWriter
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.log_store import FakeLogStores, no_uploads, uploads_to
from tests.unit.fakes.request_log import FakeRequestLog
from tests.unit.fresh_python import run_python
from warmup.records import read_records


class FullDisk(TfRecordWriter):
    """Takes half of each batch while a test says so, and fails."""

    is_full = False

    def add(self, batch: LoggedBatch) -> bool:
        if not FullDisk.is_full:
            return super().add(batch)
        half = batch.frames[: len(batch.frames) // 2]
        super().add(replace(batch, frames=half))
        self.size_bytes -= len(half)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_pyarrow(clock: Clock) -> MakeWriter:
    raise ImportError("No module named 'pyarrow'")


FORMATS: Formats = {TFRECORD: lambda clock: FullDisk, PARQUET: no_pyarrow}


@pytest.fixture
def full_disk() -> Iterator[type[FullDisk]]:
    FullDisk.is_full = True
    yield FullDisk
    FullDisk.is_full = False


class World:
    """Logs over a data plane and a clock that a test moves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.plane = FakePlane()
        self.logs = RequestLogs(
            self.plane,
            uploads=no_uploads(),
            formats=FORMATS,
            clock=self.clock,
        )

    def model(
        self, name: str = "m", rate: float = 0.5, prefix: str = "", **keys: object
    ) -> ModelConfig:
        prefix = prefix or str(self.directory / name)
        request_log = RequestLogSettings(**keys)  # type: ignore[arg-type]
        return ModelConfig(
            name=name,
            base_path=f"/{name}",
            logging=RequestLogging(sampling_rate=rate, filename_prefix=prefix),
            settings=ModelSettings(request_log=request_log),
        )

    def log(self, number: int = 0) -> FakeRequestLog:
        return self.plane.request_logs[number]

    def figures(self, name: str = "m") -> RequestLogFigures:
        return self.logs.figures()[name]

    def records(self, pattern: str = "m-*.tfrecord") -> list[list[bytes]]:
        """The records of each complete file, in the files' order."""
        return [list(read_records(path)) for path in sorted(self.directory.glob(pattern))]

    def partial_count(self) -> int:
        return len([name for name in os.listdir(self.directory) if name.endswith(".partial")])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- What is sampled ------------------------------------------------------------------------------


def test_log_of_a_model_follows_its_configuration(world: World):
    plain = ModelConfig(name="m", base_path="/m")
    world.logs.set_models([plain])
    assert world.log().sampling_rate == 0
    assert world.logs.of("m") is world.log()
    world.logs.set_models([world.model(inputs=("a", "b"), outputs=("*",))])
    assert (world.log().sampling_rate, world.log().inputs, world.log().outputs) == (
        0.5,
        ["a", "b"],
        None,
    )
    world.logs.set_models([world.model(rate=0.25)])
    assert (world.log().sampling_rate, world.log().inputs) == (0.25, None)
    world.logs.set_models([plain])
    assert world.log().sampling_rate == 0
    assert len(world.plane.request_logs) == 1


def test_empty_allow_list_logs_no_tensor(world: World):
    world.logs.set_models([world.model(inputs=(), outputs=())])
    assert (world.log().inputs, world.log().outputs) == ([], [])


def test_removed_model_is_sampled_no_more(world: World):
    world.logs.set_models([world.model()])
    world.logs.set_models([])
    assert world.log().sampling_rate == 0
    assert "m" in world.logs.figures()


def test_versions_of_a_model_that_returns_log(world: World):
    world.logs.set_models([ModelConfig(name="m", base_path="/m")])
    held_by_version = world.logs.of("m")
    world.logs.set_models([])
    assert world.logs.figures() == {}
    world.logs.set_models([world.model()])
    assert world.logs.of("m") is held_by_version is world.log()
    assert world.log().sampling_rate == 0.5
    world.log().put(b"of the old version")
    world.logs.write_now()
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records() == [[b"of the old version"]]


# --- Files ----------------------------------------------------------------------------------------


def test_records_of_each_model_go_to_its_file(world: World):
    world.logs.set_models([world.model("m"), world.model("n")])
    world.log(0).put(b"one")
    world.log(1).put(b"other")
    world.logs.write_now()
    world.log(0).put(b"two")
    world.logs.write_now()
    assert (world.records(), world.partial_count()) == ([], 2)
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records("m-*") == [[b"one", b"two"]]
    assert world.records("n-*") == [[b"other"]]


def test_file_is_complete_at_its_size(world: World):
    world.logs.set_models([world.model(file_bytes_max=40)])
    world.log().put(b"x" * 10)
    world.logs.write_now()
    assert world.records() == []
    world.log().put(b"y" * 10)
    world.logs.write_now()
    assert world.records() == [[b"x" * 10, b"y" * 10]]
    assert world.figures().file_count == 1
    assert world.figures().byte_count == 52


def test_file_is_complete_at_its_time(world: World):
    world.logs.set_models([world.model(file_seconds_max=600)])
    world.logs.write_now()
    world.clock.advance(10_000)
    world.log().put(b"late")
    world.logs.write_now()
    world.clock.advance(599)
    world.logs.write_now()
    assert world.records() == []
    world.clock.advance(1)
    world.logs.write_now()
    assert world.records() == [[b"late"]]


def test_oldest_files_are_deleted_and_counted(world: World):
    world.logs.set_models([world.model(file_bytes_max=20, disk_bytes_max=60)])
    for number in range(5):
        world.log().put(b"record %d" % number)
        world.logs.write_now()
        world.clock.advance(1)
    assert world.records() == [[b"record 3"], [b"record 4"]]
    assert world.figures().file_count == 5
    assert world.figures().deleted_file_count == 3
    assert world.figures().deleted_byte_count == 3 * 24
    assert world.figures().written_count == 5


def test_changed_prefix_begins_a_new_file(world: World):
    world.logs.set_models([world.model()])
    world.log().put(b"before")
    world.logs.write_now()
    world.logs.set_models([world.model(prefix=str(world.directory / "new"))])
    world.log().put(b"between")
    world.logs.write_now()
    world.log().put(b"after")
    world.logs.write_now()
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records("m-*") == [[b"before", b"between"]]
    assert world.records("new-*") == [[b"after"]]


def test_prefix_that_comes_back_at_once_keeps_its_file(world: World):
    for prefix in ("m", "n", "m"):
        world.logs.set_models([world.model(prefix=str(world.directory / prefix))])
        world.logs.write_now()
        world.log().put(prefix.encode())
        world.logs.write_now()
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records("m-*") == [[b"m"], [b"m"]]
    assert world.records("n-*") == [[b"n"]]


def test_changed_rate_keeps_every_record(world: World):
    world.logs.set_models([world.model(rate=0.5)])
    world.log().put(b"one")
    world.logs.set_models([world.model(rate=0.75)])
    world.logs.write_now()
    world.log().put(b"two")
    world.logs.write_now()
    world.logs.set_models([])
    world.logs.write_now()
    assert [record for records in world.records() for record in records] == [b"one", b"two"]


def test_record_after_the_log_is_off_is_counted(world: World):
    world.logs.set_models([world.model()])
    world.logs.write_now()
    world.logs.set_models([])
    world.logs.write_now()
    world.log().put(b"late")
    world.logs.write_now()
    assert (world.figures().late_count, world.figures().pending_count) == (1, 0)


def test_stop_completes_what_is_queued(tmp_path: Path):
    plane = FakePlane()
    entered: list[str] = []
    logs = RequestLogs(
        plane,
        uploads=uploads_to(FakeLogStores(), clock=SystemClock()),
        on_thread_start=lambda: entered.append("idle"),
        clock=SystemClock(),
    )
    world = World(tmp_path)
    logs.set_models([world.model()])
    logs.start()
    plane.request_logs[0].put(b"last")
    assert logs.stop(10)
    assert entered == ["idle"]
    assert world.records() == [[b"last"]]
    assert logs.figures()["m"].pending_count == 0


# --- Losses ---------------------------------------------------------------------------------------


def test_turn_ends_while_records_come(world: World, monkeypatch: pytest.MonkeyPatch):
    world.logs.set_models([world.model()])
    queue = world.log().queue
    take = queue.take

    def take_and_put() -> list[LoggedBatch]:
        taken = take()
        world.log().put(b"meanwhile")
        return taken

    monkeypatch.setattr(queue, "take", take_and_put)
    world.log().put(b"before")
    world.logs.write_now()
    assert world.figures().pending_count == 2
    monkeypatch.undo()
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records() == [[b"before", b"meanwhile"]]


@pytest.mark.parametrize("goes_on", [False, True])
def test_reload_in_a_turn_loses_no_record(
    world: World, monkeypatch: pytest.MonkeyPatch, goes_on: bool
):
    """Records are queued before the reload, and behind the bytes that the turn takes."""
    world.logs.set_models([world.model()])
    queue = world.log().queue
    take = queue.take

    def take_and_reload() -> list[LoggedBatch]:
        taken = take()
        world.log().put(b"behind")
        world.logs.set_models([world.model(prefix=str(world.directory / "n"))] if goes_on else [])
        return taken

    monkeypatch.setattr(queue, "take", take_and_reload)
    world.log().put(b"before")
    world.logs.write_now()
    monkeypatch.undo()
    world.logs.write_now()
    assert world.records("m-*") == [[b"before", b"behind"]]
    assert world.figures().late_count == 0


def test_log_that_is_made_in_a_turn_is_written(world: World, monkeypatch: pytest.MonkeyPatch):
    world.logs.set_models([world.model()])
    queue = world.log().queue
    take = queue.take

    def make_and_take() -> list[LoggedBatch]:
        if len(world.plane.request_logs) == 1:
            world.logs.set_models([world.model(), world.model("new")])
            world.log(1).put(b"new")
        return take()

    monkeypatch.setattr(queue, "take", make_and_take)
    world.log().put(b"old")
    world.logs.write_now()
    monkeypatch.undo()
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records("m-*") == [[b"old"]]
    assert world.records("new-*") == [[b"new"]]


def test_turn_without_memory_loses_no_record(world: World):
    world.logs.set_models([world.model()])
    world.log().put(b"a")
    world.logs.write_now()
    world.log().put(b"b")
    world.log().queue.has_memory = False
    with pytest.raises(MemoryError):
        world.logs.write_now()
    assert world.figures().pending_count == 2
    world.log().queue.has_memory = True
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records() == [[b"a", b"b"]]


def test_stop_without_memory_completes_the_file(tmp_path: Path):
    plane = FakePlane()
    uploads = uploads_to(FakeLogStores(), clock=SystemClock())
    logs = RequestLogs(plane, uploads=uploads, clock=SystemClock())
    world = World(tmp_path)
    logs.set_models([world.model()])
    plane.request_logs[0].put(b"a")
    logs.write_now()
    plane.request_logs[0].put(b"b")
    plane.request_logs[0].queue.has_memory = False
    with capture_logs() as lines:
        logs.start()
        assert logs.stop(10)
    assert world.records() == [[b"a"]]
    assert {line["event"] for line in lines} == {"request_log_writer_failed"}


def test_full_queue_is_counted(world: World):
    world.logs.set_models([world.model()])
    world.log().queue.is_full = True
    world.log().put(b"a", b"b")
    assert world.figures().queue_full_count == 2
    assert world.figures().pending_count == 0


def test_full_disk_drops_counts_and_tries_again(world: World, full_disk: type[FullDisk]):
    world.logs.set_models([world.model()])
    with capture_logs() as lines:
        for _ in range(3):
            world.log().put(b"a", b"b")
            world.logs.write_now()
    (line,) = lines
    assert line["event"] == "request_log_failed"
    assert "No space left" in line["reason"]
    assert world.figures().disk_count == 6
    assert world.figures().disk_error_count == 3
    full_disk.is_full = False
    world.log().put(b"c")
    world.logs.write_now()
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records() == [[b"c"]]
    assert world.figures().written_count == 1


def test_records_before_a_full_disk_are_complete(world: World, full_disk: type[FullDisk]):
    full_disk.is_full = False
    world.logs.set_models([world.model()])
    world.log().put(b"before")
    world.logs.write_now()
    full_disk.is_full = True
    world.log().put(b"lost")
    world.logs.write_now()
    assert world.records() == [[b"before"]]
    assert (world.figures().written_count, world.figures().disk_count) == (1, 1)


def test_disk_that_stays_full_is_logged_each_minute(world: World, full_disk: type[FullDisk]):
    assert full_disk.is_full
    world.logs.set_models([world.model()])
    with capture_logs() as lines:
        for _ in range(4):
            world.log().put(b"a")
            world.logs.write_now()
            world.clock.advance(FAILURE_LOG_SECONDS / 2)
    assert [line["event"] for line in lines] == ["request_log_failed"] * 2


def test_directory_that_vanishes_and_comes_back(world: World):
    logs = world.directory / "logs"
    logs.mkdir()
    world.logs.set_models([world.model(prefix=str(logs / "m"))])
    logs.rmdir()
    world.log().put(b"a")
    world.logs.write_now()
    assert world.figures().disk_count == 1
    logs.mkdir()
    world.log().put(b"b")
    world.logs.write_now()
    world.logs.set_models([])
    world.logs.write_now()
    assert world.records("logs/m-*") == [[b"b"]]


def test_read_only_directory_drops_counts_and_logs(world: World, monkeypatch: pytest.MonkeyPatch):
    world.logs.set_models([world.model()])
    opened = os.open

    def read_only(path: str, flags: int, *rest: int, **keys: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *rest, **keys)

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(os, "open", read_only)
        world.log().put(b"a", b"b")
        world.logs.write_now()
    assert "Read-only" in lines[0]["reason"]
    assert (world.figures().disk_count, world.figures().pending_count) == (2, 0)
    assert os.listdir(world.directory) == []


def test_file_that_cannot_be_completed_is_counted(world: World):
    logs = world.directory / "logs"
    logs.mkdir()
    world.logs.set_models([world.model(prefix=str(logs / "m"))])
    world.log().put(b"a", b"b")
    world.logs.write_now()
    logs.rename(world.directory / "gone")
    world.logs.set_models([])
    world.logs.write_now()
    assert (world.figures().disk_count, world.figures().written_count) == (2, 0)
    assert world.figures().pending_count == 0


def test_directory_that_cannot_be_synced_drops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real_fsync(descriptor)

    world.logs.set_models([world.model(file_bytes_max=1)])
    world.logs.write_now()
    monkeypatch.setattr(os, "fsync", fsync)
    with capture_logs() as lines:
        for _ in range(2):
            world.log().put(b"a", b"b")
            world.logs.write_now()
    assert world.records() == [[b"a", b"b"]] * 2
    assert (world.figures().written_count, world.figures().disk_count) == (4, 0)
    assert (world.figures().file_count, world.figures().disk_error_count) == (2, 2)
    (line,) = lines
    assert line["event"] == "request_log_failed"
    assert "complete" in line["consequence"]


def test_file_whose_end_fails_by_a_bug_is_counted(world: World, monkeypatch: pytest.MonkeyPatch):
    def finish(writer: FullDisk) -> None:
        raise ValueError("a column is longer than the others")

    monkeypatch.setattr(FullDisk, "finish", finish)
    world.logs.set_models([world.model()])
    world.log().put(b"a", b"b")
    world.logs.write_now()
    descriptor_count = len(os.listdir("/proc/self/fd"))
    world.logs.set_models([])
    with capture_logs() as lines:
        world.logs.write_now()
    assert (world.figures().disk_count, world.figures().pending_count) == (2, 0)
    assert os.listdir(world.directory) == []
    assert len(os.listdir("/proc/self/fd")) == descriptor_count - 1
    assert "longer than the others" in lines[0]["reason"]


def test_file_of_a_killed_server_is_completed(world: World):
    world.logs.set_models([world.model()])
    world.log().put(b"before the crash")
    world.logs.write_now()
    (partial,) = world.directory.iterdir()
    left = partial.name.replace(partial.name.split("-")[2], "ffffffff")
    (world.directory / left).write_bytes(partial.read_bytes() + b"half a record")
    again = World(world.directory)
    again.logs.set_models([again.model()])
    with capture_logs() as lines:
        again.logs.write_now()
    assert [line["event"] for line in lines] == ["request_log_recovered"]
    assert again.records() == [[b"before the crash"]]


# --- Every record is counted ----------------------------------------------------------------------

STEPS = st.lists(
    st.sampled_from(
        ["put", "write", "full queue", "full disk", "no memory", "turn", "minute", "prefix"]
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_sampled_is_written_dropped_and_pending(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[str]
):
    world = World(tmp_path_factory.mktemp("steps"))
    is_on, prefix = True, "m"
    try:
        for step in ["turn", *steps, "write"]:
            if step in ("turn", "prefix"):
                is_on = step == "prefix" or not is_on or not world.plane.request_logs
                prefix = "n" if step == "prefix" and prefix == "m" else "m"
                model = world.model(
                    prefix=str(world.directory / prefix), file_bytes_max=100, disk_bytes_max=300
                )
                world.logs.set_models([model if is_on else replace(model, logging=None)])
            _take(world, step)
        FullDisk.is_full = False
        world.log().queue.has_memory = True
        world.logs.set_models([])
        world.logs.write_now()
        figures = world.figures()
        assert figures.pending_count == 0
        assert figures.written_count >= sum(map(len, world.records("*.tfrecord")))
        assert world.partial_count() == 0
    finally:
        FullDisk.is_full = False


def _take(world: World, step: str) -> None:
    log = world.log()

    def write() -> None:
        fails = not log.queue.has_memory and log.queue.used_bytes > 0
        with pytest.raises(MemoryError) if fails else nullcontext():
            world.logs.write_now()

    actions: dict[str, Callable[[], object]] = {
        "put": lambda: log.put(b"a", b"bb"),
        "write": write,
        "no memory": lambda: setattr(log.queue, "has_memory", not log.queue.has_memory),
        "full queue": lambda: setattr(log.queue, "is_full", not log.queue.is_full),
        "full disk": lambda: setattr(FullDisk, "is_full", not FullDisk.is_full),
        "minute": lambda: world.clock.advance(700),
    }
    actions.get(step, lambda: None)()


# --- Refusals -------------------------------------------------------------------------------------


def test_log_without_directory_is_refused(world: World):
    with pytest.raises(InvalidConfig, match="model 'm': logging_config: filename_prefix"):
        world.logs.check(world.model(prefix="/no/such/m"))


def test_model_without_log_needs_no_directory(world: World):
    world.logs.check(ModelConfig(name="m", base_path="/m"))


def test_parquet_without_its_package_is_refused(world: World):
    model = world.model()
    assert model.logging is not None
    parquet = replace(model, logging=replace(model.logging, file_type=PARQUET))
    with pytest.raises(InvalidConfig, match=r"pip install 'millpond\[parquet\]'"):
        world.logs.check(parquet)


def test_server_imports_pyarrow_only_for_parquet():
    program = "import serving.server.server, sys; print('pyarrow' in sys.modules)"
    assert run_python(program) == "False"
