"""The log of one model counts each record once, whichever step of a file fails."""

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model_settings import RequestLogSettings
from serving.core.request_logging import TFRECORD, RequestLogging
from serving.data_plane.request_log import LoggedBatch
from serving.request_log.log_files import CompleteFile, LogFiles, PartialFile
from serving.request_log.model_log import LogTarget, ModelLog, WriterCounts
from serving.request_log.tfrecord_file import TfRecordWriter
from tests.unit.fakes.clocks import FakeClock
from warmup.records import encode_record, read_records

ERRORS = (OSError(28, "No space left on device"), MemoryError(), ValueError("a bug"))

STEPS = ("begin", "make writer", "add", "finish", "complete", "sync", "delete", "on complete")


class Failures:
    """Says which steps fail, and with which error."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}

    def check(self, step: str) -> None:
        if step in self.errors:
            raise self.errors[step]


class FailingFiles(LogFiles):
    """Real files, whose steps fail if a test says so."""

    failures: Failures

    def begin(self, wall_ns: int) -> PartialFile:
        self.failures.check("begin")
        return super().begin(wall_ns)

    def complete(self, file: PartialFile) -> int:
        self.failures.check("complete")
        return super().complete(file)

    def sync_directory(self) -> None:
        self.failures.check("sync")

    def delete_oldest(self, bytes_max: int) -> Sequence[CompleteFile]:
        self.failures.check("delete")
        return super().delete_oldest(bytes_max)


class FailingWriter(TfRecordWriter):
    """Fails after half of a batch, or at the end, if a test says so."""

    def __init__(self, descriptor: int, failures: Failures) -> None:
        failures.check("make writer")
        super().__init__(descriptor)
        self._failures = failures

    def add(self, batch: LoggedBatch) -> bool:
        if "add" in self._failures.errors:
            os.pwrite(self._descriptor, batch.frames[: len(batch.frames) // 2], self.size_bytes)
        self._failures.check("add")
        return super().add(batch)

    def finish(self) -> None:
        self._failures.check("finish")
        super().finish()


class World:
    """The log of a model in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.failures = Failures()
        self.counts = WriterCounts()
        self.put_count = 0
        files = FailingFiles(
            str(directory / "m"), TFRECORD, token="01234567", numbers=itertools.count(1)
        )
        files.failures = self.failures
        self.log = ModelLog(
            "m",
            LogTarget(
                logging=RequestLogging(sampling_rate=1.0, filename_prefix=str(directory / "m")),
                settings=RequestLogSettings(file_bytes_max=100, disk_bytes_max=2**30),
            ),
            files=files,
            make_writer=lambda descriptor: FailingWriter(descriptor, self.failures),
            counts=self.counts,
            on_complete=lambda: self.failures.check("on complete"),
            clock=FakeClock(),
        )

    def write(self, record_count: int) -> None:
        self.put_count += record_count
        frames = encode_record(b"record") * record_count
        self.log.write(LoggedBatch(1, record_count, frames, bytes(64 * record_count)))

    def records(self) -> int:
        paths = self.directory.glob("m-*.tfrecord")
        return sum(len(list(read_records(path))) for path in paths)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 5)),
        st.tuples(st.sampled_from(STEPS), st.integers(0, len(ERRORS) - 1)),
        st.tuples(st.sampled_from(("mend", "complete")), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(ACTIONS)
def test_each_record_is_written_or_dropped_once(
    tmp_path_factory: pytest.TempPathFactory, actions: Sequence[tuple[str, int]]
):
    world = World(tmp_path_factory.mktemp("log"))
    takes: dict[str, Callable[[int], object]] = {
        "write": world.write,
        "mend": lambda _: world.failures.errors.clear(),
        "complete": lambda _: world.log.complete(),
    }
    # 1,000 real writes to the disk would take half a minute.
    with patch("serving.request_log.model_log._log"), patch("os.fsync"):
        for action, number in actions:
            if action in takes:
                takes[action](number)
            else:
                world.failures.errors[action] = ERRORS[number]
        world.log.complete()
    assert world.counts.written_count == world.records()
    assert world.counts.written_count + world.counts.dropped_count == world.put_count
    assert not [name for name in os.listdir(world.directory) if name.endswith(".partial")]


@pytest.mark.parametrize("gone", ["file", "directory"])
def test_deleted_file_takes_no_more_records(tmp_path: Path, gone: str):
    directory = tmp_path / "logs"
    directory.mkdir()
    world = World(directory)
    world.write(2)
    if gone == "directory":
        shutil.rmtree(directory)
        directory.mkdir()
    else:
        (partial,) = directory.iterdir()
        partial.unlink()
    world.write(1)
    world.log.complete()
    assert (world.counts.dropped_count, world.counts.written_count, world.records()) == (2, 1, 1)
    assert world.counts.last_error is not None


@pytest.mark.parametrize("step", ["sync", "delete", "on complete"])
def test_failure_after_a_complete_file_drops_nothing(tmp_path: Path, step: str):
    world = World(tmp_path)
    world.failures.errors[step] = ValueError("a bug")
    with patch("serving.request_log.model_log._log") as log:
        world.write(10)
    assert (world.counts.written_count, world.counts.dropped_count) == (10, 0)
    assert world.counts.last_error is not None
    assert "dropped" not in log.error.call_args.kwargs["consequence"]
