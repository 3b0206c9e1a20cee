"""Writes a version beside its place and renames it in, and fills it with links to another one's files."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.base.errors import FailedPrecondition

GRAPH_FILE = "saved_model.pb"
FINGERPRINT_FILE = "fingerprint.pb"
VARIABLES = "variables"
PREFIX = f"{VARIABLES}/variables"
"""The prefix of a SavedModel's checkpoint, below its directory."""

# The errors of `link` that a copy instead of a link avoids.
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})


def refuse_existing(path: Path) -> None:
    """Raises FailedPrecondition if something is at `path`."""
    if path.is_symlink() or path.exists():
        raise FailedPrecondition(f"{path} exists already: choose another version, or delete it")


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Yields a new directory beside `path`, which becomes `path` at the end.

    Servers ignore it until then, because its name is not a number. If the block fails, it is deleted.
    Raises FailedPrecondition if `path` exists, and OSError.
    """
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        yield partial
        refuse_existing(path)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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
