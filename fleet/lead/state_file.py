"""The state of a fleet in a directory, which one coordinator holds at a time."""

import errno
import fcntl
import os
from pathlib import Path
from typing import TextIO

from serving.base.directory_files import PRIVATE_FILE_MODE, replace_file
from serving.base.errors import DataLoss, FailedPrecondition, InvalidConfig

FILE_NAME = "fleet.json"
LOCK_NAME = "lock"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# NFS cannot lock a directory. There only the lock of the file keeps other coordinators out.
_NO_DIRECTORY_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})


class StateFile:
    """A `StateStore` in `directory`. The kernel releases its locks when the process ends, however it ends.

    It locks both a file in the directory and the directory itself. So another coordinator cannot take the
    directory even if that file is deleted. The state is read and written through the opened directory. So if
    the directory is deleted or replaced, the next write fails, and the coordinator sends nothing more.
    """

    def __init__(self, directory: Path) -> None:
        """Takes the directory.

        Raises InvalidConfig if it cannot be used, and FailedPrecondition if a coordinator holds it.
        """
        self._path = directory / FILE_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._directory = os.open(directory, _DIRECTORY)
            self._lock: TextIO = (directory / LOCK_NAME).open("w", encoding="utf-8")
        except OSError as error:
            raise InvalidConfig(
                f"coordinator: state_directory {str(directory)!r} cannot be used: {error.strerror}; "
                "give a directory that the coordinator may write"
            ) from error
        try:
            _lock_directory(self._directory)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise FailedPrecondition(
                f"another coordinator uses {directory}: stop it, or give this one another state_directory"
            ) from error
        os.set_inheritable(self._lock.fileno(), False)

    def read(self) -> str | None:
        """See `StateStore`. Raises DataLoss for a file that is not text."""
        try:
            file = os.open(FILE_NAME, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        except FileNotFoundError:
            return None
        try:
            with open(file, encoding="utf-8") as opened:
                return opened.read()
        except UnicodeDecodeError as error:
            raise DataLoss(f"{self._path} is not the state of a fleet: {error}") from error

    def write(self, text: str) -> None:
        """See `StateStore`."""
        replace_file(self._directory, FILE_NAME, [text.encode()], PRIVATE_FILE_MODE)

    def close(self) -> None:
        """Releases the locks, so that another coordinator can take the directory."""
        self._lock.close()
        os.close(self._directory)


def _lock_directory(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_LOCKS:
            raise
