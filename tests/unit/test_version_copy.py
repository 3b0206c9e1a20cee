"""The copy of one version: it resumes, and appears only whole."""

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from serving.base.errors import DataLoss
from serving.storage.stored_objects import StoreError
from serving.storage.version_copy import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    Experience,
    VersionCopy,
    partial_directory,
    raise_if_incomplete,
    remove_leftovers,
    remove_version,
    removed_name,
    whole_objects,
)
from tests.unit.fakes.object_stores import FakeStore


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "m"


@pytest.fixture
def store() -> FakeStore:
    fake = FakeStore()
    fake.read_bytes_max = 4
    fake.upload("7", "saved_model.pb", b"graph")
    fake.upload("7", "variables/variables.data", b"0123456789")
    return fake


def copy_of(store: FakeStore, base: Path, experience: Experience | None = None) -> VersionCopy:
    return VersionCopy(
        base,
        7,
        store.objects("7"),
        store=store,
        name="7",
        experience=experience or Experience(),
    )


def never() -> bool:
    return False


def test_copy_appears_whole_and_with_its_journal(store: FakeStore, base: Path):
    copy = copy_of(store, base)
    assert copy.advance(never)
    assert not base.exists()
    assert copy.publish(lambda directory: ["vocab"]) == ["vocab"]
    assert [entry.name for entry in base.iterdir()] == ["7"]
    assert (base / "7/variables/variables.data").read_bytes() == b"0123456789"
    assert [item.content for item in whole_objects(base / "7")] == [
        item.content for item in store.objects("7")
    ]


def test_copy_goes_on_where_it_stopped(store: FakeStore, base: Path):
    reads: list[str] = []

    def before_read(name: str, path: str) -> None:
        reads.append(path)
        if len(reads) == 4:
            raise StoreError("reset")

    store.before_read = before_read
    with pytest.raises(StoreError):
        copy_of(store, base).advance(never)
    assert copy_of(store, base).advance(never)
    # Five bytes need two reads and ten need three; only the one that failed is repeated.
    assert reads == ["saved_model.pb"] * 2 + ["variables/variables.data"] * 4


def test_copy_of_another_content_keeps_equal_files(store: FakeStore, base: Path):
    assert copy_of(store, base).advance(never)
    store.upload("7", "saved_model.pb", b"other")
    reads: list[str] = []
    store.before_read = lambda name, path: reads.append(path)
    copy = copy_of(store, base)
    assert copy.advance(never)
    copy.publish(lambda directory: [])
    assert {*reads} == {"saved_model.pb"}
    assert (base / "7/saved_model.pb").read_bytes() == b"other"


def test_file_that_became_a_directory_is_replaced(store: FakeStore, base: Path):
    store.upload("7", "a", b"file")
    assert copy_of(store, base).advance(never)
    del store.contents["7"]["a"]
    store.upload("7", "a/b/c", b"deep")
    assert copy_of(store, base).advance(never)
    del store.contents["7"]["a/b/c"]
    store.upload("7", "a", b"file")
    assert copy_of(store, base).advance(never)
    assert (partial_directory(base, 7) / "a").read_bytes() == b"file"


def test_copy_stops_between_reads(store: FakeStore, base: Path):
    answers = iter([False, False, True])
    assert not copy_of(store, base).advance(lambda: next(answers))
    assert copy_of(store, base).advance(never)


def test_refused_copy_stays_beside(store: FakeStore, base: Path):
    copy = copy_of(store, base)
    assert copy.advance(never)

    def check(directory: str) -> list[str]:
        raise_if_incomplete(["vocab"])
        raise AssertionError(directory)

    with pytest.raises(Exception, match="vocab is missing"):
        copy.publish(check)
    assert not base.exists()
    assert partial_directory(base, 7).exists()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def test_wrong_digest_is_read_again(store: FakeStore, base: Path):
    store.digest_of = lambda data: (f"md5:{md5(data + b'x')}", True)
    with pytest.raises(DataLoss, match=r"saved_model\.pb: the md5"):
        copy_of(store, base).advance(never)
    assert not (partial_directory(base, 7) / "saved_model.pb").exists()
    store.digest_of = lambda data: (f"md5:{md5(data)}", True)
    assert copy_of(store, base).advance(never)


