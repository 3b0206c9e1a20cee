import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.base.errors import DataLoss
from serving.core.blocked_versions import BlockedBy, BlockedVersion, BlockedVersions
from serving.manager.blocked_version_file import RETRY_SECONDS, BlockedVersionFile
from serving.manager.blocked_version_rows import (
    FILE_NAME,
    read_blocked_versions,
    write_blocked_versions,
)
from tests.unit.fakes.clocks import FakeClock

BLOCKED = BlockedVersion(by=BlockedBy.OPERATOR, reason="wrong answers", since_wall_ns=5)


class Disk:
    """Writes like `write_blocked_versions`, or fails as often as a test sets."""

    def __init__(self, refusal_count: int = 0) -> None:
        self.refusal_count = refusal_count
        self.written: list[Mapping[str, BlockedVersions]] = []
        self.is_written = threading.Event()

    def write(self, path: Path, blocked_versions: Mapping[str, BlockedVersions]) -> None:
        if self.refusal_count:
            self.refusal_count -= 1
            raise PermissionError(13, "Permission denied")
        write_blocked_versions(path, blocked_versions)
        self.written.append(blocked_versions)
        self.is_written.set()


_KEEPERS: list[BlockedVersionFile] = []


@pytest.fixture(autouse=True)
def _stop_keepers() -> Iterator[None]:
    yield
    while _KEEPERS:
        _KEEPERS.pop().stop(timeout_seconds=10)


def blocked_version_file(directory: Path, disk: Disk | None = None) -> BlockedVersionFile:
    _KEEPERS.append(BlockedVersionFile(directory, clock=FakeClock(), write=(disk or Disk()).write))
    return _KEEPERS[-1]


def events(logs: Sequence[Mapping[str, object]]) -> list[object]:
    return [log["event"] for log in logs]


def test_kept_blocks_are_read_after_restart(tmp_path: Path):
    before = blocked_version_file(tmp_path / "state")
    assert before.read() == {}
    before.keep("m", {7: BLOCKED})
    before.write_now()
    assert before.stop(timeout_seconds=1)
    with capture_logs() as logs:
        assert blocked_version_file(tmp_path / "state").read() == {"m": {7: BLOCKED}}
    assert [(log["event"], log["blocked"]) for log in logs] == [
        ("blocked_versions_read", {"m": [7]})
    ]


def test_lifted_block_is_removed_from_file(tmp_path: Path):
    keeper = blocked_version_file(tmp_path)
    keeper.keep("m", {7: BLOCKED})
    keeper.keep("n", {1: BLOCKED})
    keeper.keep("m", {})
    keeper.write_now()
    assert read_blocked_versions(tmp_path / FILE_NAME) == {"n": {1: BLOCKED}}


def test_unchanged_blocks_are_not_written(tmp_path: Path):
    disk = Disk()
    keeper = blocked_version_file(tmp_path, disk)
    keeper.keep("m", {7: BLOCKED})
    keeper.write_now()
    keeper.keep("m", {7: BLOCKED})
    keeper.keep("n", {})
    keeper.write_now()
    assert len(disk.written) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{",
        b"[]",
        b'{"blocked_versions": []}',
        b'{"blocked_versions": {"m": [7]}}',
        b"7",
        b"[" * 100_000,
    ],
)
def test_damaged_file_is_logged_and_put_aside(tmp_path: Path, content: bytes):
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    with pytest.raises(DataLoss, match=FILE_NAME):
        read_blocked_versions(path)
    with capture_logs() as logs:
        assert blocked_version_file(tmp_path).read() == {}
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("blocked_versions_unreadable", "error")
    assert str(path) in str(line["reason"])
    assert Path(str(line["put_aside"])).read_bytes() == content
    assert read_blocked_versions(path) == {}


def test_failed_write_keeps_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / FILE_NAME
    write_blocked_versions(path, {"m": {7: BLOCKED}})

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_blocked_versions(path, {"m": {8: BLOCKED}})
    assert read_blocked_versions(path) == {"m": {7: BLOCKED}}
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_is_logged_once_and_retried(tmp_path: Path):
    disk = Disk(refusal_count=3)
    keeper = blocked_version_file(tmp_path, disk)
    keeper.keep("m", {7: BLOCKED})
    with capture_logs() as logs:
        assert [keeper.write_now() for _ in range(4)] == [False, False, False, True]
    assert events(logs) == ["blocked_versions_not_kept"]
    assert logs[0]["reason"] == "[Errno 13] Permission denied"
    assert read_blocked_versions(tmp_path / FILE_NAME) == {"m": {7: BLOCKED}}


