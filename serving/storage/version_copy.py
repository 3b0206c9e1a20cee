"""Copies one version beside its place, resumes an interrupted copy, and renames a whole copy in.

A copy lies in a hidden directory beside the base path, so that the base path appears together with its
first version. If it appeared before, empty, a source might unload all versions. The copy's journal lists
the objects that its files are from. So after a crash, a file whose content is not known for certain is
deleted.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from serving.base.directory_files import opened_directory, replace_file, sync_directory
from serving.base.errors import DataLoss, FailedPrecondition
from serving.source.listing import FilesCheck
from serving.storage.stored_objects import (
    JOURNAL_NAME,
    Objects,
    ObjectStore,
    StoredObject,
    StoreError,
)

CHUNK_BYTES_MAX = 16 * 2**20
"""The most bytes of one read: enough for a fast link, and held in memory."""

CHUNK_BYTES_MIN = 64 * 2**10
"""The fewest bytes of one read. Each chunk is kept, so even a link that breaks often makes progress."""

_HASH_BYTES = 2**20

# The mode of any file that a process writes; the umask applies.
_JOURNAL_MODE = 0o666

# With fewer, every second read would fail on a link that breaks after a certain number of bytes.
_SUCCESS_COUNT = 4

# After six failures the reads of a new mirror are as small as they get, so a smaller read does not help
# after seven.
_FAILURE_COUNT_MAX = 7


class Experience:
    """The experience of one mirror's copies with its store."""

    def __init__(self) -> None:
        self.chunk_bytes = CHUNK_BYTES_MAX // 4
        self.trusts_tags = True
        self._success_count = 0
        self._failure_count = 0
        self._suspects: dict[tuple[str, int, str], str] = {}

    def read_succeeded(self) -> None:
        """Doubles the bytes of the next read after some successes in a row."""
        self._failure_count = 0
        self._success_count += 1
        if self._success_count % _SUCCESS_COUNT == 0:
            self.chunk_bytes = min(self.chunk_bytes * 2, CHUNK_BYTES_MAX)

    def read_failed(self) -> None:
        """Halves the bytes of the next read."""
        self._success_count = 0
        self._failure_count += 1
        self.chunk_bytes = max(self.chunk_bytes // 2, CHUNK_BYTES_MIN)

    @property
    def is_stuck(self) -> bool:
        """True if so many reads in a row have failed that it is not the link."""
        return self._failure_count >= _FAILURE_COUNT_MAX

    def note_mismatch(self, item: StoredObject, digest: str) -> bool:
        """Notes a copy whose digest is not the tag of its object.

        The tag of an encrypted object is not its digest. So the file must be read again (False). If the
        second read has the digest of the first one, tags are not trusted any more (True). Raises DataLoss
        if the tag is surely a digest, or if the two reads differ.
        """
        if item.is_digest_sure:
            algorithm = item.digest.partition(":")[0]
            raise DataLoss(f"{item.path}: the {algorithm} of its copy is not that of the store")
        former = self._suspects.pop(item.content, None)
        if former is None:
            self._suspects[item.content] = digest
            return False
        if former != digest:
            raise DataLoss(
                f"{item.path}: two reads of it gave two contents, and neither has its tag"
            )
        self.trusts_tags = False
        return True


class VersionCopy:
    """The copy of one content of a version into `base`. One thread; all its state is on disk.

    `check` returns the missing assets of a directory and raises if a version in it is incomplete.
    """

    def __init__(
        self,
        base: Path,
        version: int,
        objects: Objects,
        *,
        store: ObjectStore,
        name: str,
        experience: Experience,
        copied: Mapping[tuple[str, int], Path] = MappingProxyType({}),
    ) -> None:
        """`name` is the version's directory in the store, which may be spelled like "007".

        `copied` are files of other copies by their contents. The copy gets links to them.
        """
        self._base = base
        self._version = version
        self._objects = objects
        self._store = store
        self._name = name
        self._experience = experience
        self._copied = copied
        self._partial = partial_directory(base, version)

    def advance(self, is_over: Callable[[], bool]) -> bool:
        """Copies until `is_over`. Returns True once all files are there, with their sizes and digests.

        Raises StoreError, OSError, and DataLoss if a file has another digest than its object.
        """
        self._begin()
        return all(self._copy_file(item, is_over) for item in self._objects)

    def linked_bytes(self) -> int:
        """The bytes that were not read from the store. Call it before `publish`. Raises OSError."""
        return sum(item.size for item in self._objects if _is_linked(self._partial / item.path))

    def publish(
        self, check: FilesCheck, is_held: Callable[[], bool] | None = None
    ) -> Sequence[str] | None:
        """Checks the files and renames the copy in. Returns the assets that it lacks.

        Returns None if the former content `is_held`. That is asked last, because a load of it may begin during
        the check. Raises the errors of `check`, and OSError. After None or an error the copy stays beside
        the version's directory.
        """
        missing_assets = check(str(self._partial))
        self._set_times()
        _sync_tree(self._partial)
        self._base.mkdir(parents=True, exist_ok=True)
        place = self._base / str(self._version)
        # An earlier process may have ended while it deleted this directory. A rename onto its rest would fail.
        remove_tree(self._base / removed_name(self._version))
        if is_held is not None and place.exists() and is_held():
            return None
        with suppress(FileNotFoundError):
            # The former content, of a version that does not serve.
            place.rename(self._base / removed_name(self._version))
        self._partial.rename(place)
        sync_directory(self._base)
        remove_tree(self._base / removed_name(self._version))
        return missing_assets

    def _begin(self) -> None:
        """Deletes the files of other contents, and writes the journal of this one."""
        known = {item.path: item.content for item in read_journal(self._partial)}
        wanted = {item.path: item.content for item in self._objects}
        if known == wanted:
            return
        for path in _files_below(self._partial):
            if path != JOURNAL_NAME and (
                known.get(path) is None or known[path] != wanted.get(path)
            ):
                (self._partial / path).unlink()
        # A directory of the former content may be in the place of a file.
        for folder, _, _ in os.walk(self._partial, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)
        self._partial.mkdir(parents=True, exist_ok=True)
        _write_journal(self._partial, self._objects)

    def _copy_file(self, item: StoredObject, is_over: Callable[[], bool]) -> bool:
        path = self._partial / item.path
        if _is_marked(path):
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._link(item, path):
            return True
        with path.open("ab") as file:
            if file.tell() > item.size:
                file.truncate(0)
            while file.tell() < item.size:
                if is_over():
                    return False
                # Flushed, so that after a crash each byte of the file is on the disk.
                file.write(self._read(item, file.tell()))
                file.flush()
                os.fdatasync(file.fileno())
        if not self._verify_digest(item, path):
            path.unlink()
            return False
        # A file that was checked is read-only, and is not hashed again.
        path.chmod(0o444)
        return True

    def _link(self, item: StoredObject, path: Path) -> bool:
        """Makes `path` a link to a file of another copy that has these bytes; False if there is none."""
        content = item.file_content
        other = self._copied.get(content) if content is not None else None
        # A file that was checked is read-only. A writable one may have been changed since.
        if other is None or not _is_marked(other) or other.stat().st_size != item.size:
            return False
        try:
            path.unlink(missing_ok=True)
            os.link(other, path)
        except OSError:
            # The file system has no links, or no more of this file: the bytes are read instead.
            return False
        return True

    def _read(self, item: StoredObject, offset: int) -> bytes:
        size = min(self._experience.chunk_bytes, item.size - offset)
        try:
            data = self._store.read(self._name, item.path, offset, size)
        except StoreError:
            self._experience.read_failed()
            raise
        if not data or len(data) > size:
            self._experience.read_failed()
            raise StoreError(f"{item.path}: got {len(data)} of {size} bytes at {offset}")
        self._experience.read_succeeded()
        return data

    def _verify_digest(self, item: StoredObject, path: Path) -> bool:
        """Compares a whole file with its object's digest; False if the file must be read again.

        Raises DataLoss, and deletes the file, if that would not help.
        """
        algorithm, _, expected = item.digest.partition(":")
        if not algorithm or not (item.is_digest_sure or self._experience.trusts_tags):
            return True
        digest = _digest_of(path, algorithm)
        if digest == expected:
            return True
        try:
            return self._experience.note_mismatch(item, digest)
        except DataLoss:
            # Gives the files the times of the store, so that a source sees at once that they have settled.
            path.unlink()
            raise

    def _set_times(self) -> None:
        """Gives the files the times of the store, so that a source sees at once that they are still."""
        known = [item.modified_ns for item in self._objects if item.modified_ns]
        if not known:
            return
        for item in self._objects:
            time_ns = item.modified_ns or max(known)
            # A server knows a file that it has read by its time. So a link keeps that of the other copy.
            if not _is_linked(self._partial / item.path):
                os.utime(self._partial / item.path, ns=(time_ns, time_ns))
        journal = self._partial / JOURNAL_NAME
        os.utime(journal, ns=(max(known), max(known)))
        for directory, _, _ in os.walk(self._partial):
            os.utime(directory, ns=(max(known), max(known)))


def partial_directory(base: Path, version: int) -> Path:
    """The directory of an interrupted copy."""
    return work_directory(base) / f"{version}.partial"


def work_directory(base: Path) -> Path:
    """The directory of all interrupted copies of a base path."""
    return base.with_name(f".{base.name}.work")


def removed_name(version: int | str) -> str:
    return f".{version}.removed"


def whole_objects(directory: Path) -> Objects:
    """The objects that the copy in `directory` is from; () if it is not whole."""
    objects = read_journal(directory)
    for item in objects:
        try:
            if (directory / item.path).stat().st_size != item.size:
                return ()
        except OSError:
            return ()
    return objects


def read_journal(directory: Path) -> Objects:
    """Reads the objects of the journal; () if there is no journal that can be read."""
    try:
        rows = json.loads((directory / JOURNAL_NAME).read_bytes())
        # A journal of before links has no digests.
        return tuple(
            StoredObject(str(path), int(size), str(tag), digest="".join(digest))
            for path, size, tag, *digest in rows
        )
    except (OSError, ValueError, TypeError):
        return ()


def _write_journal(directory: Path, objects: Objects) -> None:
    rows = json.dumps([(*item.content, item.digest) for item in objects]).encode()
    with opened_directory(directory) as descriptor:
        replace_file(descriptor, JOURNAL_NAME, [rows], _JOURNAL_MODE)


def remove_version(base: Path, version: int) -> None:
    """Deletes a copy. It is renamed first, so that a source never sees half of it."""
    with suppress(FileNotFoundError):
        remove_tree(base / removed_name(version))
        (base / str(version)).rename(base / removed_name(version))
    remove_tree(base / removed_name(version))


def remove_leftovers(base: Path) -> None:
    """Deletes the copies whose deletion was interrupted. They count in no budget. Raises OSError."""
    for directory in base.glob(removed_name("*")):
        remove_tree(directory)


def remove_tree(directory: Path) -> None:
    """Deletes a directory if there is one. Raises OSError."""
    if directory.is_symlink() or directory.exists():
        shutil.rmtree(directory)


def raise_if_incomplete(missing_assets: Sequence[str]) -> None:
    """Raises FailedPrecondition if an asset is missing."""
    if missing_assets:
        raise FailedPrecondition(
            f"{missing_assets[0]} is missing, which the graph names as an asset"
        )


def _is_marked(path: Path) -> bool:
    try:
        return path.stat().st_mode & 0o777 == 0o444
    except FileNotFoundError:
        return False


def _is_linked(path: Path) -> bool:
    return path.stat().st_nlink > 1


def _files_below(directory: Path) -> Iterator[str]:
    for folder, _, names in os.walk(directory):
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), directory)


def _digest_of(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(_HASH_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _sync_tree(directory: Path) -> None:
    for folder, _, _ in os.walk(directory):
        sync_directory(Path(folder))
