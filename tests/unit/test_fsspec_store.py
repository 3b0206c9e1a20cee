"""The reading of listings as the backends give them. A real S3 server: tests/integration/test_object_storage.py."""

import base64
import errno
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pytest

from serving.source.listing import Child
from serving.storage.fsspec_store import FsspecStore
from serving.storage.stored_objects import StoredObject, StoreError

WHEN = datetime(2026, 1, 2, tzinfo=timezone.utc)
MD5 = "d41d8cd98f00b204e9800998ecf8427e"


class FakeFileSystem:
    """A file system of fsspec, as far as a store calls it."""

    def __init__(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        self.found = found
        self.error: Exception | None = None
        self.buckets = {"b"}
        self.bucket_error: Exception | None = None
        self.forgotten_count = 0
        self.listed: list[str] = []

    def _strip_protocol(self, url: str) -> str:
        return url.partition("://")[2]

    def invalidate_cache(self) -> None:
        self.forgotten_count += 1

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        del detail
        self.listed.append(path)
        if path in self.buckets:
            if self.bucket_error is not None:
                raise self.bucket_error
            return []
        if self.error is not None:
            raise self.error
        return [
            {"name": f"{path}/7", "type": "directory"},
            {"name": f"{path}/", "type": "file"},
            {"name": f"{path}/readme", "type": "file"},
        ]

    def find(self, path: str, detail: bool = True) -> Mapping[str, Mapping[str, Any]]:
        assert (path, detail) == ("b/m/7", True)
        return self.found

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        if self.error is not None:
            raise self.error
        assert path == "b/m/7/saved_model.pb"
        return b"0123456789"[start:end]


def store_of(info: Mapping[str, Any] | None = None) -> tuple[FsspecStore, FakeFileSystem]:
    found = {"b/m/7/saved_model.pb": {"size": 3, "type": "file", **(info or {})}}
    file_system = FakeFileSystem(found)
    return FsspecStore("s3://b/m/", file_system), file_system


def test_children_are_directories_and_files():
    store, file_system = store_of()
    assert store.children() == [Child("7", True), Child("readme", False)]
    store.children()
    assert file_system.forgotten_count == 2


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (
            {"ETag": f'"{MD5}"', "LastModified": WHEN},
            StoredObject("saved_model.pb", 3, MD5, 1767312000 * 10**9, f"md5:{MD5}", False),
        ),
        ({"ETag": '"abc-2"'}, StoredObject("saved_model.pb", 3, "abc-2")),
        (
            {"etag": "e", "md5Hash": base64.b64encode(bytes.fromhex(MD5)).decode()},
            StoredObject("saved_model.pb", 3, "e", 0, f"md5:{MD5}"),
        ),
        (
            {"etag": "e", "content_settings": {"content_md5": bytearray.fromhex(MD5)}},
            StoredObject("saved_model.pb", 3, "e", 0, f"md5:{MD5}"),
        ),
        (
            {"blob_id": "g", "lfs": {"sha256": "ff"}},
            StoredObject("saved_model.pb", 3, "g", 0, "sha256:ff"),
        ),
        (
            {"mtime": WHEN},
            StoredObject("saved_model.pb", 3, str(1767312000 * 10**9), 1767312000 * 10**9),
        ),
    ],
    ids=["s3", "s3 in parts", "gs", "az", "hf", "no tag"],
)
def test_object_has_the_tag_of_its_store(info: Mapping[str, Any], expected: StoredObject):
    store, _ = store_of(info)
    assert store.objects("7") == (expected,)


def test_directory_objects_are_left_out():
    store, file_system = store_of()
    file_system.found = {
        "b/m/7": {"size": 0, "type": "file"},
        "b/m/7/variables/": {"size": 0, "type": "file", "name": "b/m/7/variables/"},
        "b/m/7/assets": {"size": 0, "type": "directory"},
        "b/m/7/.millpond-copy.json": {"size": 9, "type": "file"},
    }
    assert store.objects("7") == ()


def test_read_returns_a_range():
    store, _ = store_of()
    store.children()
    assert store.read("7", "saved_model.pb", 2, 3) == b"234"


def test_missing_prefix_is_an_empty_store():
    store, file_system = store_of()
    file_system.error = FileNotFoundError("b/m")
    assert store.children() == ()
    file_system.bucket_error = PermissionError("ListBucket of the whole bucket")
    assert store.children() == ()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("s3://b/m", TimeoutError("no answer")),
        ("gs://b/m", PermissionError("no permission")),
        ("hf://org/repo/m", PermissionError("the repository is gated")),
    ],
)
def test_bucket_that_cannot_be_listed_is_an_error(url: str, error: Exception):
    file_system = FakeFileSystem({})
    file_system.error = FileNotFoundError("m")
    file_system.buckets = {"b", "org/repo"}
    file_system.bucket_error = error
    with pytest.raises(StoreError, match=str(error)):
        FsspecStore(url, file_system).children()


@pytest.mark.parametrize(
    ("path", "repository"),
    [
        ("org/repo/m/n", "org/repo"),
        ("org/repo", "org/repo"),
        ("datasets/org/repo/m", "datasets/org/repo"),
        ("spaces/org/repo@v1/m", "spaces/org/repo@v1"),
        ("org/repo@refs/pr/1/m", "org/repo@refs/pr/1"),
    ],
)
def test_lost_repository_is_an_error(path: str, repository: str):
    file_system = FakeFileSystem({})
    file_system.error = FileNotFoundError("the repository is not found")
    # To list the user succeeds without the permission, and says nothing about the repository.
    file_system.buckets = {"org", "datasets", "spaces"}
    store = FsspecStore(f"hf://{path}", file_system)
    with pytest.raises(StoreError, match="the repository is not found"):
        store.children()
    assert file_system.listed == [path, repository]
    file_system.buckets = {repository}
    assert list(store.children()) == []


def test_missing_bucket_is_an_error():
    store, file_system = store_of()
    file_system.error = FileNotFoundError(errno.ENOENT, "The specified bucket does not exist")
    file_system.buckets = set()
    with pytest.raises(StoreError, match=r"s3://b/m: FileNotFoundError: .*bucket does not exist"):
        store.children()


def test_error_of_a_backend_has_no_credentials():
    store, file_system = store_of()
    file_system.error = RuntimeError("GET https://x/y?Signature=hunter2222: 403")
    with pytest.raises(StoreError) as error:
        store.read("7", "saved_model.pb", 0, 1)
    assert error.value.message == (
        "s3://b/m/7/saved_model.pb: RuntimeError: GET https://x/y?*** 403"
    )
    assert error.value.__cause__ is None