def test_tag_that_is_no_digest_is_learned(store: FakeStore, base: Path):
    store.digest_of = lambda data: ("md5:" + "0" * 32, False)
    experience = Experience()
    copy = copy_of(store, base, experience)
    assert not copy.advance(never)
    assert copy.advance(never)
    assert not experience.trusts_tags


def test_content_that_differs_in_each_read_is_refused(store: FakeStore, base: Path):
    store.digest_of = lambda data: ("md5:" + "0" * 32, False)
    experience = Experience()
    copy = copy_of(store, base, experience)
    assert not copy.advance(never)
    first, tag = store.contents["7"]["saved_model.pb"]
    store.contents["7"]["saved_model.pb"] = (first[::-1], tag)
    with pytest.raises(DataLoss, match="two reads of it gave two contents"):
        copy.advance(never)
    assert not (partial_directory(base, 7) / "saved_model.pb").exists()
    # Later it begins anew, and finds a content that stays.
    assert not copy.advance(never)
    assert copy.advance(never)
    assert not experience.trusts_tags


def test_suspect_of_one_version_is_none_of_another(store: FakeStore, base: Path):
    store.digest_of = lambda data: ("md5:" + "0" * 32, False)
    experience = Experience()
    assert not copy_of(store, base, experience).advance(never)
    store.upload("7", "saved_model.pb", b"other")
    assert not copy_of(store, base, experience).advance(never)


def test_reads_shrink_with_failures_and_grow_again():
    experience = Experience()
    for _ in range(20):
        experience.read_failed()
    assert experience.chunk_bytes == CHUNK_BYTES_MIN
    experience.read_succeeded()
    assert experience.chunk_bytes == CHUNK_BYTES_MIN
    for _ in range(40):
        experience.read_succeeded()
    assert experience.chunk_bytes == CHUNK_BYTES_MAX


def test_reads_are_stuck_only_by_failures_in_a_row():
    experience = Experience()
    for count in range(20):
        assert not experience.is_stuck
        experience.read_failed()
        if count % 6 == 5:
            assert experience.chunk_bytes == CHUNK_BYTES_MIN
            experience.read_succeeded()
    for _ in range(7):
        experience.read_failed()
    assert experience.is_stuck


def test_store_that_sends_too_little_is_an_error(store: FakeStore, base: Path):
    store.read_bytes_max = 0
    with pytest.raises(StoreError, match="got 0 of 5 bytes at 0"):
        copy_of(store, base).advance(never)


def test_version_that_lost_a_byte_is_not_whole(store: FakeStore, base: Path):
    copy = copy_of(store, base)
    assert copy.advance(never)
    copy.publish(lambda directory: [])
    file = base / "7/variables/variables.data"
    file.chmod(0o644)
    file.write_bytes(b"012345678")
    assert whole_objects(base / "7") == ()


def test_removed_version_leaves_nothing(store: FakeStore, base: Path):
    copy = copy_of(store, base)
    assert copy.advance(never)
    copy.publish(lambda directory: [])
    remove_version(base, 7)
    remove_version(base, 7)
    assert list(base.iterdir()) == []


def leave_half_deleted(base: Path) -> None:
    (base / removed_name(7) / "variables").mkdir(parents=True)


def test_version_replaces_one_that_is_half_deleted(store: FakeStore, base: Path):
    for graph in (b"graph", b"other"):
        store.upload("7", "saved_model.pb", graph)
        leave_half_deleted(base)
        copy = copy_of(store, base)
        assert copy.advance(never)
        copy.publish(lambda directory: [])
        assert (base / "7/saved_model.pb").read_bytes() == graph
        assert [entry.name for entry in base.iterdir()] == ["7"]


def test_half_deleted_version_is_deleted(base: Path):
    remove_leftovers(base)
    (base / "7").mkdir(parents=True)
    leave_half_deleted(base)
    remove_leftovers(base)
    assert [entry.name for entry in base.iterdir()] == ["7"]


