"""Writes a version beside its place and renames it in, and fills it with links to another one's files."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.base.clock import NS_PER_SECOND
from serving.base.directory_files import opened_directory
from serving.base.errors import FailedPrecondition

GRAPH_FILE = "saved_model.pb"
FINGERPRINT_FILE = "fingerprint.pb"
VARIABLES = "variables"
PREFIX = f"{VARIABLES}/variables"
"""The prefix of a SavedModel's checkpoint, below its directory."""

_PARTIAL = ".delta-partial"

_DATED_BACK_NS = 2 * NS_PER_SECOND
"""Above the second after which a server takes a version as still."""

# The errors of `link` that a copy instead of a link avoids.
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})


def refuse_existing(path: Path) -> None:
    """Raises FailedPrecondition if something is at `path`."""
    if path.is_symlink() or path.exists():
        raise FailedPrecondition(f"{path} exists already: choose another version, or delete it")


def refuse_target(path: Path, *sources: Path) -> None:
    """Raises FailedPrecondition if something is at `path`, or if `path` lies inside one of the `sources`."""
    refuse_existing(path)
    for source in sources:
        if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(source)):
            raise FailedPrecondition(
                f"{path} lies inside {source}, which is only read: choose a place outside of it"
            )


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Yields a new directory beside `path`, which becomes `path` at the end.

    Servers ignore it until then, because its name is not a number. If the block fails, it is deleted, and so are
    directories of processes that were killed: their links would keep a base's bytes on the disk.
    Raises FailedPrecondition if `path` exists, and OSError.
    """
    refuse_existing(path)
    with locked_directory(path) as partial:
        yield partial
        _date_back(partial)
        refuse_existing(path)
        partial.rename(path)


@contextmanager
def locked_directory(path: Path) -> Iterator[Path]:
    """Yields a new directory beside `path` that other processes leave alone, and deletes what is left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path.parent)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    # Under this name it would be a leftover if it were not locked.
    partial = fresh.with_name(f"{fresh.name}{_PARTIAL}")
    fresh.mkdir()
    try:
        with opened_directory(fresh) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            fresh.rename(partial)
            yield partial
    finally:
        for left in (fresh, partial):
            shutil.rmtree(left, ignore_errors=True)


def _remove_leftovers(parent: Path) -> None:
    for path in parent.glob(f".*{_PARTIAL}"):
        with suppress(OSError), opened_directory(path) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


def _date_back(version: Path) -> None:
    """Makes what is new in a version a little older, links left out.

    A server waits until a version that is being copied has been still for a second. This one appears whole.
    """
    for folder, _, names in os.walk(version):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:
                time_ns = status.st_mtime_ns - _DATED_BACK_NS
                os.utime(path, ns=(time_ns, time_ns))


def link_tree(
    source: Path, target: Path, leave_out: Collection[str] = (), *, may_copy: bool
) -> None:
    """Links all files below `source` into `target`, except for what `leave_out` names right below it.

    Raises the errors of `link_file`.
    """
    for folder, folders, names in os.walk(source):
        relative = Path(folder).relative_to(source)
        if relative == Path():
            folders[:] = [name for name in folders if name not in leave_out]
        (target / relative).mkdir(exist_ok=True)
        for name in names:
            if relative == Path() and name in leave_out:
                continue
            link_file(Path(folder, name), target / relative / name, may_copy=may_copy)


def link_file(source: Path, target: Path, *, may_copy: bool) -> None:
    """Makes `target` the same file as `source`, or a copy if there can be no link and `may_copy`.

    Raises OSError, and FailedPrecondition with the remedy if there can be no link.
    """
    try:
        # A symbolic link would point elsewhere from the target's directory, so the file itself is linked.
        os.link(source.resolve(), target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        if not may_copy:
            raise FailedPrecondition(_no_link_message(source, target, error)) from error
        shutil.copyfile(source, target)


def _no_link_message(source: Path, target: Path, error: OSError) -> str:
    return (
        f"{source} cannot be linked into {target.parent.parent} ({error.strerror}): write base and delta to "
        "one file system that has hard links, as the base's owner, or give copy=True (--copy), which "
        "writes all bytes and makes a server read them all"
    )
