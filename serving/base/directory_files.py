"""Opens files relative to their directory, without following links, and replaces whole files."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.base.name_text import file_name

PRIVATE_FILE_MODE = 0o600
PRIVATE_DIRECTORY_MODE = 0o700

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """Yields a descriptor of the directory `path`, which may be a link, as an operator chose it.

    Raises OSError.
    """
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Writes a directory to disk: a rename within it is durable only after that. Raises OSError."""
    with opened_directory(path) as descriptor:
        os.fsync(descriptor)


@contextmanager
def opened_directory_of_name(parent: Path, name: str) -> Iterator[int]:
    """Yields a descriptor of the directory for `name` within `parent`; makes both private if missing.

    `name` is any text, like a model's name: `name_text.file_name` makes it one entry of `parent`.
    Raises OSError, with nothing opened, if that entry is a link or is not a directory.
    """
    # A directory that exists keeps the mode that its owner chose.
    parent.mkdir(PRIVATE_DIRECTORY_MODE, parents=True, exist_ok=True)
    entry = file_name(name)
    with opened_directory(parent) as outer:
        with suppress(FileExistsError):
            os.mkdir(entry, PRIVATE_DIRECTORY_MODE, dir_fd=outer)
        descriptor = os.open(entry, _DIRECTORY | os.O_NOFOLLOW, dir_fd=outer)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def replace_file(directory: int, name: str, chunks: Iterable[bytes], mode: int) -> None:
    """Replaces the file `name` in an opened directory by a file with these contents.

    The new file is on the disk when this returns. Until then, and after a failure, the old file is
    there. A link of that name is replaced, not followed. The process's umask applies to `mode`.
    Raises OSError.
    """
    beside = f".{name}.{os.getpid()}.partial"
    # Removes what a killed process with the same id has left, or a link that another user has made.
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, mode, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=directory)
        raise
    os.fsync(directory)
