"""The directories in which files wait for their upload: each is of one server at a time, by a lock."""

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from serving.base.directory_files import PRIVATE_DIRECTORY_MODE, PRIVATE_FILE_MODE

_LOCK_NAME = ".lock"
_SERVERS_MAX = 64
"""The servers that may share a parent directory, until another one is refused."""

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class UploadDirectories:
    """The directories of one server, by the names of their destinations. Thread: any. Methods raise OSError.

    The first server of a destination takes `NAME`, and others beside it take `NAME-2` and so on. A server that
    takes one moves into it what servers that are gone left in the others.
    """

    def __init__(self, find_parent: Callable[[], Path]) -> None:
        """`find_parent` may raise InvalidConfig, and then so does `take`."""
        self._find_parent = find_parent
        self._lock = threading.Lock()
        # Guarded by `_lock`: each directory of this server, and the descriptor of its lock.
        self._taken: dict[str, tuple[Path, int]] = {}

    def take(self, name: str) -> Path:
        """The directory of a destination, which stays this server's until `release`. Makes it if it is missing."""
        with self._lock:
            if name not in self._taken:
                self._taken[name] = _first_free(self._find_parent() / name)
            directory, descriptor = self._taken[name]
            if not _is_lock_of(directory, descriptor):
                # Someone deleted the directory, or the lock within it.
                self._taken[name] = directory, _locked(directory)
                os.close(descriptor)
            # If files of others cannot be moved, they wait for the next try.
            with suppress(OSError):
                _adopt(self._find_parent() / name, directory)
            return directory

    def release(self) -> None:
        """Leaves all directories to other servers."""
        with self._lock:
            for _, descriptor in self._taken.values():
                os.close(descriptor)
            self._taken.clear()


def _first_free(first: Path) -> tuple[Path, int]:
    for number in range(1, _SERVERS_MAX + 1):
        directory = first if number == 1 else first.with_name(f"{first.name}-{number}")
        with suppress(BlockingIOError):
            return directory, _locked(directory)
    raise BlockingIOError(f"{_SERVERS_MAX} servers use it")


def _locked(directory: Path) -> int:
    """Makes the directory and locks it. Raises BlockingIOError if another server has the lock."""
    directory.mkdir(PRIVATE_DIRECTORY_MODE, parents=True, exist_ok=True)
    descriptor = os.open(directory / _LOCK_NAME, _LOCK_FLAGS, PRIVATE_FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_lock_of(directory: Path, descriptor: int) -> bool:
    try:
        found = os.stat(directory / _LOCK_NAME, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _adopt(first: Path, own: Path) -> None:
    """Moves the files of servers that are gone to `own`. Their names have tokens, so none is replaced."""
    others = re.compile(rf"{re.escape(first.name)}(-[0-9]+)?")
    for other in first.parent.iterdir():
        if other == own or not others.fullmatch(other.name) or not other.is_dir():
            continue
        with _lock_of_absent(other) as is_absent:
            for entry in os.listdir(other) if is_absent else ():
                if entry != _LOCK_NAME:
                    os.rename(other / entry, own / entry)


@contextmanager
def _lock_of_absent(directory: Path) -> Iterator[bool]:
    """Locks the directory meanwhile. Yields False if its server is there."""
    with ExitStack() as stack:
        try:
            stack.callback(os.close, _locked(directory))
        except BlockingIOError:
            yield False
        else:
            yield True
