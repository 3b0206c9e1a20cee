"""Files of request logs in a store of fsspec's, which is in memory."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from s3fs import S3FileSystem  # type: ignore[import-untyped]

from serving.storage.log_store import FsspecLogStore
from serving.storage.stored_objects import StoreError


class Refusing(MemoryFileSystem):  # type: ignore[misc]
    """Refuses all with an answer that has credentials."""

    def put_file(self, *arguments: object, **options: object) -> None:
        raise PermissionError("denied for AWS_SECRET_ACCESS_KEY=abc123")


def test_file_becomes_an_object_and_replaces_it(tmp_path: Path):
    file_system = MemoryFileSystem(skip_instance_cache=True)
    store = FsspecLogStore("memory://bucket/logs", file_system)
    for content in (b"one", b"two"):
        (tmp_path / "a").write_bytes(content)
        store.upload(tmp_path / "a", "ctr-1.tfrecord")
        assert file_system.cat_file("/bucket/logs/ctr-1.tfrecord") == content


class Parts(MemoryFileSystem):  # type: ignore[misc]
    """Keeps the options of an upload."""

    options: Mapping[str, object] = {}

    def put_file(self, *arguments: object, **options: object) -> None:
        del arguments
        self.options = options


def test_large_file_goes_in_small_parts_one_by_one(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"one")
    file_system = Parts(skip_instance_cache=True)
    FsspecLogStore("s3://bucket/logs", file_system).upload(tmp_path / "a", "a")
    assert file_system.options == {"chunksize": 8 * 2**20, "max_concurrency": 1}
    # The names are s3fs's: it would take a wrong one for an option of S3.
    assert set(file_system.options) < set(signature(S3FileSystem._put_file).parameters)


def test_refusal_is_an_error_without_credentials(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"one")
    store = FsspecLogStore("memory://bucket/logs", Refusing(skip_instance_cache=True))
    with pytest.raises(StoreError, match="memory://bucket/logs/a: PermissionError") as error:
        store.upload(tmp_path / "a", "a")
    assert "abc123" not in str(error.value)
