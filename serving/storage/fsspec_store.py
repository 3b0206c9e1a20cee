"""A base path read through fsspec: s3fs, gcsfs, adlfs or huggingface_hub.

Only a server with a URL of object storage imports this module. Its imports of fsspec and of the
backends are within functions, because a backend takes seconds to import.
"""

import base64
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from serving.base.clock import NS_PER_SECOND
from serving.source.listing import Child
from serving.storage.safe_text import safe_text
from serving.storage.stored_objects import JOURNAL_NAME, Objects, StoredObject, StoreError

_TAG_KEYS = ("ETag", "etag", "generation", "blob_id", "oid")
_TIME_KEYS = ("LastModified", "last_modified", "mtime", "updated")
_TRIES = 2
_BUCKET = re.compile(r"[^/]+")
# A repository of models has no type before its name. A revision may follow the name.
_HF_REPOSITORY = re.compile(
    r"((datasets|spaces|buckets)/)?[^/]+/[^/@]+(@(refs/(convert|pr)/[^/]+|[^/]+))?"
)
_MD5 = re.compile(r"[0-9a-f]{32}")


class FsspecStore:
    """The base path `url`. One thread. The connection is made by the first call."""

    def __init__(self, url: str, file_system: Any = None) -> None:
        """`file_system` replaces the file system of the URL's scheme, for tests."""
        self._url = url.rstrip("/")
        self._file_system = file_system
        self._root = ""

    def children(self) -> Sequence[Child]:
        """See `ObjectStore`."""
        with store_errors(self._url):
            fs = self._fs()
            try:
                entries = fs.ls(self._root, detail=True)
            except FileNotFoundError:
                # If the bucket itself is missing, nothing is known about the versions in it.
                self._list_bucket()
                return ()
        found = {_base_name(item["name"]): item["type"] == "directory" for item in entries}
        # Some stores list an empty object for the directory itself.
        own = _base_name(self._root)
        return [
            Child(name, is_directory)
            for name, is_directory in sorted(found.items())
            if name and (is_directory or name != own)
        ]

    def objects(self, name: str) -> Objects:
        """See `ObjectStore`."""
        with store_errors(f"{self._url}/{name}"):
            fs = self._fs()
            folder = f"{self._root}/{name}"
            found: Mapping[str, Mapping[str, Any]] = fs.find(folder, detail=True)
        objects = (_object(path, info, folder) for path, info in found.items())
        return tuple(sorted(item for item in objects if item is not None))

    def read(self, name: str, path: str, offset: int, size: int) -> bytes:
        """See `ObjectStore`."""
        with store_errors(f"{self._url}/{name}/{path}"):
            fs = self._fs(is_fresh=False)
            full = f"{self._root}/{name}/{path}"
            data: bytes = fs.cat_file(full, start=offset, end=offset + size)
        return data

    def _fs(self, *, is_fresh: bool = True) -> Any:
        if self._file_system is None:
            self._file_system = open_file_system(self._url.partition("://")[0])
        self._root = self._root or str(self._file_system._strip_protocol(self._url)).rstrip("/")  # noqa: SLF001 (fsspec has no public name for it)
        if is_fresh:
            self._file_system.invalidate_cache()
        return self._file_system

    def _list_bucket(self) -> None:
        """Raises any error of a backend if the bucket, or the repository, is not known to be there."""
        scheme = self._url.partition("://")[0]
        pattern = _HF_REPOSITORY if scheme == "hf" else _BUCKET
        found = pattern.match(self._root)
        try:
            self._fs().ls(found[0] if found else self._root)
        except PermissionError:
            # A user of S3 may be allowed to list only a prefix. The prefix was listed, and is empty.
            if scheme != "s3":
                raise


def open_file_system(scheme: str) -> Any:
    """Makes the file system of a scheme, which connects at its first use. Raises any error of a backend."""
    import fsspec

    file_system = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
    # For s3fs. The callers try again themselves, a mirror with a smaller read.
    file_system.retries = _TRIES
    return file_system


def reading_threads() -> Collection[int]:
    """Returns the id of the thread on which fsspec reads for all mirrors, once it is there.

    The first mirror to read starts it, so it has the priority of a mirror.
    """
    return [
        thread.native_id
        for thread in threading.enumerate()
        if thread.name == "fsspecIO" and thread.native_id is not None
    ]


def _object(path: str, info: Mapping[str, Any], folder: str) -> StoredObject | None:
    relative = path.removeprefix(folder).lstrip("/")
    is_directory = info.get("type") == "directory" or str(info.get("name", path)).endswith("/")
    if not relative or is_directory or relative == JOURNAL_NAME:
        return None
    modified_ns = _modified_ns(info)
    tag = next((str(info[key]).strip('"') for key in _TAG_KEYS if info.get(key)), "")
    digest, is_sure = _digest(info, tag)
    return StoredObject(
        path=relative,
        size=int(info["size"]),
        # In a store without tags, the time shows that the content is new.
        tag=tag or str(modified_ns),
        modified_ns=modified_ns,
        digest=digest,
        is_digest_sure=is_sure,
    )


def _digest(info: Mapping[str, Any], tag: str) -> tuple[str, bool]:
    """The digest that the store gives, and False if it may be no digest at all."""
    lfs = info.get("lfs")
    sha256 = lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None)
    if sha256:
        return f"sha256:{sha256}", True
    settings = info.get("content_settings")
    md5 = info.get("md5Hash") or (settings and settings.get("content_md5"))
    if md5:
        raw = base64.b64decode(md5) if isinstance(md5, str) else bytes(md5)
        return f"md5:{raw.hex()}", True
    # In S3, the ETag of an object that was uploaded in one part is a digest, unless the object is encrypted
    # by KMS.
    if "ETag" in info and _MD5.fullmatch(tag):
        return f"md5:{tag}", False
    return "", True


def _modified_ns(info: Mapping[str, Any]) -> int:
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, datetime):
            return round(value.timestamp()) * NS_PER_SECOND
    return 0


def _base_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turns any error of a backend into a StoreError without credentials.

    Backends raise errors of their own libraries, so there is no narrower class.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001
        text = safe_text(str(error)) or "no reason given"
        # Raised without the cause, because a traceback of a backend may show its arguments.
        raise StoreError(f"{what}: {type(error).__name__}: {text}") from None
