"""The state of a fleet in a directory, which one coordinator holds at a time."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from serving.base.directory_files import PRIVATE_FILE_MODE
from serving.base.errors import DataLoss, FailedPrecondition, InvalidConfig
from serving.fleet.registry import write_text

FILE_NAME = "fleet.json"
LOCK_NAME = "lock"


class StateFile:
    """A `StateStore` in `directory`. The lock ends with the process, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Takes the directory.

        Raises InvalidConfig if it cannot be used, and FailedPrecondition if a coordinator holds it.
        """
        self._path = directory / FILE_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock: TextIO = (directory / LOCK_NAME).open("w", encoding="utf-8")
        except OSError as error:
            raise InvalidConfig(
                f"coordinator: state_directory {str(directory)!r} cannot be used: {error.strerror}; "
                "give a directory that the coordinator may write"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise FailedPrecondition(
                f"another coordinator uses {directory}: stop it, or give this one another state_directory"
            ) from error
        os.set_inheritable(self._lock.fileno(), False)

    def read(self) -> str | None:
        """See `StateStore`. Raises DataLoss for a file that is not text."""
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise DataLoss(f"{self._path} is not the state of a fleet: {error}") from error

    def write(self, text: str) -> None:
        """See `StateStore`."""
        write_text(self._path, text, mode=PRIVATE_FILE_MODE)

    def close(self) -> None:
        """Lets another coordinator take the directory."""
        self._lock.close()
