"""The files of a request log: names, modes, the budget, and what a killed process left."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import InvalidConfig
from serving.request_log.log_files import (
    CompleteFile,
    LogFiles,
    PartialFile,
    check_directory,
    files_to_delete,
)
from tests.unit.fakes.clocks import FakeClock
from warmup.records import encode_record, read_records

WALL_NS = FakeClock.START_WALL_NS  # 2023-11-14, 22:13:20
TOKEN = "0123abcd"


def files_of(directory: Path, token: str = TOKEN, file_type: str = "tfrecord") -> LogFiles:
    return LogFiles(str(directory / "ctr"), file_type, token=token, numbers=count(1))


def complete(files: LogFiles, data: bytes = b"", seconds: int = 0) -> PartialFile:
    file = files.begin(WALL_NS + seconds * NS_PER_SECOND)
    os.write(file.descriptor, data)
    files.complete(file)
    return file


def test_file_is_hidden_until_it_is_complete(tmp_path: Path):
    files = files_of(tmp_path)
    file = files.begin(WALL_NS)
    assert os.listdir(tmp_path) == [".ctr-20231114T221320Z-0123abcd-000001.tfrecord.partial"]
    os.write(file.descriptor, b"data")
    assert files.complete(file) == 4
    (path,) = tmp_path.iterdir()
    assert path.name == "ctr-20231114T221320Z-0123abcd-000001.tfrecord"
    assert path.read_bytes() == b"data"


def test_file_is_readable_for_its_user_alone(tmp_path: Path):
    complete(files_of(tmp_path))
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_files_of_one_second_have_numbers(tmp_path: Path):
    files = files_of(tmp_path)
    assert complete(files).name < complete(files).name


def test_discarded_file_leaves_nothing(tmp_path: Path):
    files = files_of(tmp_path)
    files.discard(files.begin(WALL_NS))
    assert os.listdir(tmp_path) == []


def test_link_in_place_of_the_file_is_not_followed(tmp_path: Path):
    target = tmp_path / "other"
    target.write_text("kept")
    (tmp_path / ".ctr-20231114T221320Z-0123abcd-000001.tfrecord.partial").symlink_to(target)
    with pytest.raises(FileExistsError):
        files_of(tmp_path).begin(WALL_NS)
    assert target.read_text() == "kept"


def test_file_system_without_locks_leaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    descriptor_count = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No locks available"):
        files_of(tmp_path).begin(WALL_NS)
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == descriptor_count


def before_first_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Lets `act` run between the open of the next file and its lock."""
    real_flock = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real_flock)
        act()
        real_flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


def test_file_that_another_server_locks_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    locks = []

    def lock_all() -> None:
        for path in tmp_path.iterdir():
            locks.append(path.open())
            fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)

    before_first_lock(monkeypatch, lock_all)
    descriptor_count = len(os.listdir("/proc/self/fd"))
    file = files_of(tmp_path).begin(WALL_NS)
    assert file.name == "ctr-20231114T221320Z-0123abcd-000002.tfrecord"
    for lock in locks:
        lock.close()
    assert len(os.listdir("/proc/self/fd")) == descriptor_count + 1
    os.close(file.descriptor)


def test_file_that_another_server_deletes_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before_first_lock(monkeypatch, files_of(tmp_path, "ffffffff").recover)
    files = files_of(tmp_path)
    file = files.begin(WALL_NS)
    os.write(file.descriptor, b"data")
    assert files.complete(file) == 4
    assert os.listdir(tmp_path) == ["ctr-20231114T221320Z-0123abcd-000002.tfrecord"]


def test_endless_loss_of_files_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def flock(descriptor: int, operation: int) -> None:
        raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BlockingIOError, match="take each new file"):
        files_of(tmp_path).begin(WALL_NS)


# --- The budget ---------------------------------------------------------------------------------