def test_each_unkept_change_is_logged(tmp_path: Path):
    keeper = blocked_version_file(tmp_path, Disk(refusal_count=9))
    with capture_logs() as logs:
        for version in (7, 8):
            keeper.keep("m", {version: BLOCKED})
            keeper.write_now()
    assert events(logs) == ["blocked_versions_not_kept"] * 2


def test_unwritable_disk_is_logged_at_start(tmp_path: Path):
    (tmp_path / "state").write_text("a file")
    with capture_logs() as logs:
        assert blocked_version_file(tmp_path / "state").read() == {}
    assert "blocked_versions_not_kept" in events(logs)


def test_thread_writes_at_once_and_at_stop(tmp_path: Path):
    disk = Disk()
    keeper = BlockedVersionFile(tmp_path, clock=SystemClock(), write=disk.write)
    keeper.start()
    keeper.keep("m", {7: BLOCKED})
    assert disk.is_written.wait(10)
    keeper.keep("m", {8: BLOCKED})
    assert keeper.stop(timeout_seconds=10)
    assert read_blocked_versions(tmp_path / FILE_NAME) == {"m": {8: BLOCKED}}


def test_thread_tries_again_by_itself(tmp_path: Path):
    disk, clock = Disk(refusal_count=2), FakeClock()
    # FakeClock's waits return at once, so they end before a change comes.
    keeper = BlockedVersionFile(tmp_path, clock=clock, write=disk.write)
    keeper.keep("m", {7: BLOCKED})
    for _ in range(3):
        assert keeper._thread.wait_for_turn()
        keeper.write_now()
    assert clock.waits == [RETRY_SECONDS] * 2
    assert len(disk.written) == 1
    with pytest.raises(AssertionError, match="without a limit"):
        keeper._thread.wait_for_turn()


def test_stop_before_start_returns_at_once(tmp_path: Path):
    assert blocked_version_file(tmp_path).stop(timeout_seconds=0)


def test_directory_of_other_server_is_not_overwritten(
    tmp_path: Path,
) -> None:
    first, second = blocked_version_file(tmp_path), blocked_version_file(tmp_path)
    first.read()
    with capture_logs() as logs:
        second.read()
    (line,) = (line for line in logs if line["event"] == "blocked_versions_not_kept")
    assert "another server keeps its blocked versions there" in line["reason"]
    second.keep("ctr", {7: BLOCKED})
    assert not second.write_now()
    assert read_blocked_versions(tmp_path / FILE_NAME) == {}
    assert first.stop(timeout_seconds=1)
    assert second.write_now()
    assert read_blocked_versions(tmp_path / FILE_NAME) == {"ctr": {7: BLOCKED}}


def test_wait_until_kept_returns_once_it_is_on_disk(tmp_path: Path):
    keeper = BlockedVersionFile(tmp_path, clock=SystemClock())
    keeper.read()
    keeper.start()
    for version in range(1, 20):
        keeper.keep("m", {version: BLOCKED})
        assert keeper.wait_until_kept(60) == ""
        assert read_blocked_versions(tmp_path / FILE_NAME) == {"m": {version: BLOCKED}}
    assert keeper.stop(timeout_seconds=10)


def test_wait_until_kept_returns_the_disks_refusal(tmp_path: Path):
    disk = Disk(refusal_count=2)
    keeper = BlockedVersionFile(tmp_path, clock=SystemClock(), write=disk.write)
    keeper.start()
    keeper.keep("m", {7: BLOCKED})
    assert "Permission denied" in keeper.wait_until_kept(60)
    # A later call uses the disk again.
    while keeper.wait_until_kept(60):
        pass
    assert read_blocked_versions(tmp_path / FILE_NAME) == {"m": {7: BLOCKED}}
    assert keeper.stop(timeout_seconds=10)


def test_wait_until_kept_is_bounded_if_disk_hangs(tmp_path: Path):
    may_go_on, clock = threading.Event(), FakeClock()

    def hang(path: Path, blocked_versions: Mapping[str, BlockedVersions]) -> None:
        may_go_on.wait()

    keeper = BlockedVersionFile(tmp_path, clock=clock, write=hang)
    keeper.keep("m", {7: BLOCKED})
    writer = threading.Thread(target=keeper.write_now)
    writer.start()
    assert "not written within 3 s" in keeper.wait_until_kept(3)
    assert sum(clock.waits) == 3
    may_go_on.set()
    writer.join()
    assert keeper.wait_until_kept(3) == ""


def test_wait_without_a_change_returns_at_once(tmp_path: Path):
    assert blocked_version_file(tmp_path).wait_until_kept(0) == ""
