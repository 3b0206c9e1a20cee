"""Writes the files of request logs through fsspec: s3fs, gcsfs or adlfs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.storage.fsspec_store import open_file_system, store_errors

_PART_BYTES = 8 * 2**20
"""The bytes of a part: S3 takes parts from 5 MiB on, Google multiples of 256 KiB."""

# An upload whose answer was lost is made again: s3fs and gcsfs replace the object, and adlfs if it is told to.
# Parts go one after the other, because all parts under way are in memory: s3fs and adlfs would send several at once.
_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "s3": {"chunksize": _PART_BYTES, "max_concurrency": 1},
    "gs": {"chunksize": _PART_BYTES},
    "az": {"overwrite": True, "max_concurrency": 1},
}


class FsspecLogStore:
    """The directory `url` as a `LogStore`. One thread. The connection is made by the first upload."""

    def __init__(self, url: str, file_system: Any = None) -> None:
        """`file_system` replaces the file system of the URL's scheme, for tests."""
        self._url = url
        self._file_system = file_system

    def upload(self, path: Path, name: str) -> None:
        """See `LogStore`. Raises StoreError."""
        url = f"{self._url}/{name}"
        with store_errors(url):
            scheme = url.partition("://")[0]
            if self._file_system is None:
                self._file_system = open_file_system(scheme)
            options = _OPTIONS.get(scheme, {})
            self._file_system.put_file(str(path), self._file_system._strip_protocol(url), **options)  # noqa: SLF001 (fsspec has no public name for it)