def test_oldest_files_of_the_prefix_are_deleted(tmp_path: Path):
    old = complete(files_of(tmp_path, "ffffffff"), b"x" * 10)
    files = files_of(tmp_path)
    newer = [complete(files, b"x" * 10, seconds=second) for second in (1, 2)]
    for other in ("ctr2-20231114T221320Z-0123abcd-000001.tfrecord", "ctr-notes.txt"):
        (tmp_path / other).write_bytes(b"x" * 100)
    assert [file.name for file in files.delete_oldest(25)] == [old.name]
    assert files.delete_oldest(20) == []
    assert sorted(os.listdir(tmp_path)) == sorted(
        [
            *(file.name for file in newer),
            "ctr-notes.txt",
            "ctr2-20231114T221320Z-0123abcd-000001.tfrecord",
        ]
    )


def test_parquet_files_count_in_the_same_budget(tmp_path: Path):
    old = complete(files_of(tmp_path, file_type="parquet"), b"x" * 10)
    files = files_of(tmp_path)
    complete(files, b"x" * 10, seconds=1)
    assert [file.name for file in files.delete_oldest(10)] == [old.name]


@given(st.lists(st.integers(0, 100)), st.integers(0, 300))
def test_budget_keeps_as_many_files_as_fit(sizes: Sequence[int], bytes_max: int):
    files = [CompleteFile(str(age), size) for age, size in enumerate(sizes)]
    deleted = files_to_delete(files, bytes_max)
    assert deleted == files[: len(deleted)]
    assert sum(file.size_bytes for file in files[len(deleted) :]) <= bytes_max
    if deleted:
        assert sum(file.size_bytes for file in files[len(deleted) - 1 :]) > bytes_max


# --- After a crash --------------------------------------------------------------------------------


def left_behind(directory: Path, data: bytes, file_type: str = "tfrecord") -> str:
    """Returns the name that the file of a killed process would have had."""
    file = files_of(directory, "ffffffff", file_type).begin(WALL_NS)
    os.write(file.descriptor, data)
    os.close(file.descriptor)
    return file.name


@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=4).flatmap(
        lambda records: st.tuples(
            st.just(records), st.integers(0, sum(16 + len(record) for record in records))
        )
    )
)
def test_records_of_a_killed_process_are_kept(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[list[bytes], int]
):
    records, size_bytes = case
    directory = tmp_path_factory.mktemp("killed")
    name = left_behind(directory, b"".join(map(encode_record, records))[:size_bytes])
    recovered = files_of(directory).recover()
    whole: list[bytes] = []
    while sum(16 + len(record) for record in records[: len(whole) + 1]) <= size_bytes:
        if len(whole) == len(records):
            break
        whole.append(records[len(whole)])
    if not whole:
        assert (list(recovered), os.listdir(directory)) == ([], [])
    else:
        assert [file.name for file in recovered] == os.listdir(directory) == [name]
        assert list(read_records(directory / name)) == whole


def test_file_that_another_server_writes_is_left(tmp_path: Path):
    other = files_of(tmp_path, "ffffffff")
    file = other.begin(WALL_NS)
    os.write(file.descriptor, encode_record(b"a"))
    assert files_of(tmp_path).recover() == []
    other.complete(file)
    assert os.listdir(tmp_path) == [file.name]


def test_parquet_file_without_its_end_is_deleted(tmp_path: Path):
    left_behind(tmp_path, b"PAR1", "parquet")
    assert files_of(tmp_path).recover() == []
    assert os.listdir(tmp_path) == []


# --- The directory --------------------------------------------------------------------------------


def test_directory_of_the_users_own_is_accepted(tmp_path: Path):
    check_directory(str(tmp_path / "m"), "model 'm'")


def test_missing_directory_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match=r"No such file or directory\); make the directory"):
        check_directory(str(tmp_path / "no" / "m"), "model 'm'")


def test_file_as_directory_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match="is not a directory"):
        check_directory(str(tmp_path / "file" / "m"), "model 'm'")


def test_directory_that_all_may_write_is_refused(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidConfig, match="chmod o-w"):
        check_directory(str(tmp_path / "m"), "model 'm'")
    tmp_path.chmod(0o1777)
    check_directory(str(tmp_path / "m"), "model 'm'")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_without_access_is_refused(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidConfig, match="not writable for the server's user"):
        check_directory(str(tmp_path / "m"), "model 'm'")