# --- Links to other copies --------------------------------------------------------------------------------------

DATA = "variables/variables.data"
TIME_NS = 1_600_000_000 * 10**9


@pytest.fixture
def other(store: FakeStore, base: Path) -> Path:
    """The copy of version 6, whose variables version 7 has too."""
    store.digest_of = lambda data: (f"md5:{md5(data)}", True)
    store.upload("6", "saved_model.pb", b"other")
    store.upload("6", DATA, b"0123456789")
    copy = VersionCopy(base, 6, store.objects("6"), store=store, name="6", experience=Experience())
    assert copy.advance(never)
    assert copy.publish(lambda directory: []) == []
    os.utime(base / "6" / DATA, ns=(TIME_NS, TIME_NS))
    return base / "6" / DATA


def linking_copy(store: FakeStore, base: Path, other: Path) -> tuple[VersionCopy, list[str]]:
    """The copy of version 7, and the paths that it will read from the store."""
    reads: list[str] = []
    store.before_read = lambda name, path: reads.append(path)
    copied = {(f"md5:{md5(b'0123456789')}", 10): other}
    objects = tuple(replace(item, modified_ns=TIME_NS + 5) for item in store.objects("7"))
    copy = VersionCopy(
        base, 7, objects, store=store, name="7", experience=Experience(), copied=copied
    )
    return copy, reads


def test_file_of_another_copy_is_linked(store: FakeStore, base: Path, other: Path):
    copy, reads = linking_copy(store, base, other)
    assert copy.advance(never)
    assert copy.linked_bytes() == 10
    copy.publish(lambda directory: [])
    assert {*reads} == {"saved_model.pb"}
    linked = (base / "7" / DATA).stat()
    # The time is a part of what a server knows a file by.
    assert (linked.st_ino, linked.st_mtime_ns) == (other.stat().st_ino, TIME_NS)
    assert (base / "7/saved_model.pb").stat().st_mtime_ns == TIME_NS + 5
    remove_version(base, 6)
    assert (base / "7" / DATA).read_bytes() == b"0123456789"


def test_partly_read_file_becomes_a_link(store: FakeStore, base: Path, other: Path):
    answers = iter([False] * 4 + [True])
    assert not copy_of(store, base).advance(lambda: next(answers))
    assert (partial_directory(base, 7) / DATA).stat().st_size == 8
    copy, reads = linking_copy(store, base, other)
    assert copy.advance(never)
    assert reads == []
    assert (partial_directory(base, 7) / DATA).stat().st_ino == other.stat().st_ino


def test_changed_file_of_another_copy_is_not_linked(store: FakeStore, base: Path, other: Path):
    other.chmod(0o644)
    other.write_bytes(b"9876543210")
    copy, reads = linking_copy(store, base, other)
    assert copy.advance(never)
    assert (copy.linked_bytes(), {*reads}) == (0, {"saved_model.pb", DATA})
    assert (partial_directory(base, 7) / DATA).read_bytes() == b"0123456789"


def test_truncated_file_of_another_copy_is_not_linked(store: FakeStore, base: Path, other: Path):
    other.chmod(0o644)
    os.truncate(other, 9)
    other.chmod(0o444)
    copy, _ = linking_copy(store, base, other)
    assert copy.advance(never)
    assert copy.linked_bytes() == 0


def test_file_that_cannot_be_linked_is_read(
    store: FakeStore, base: Path, other: Path, monkeypatch: pytest.MonkeyPatch
):
    def link(*_: object) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr(os, "link", link)
    copy, reads = linking_copy(store, base, other)
    assert copy.advance(never)
    assert {*reads} == {"saved_model.pb", DATA}
    assert (partial_directory(base, 7) / DATA).read_bytes() == b"0123456789"


def test_other_copy_that_is_gone_is_read_again(store: FakeStore, base: Path, other: Path):
    copy, _ = linking_copy(store, base, other)
    remove_version(base, 6)
    assert copy.advance(never)
    assert (partial_directory(base, 7) / DATA).read_bytes() == b"0123456789"
