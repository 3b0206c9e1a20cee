"""The files of one request log: their names, how they become complete, and which are deleted.

A file is written as `.NAME.partial` under a lock of its writer, and renamed to NAME when it is complete and
on the disk. NAME is `STEM-20261128T201500Z-TOKEN-000001.tfrecord`: the time of its first record, the token
of the process, and a number. So readers never see an incomplete file, names sort by time, and two
servers may share a directory.
"""

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from errno import EWOULDBLOCK
from pathlib import Path

from serving.base.clock import NS_PER_SECOND
from serving.base.directory_files import PRIVATE_FILE_MODE, opened_directory
from serving.base.errors import DataLoss, InvalidConfig
from serving.core.request_logging import FILE_TYPES, TFRECORD
from warmup.records import read_records

FRAME_BYTES = 16
"""The bytes of a TFRecord file for each record, beside the record itself."""

_LOST_FILES_MAX = 8
"""The new files in a row that other processes may take before they are locked, until that is an error."""

_DIRECTORY_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class CompleteFile:
    """A complete file: its name and its size."""

    name: str
    size_bytes: int


def files_to_delete(files: Sequence[CompleteFile], bytes_max: int) -> Sequence[CompleteFile]:
    """The oldest of `files`, which are ordered by age, without which the others have `bytes_max`. Pure."""
    excess_bytes = sum(file.size_bytes for file in files) - bytes_max
    count = 0
    while excess_bytes > 0:
        excess_bytes -= files[count].size_bytes
        count += 1
    return files[:count]


def check_directory(prefix: str, where: str) -> None:
    """Raises InvalidConfig unless the server may make files with this prefix in a safe directory.

    A directory in which every user may delete and replace files is refused.
    """
    directory = os.path.dirname(prefix)
    where = f"{where}: filename_prefix {prefix!r}"
    try:
        mode = os.stat(directory).st_mode
    except OSError as error:
        raise InvalidConfig(
            f"{where}: {directory} cannot be read ({error.strerror}); make the directory"
        ) from error
    if not stat.S_ISDIR(mode):
        raise InvalidConfig(
            f"{where}: {directory} is not a directory; make one, or change the prefix"
        )
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise InvalidConfig(
            f"{where}: every user may replace files in {directory}; run `chmod o-w {directory}`"
        )
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidConfig(
            f"{where}: {directory} is not writable for the server's user; give the user access"
        )


class PartialFile:
    """A file that is being written. Its writer appends to `descriptor`."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor = descriptor
        self.name = name

    @property
    def partial_name(self) -> str:
        """The name of the file until it is complete."""
        return _partial(self.name)


class LogFiles:
    """The files of one prefix and type. All methods raise OSError.

    Thread: any, at once. Each method looks at the directory anew, and a file that another thread or process
    deletes meanwhile is no error. A `PartialFile` is of one thread at a time.
    """

    def __init__(
        self,
        prefix: str,
        file_type: str,
        *,
        token: str,
        numbers: Iterator[int],
        make_directory: Callable[[], None] = lambda: None,
    ) -> None:
        """`token` is eight hexadecimal digits, the process's own. `numbers` never repeats one in the process.

        `make_directory` is called before each file, for a directory that is the server's own.
        """
        self._directory = Path(prefix).parent
        self._stem = os.path.basename(prefix)
        self._type = file_type
        self._token = token
        self._numbers = numbers
        self._make_directory = make_directory
        types = "|".join(FILE_TYPES)
        self._pattern = re.compile(
            rf"{re.escape(self._stem)}-([0-9]{{8}}T[0-9]{{6}}Z-[0-9a-f]{{8}}-[0-9]{{6,}})\.({types})"
        )

    def begin(self, wall_ns: int) -> PartialFile:
        """Makes the next file, whose first record is of the time `wall_ns`, readable for the user alone.

        If another server's `recover` takes the file first, it is left to that, and one more is made.
        """
        self._make_directory()
        for _ in range(_LOST_FILES_MAX):
            file = self._made(wall_ns)
            if file is not None:
                return file
        raise BlockingIOError(EWOULDBLOCK, "other processes take each new file of the log")

    def _made(self, wall_ns: int) -> PartialFile | None:
        """Makes and locks a file. None if another process took it before it was locked."""
        moment = datetime.fromtimestamp(wall_ns // NS_PER_SECOND, tz=timezone.utc)
        stamp = f"{moment:%Y%m%dT%H%M%SZ}-{self._token}-{next(self._numbers):06}"
        name = f"{self._stem}-{stamp}.{self._type}"
        with opened_directory(self._directory) as directory:
            flags = _DIRECTORY_OPEN | os.O_CREAT | os.O_EXCL
            descriptor = os.open(_partial(name), flags, PRIVATE_FILE_MODE, dir_fd=directory)
        file = PartialFile(descriptor, name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Without a link, another server took the empty file for an abandoned one, and deleted it.
            is_lost = os.fstat(descriptor).st_nlink == 0
        except BlockingIOError:
            is_lost = True
        except OSError:
            # A file system without locks, like some mounts of NFS.
            self.discard(file)
            raise
        if is_lost:
            os.close(descriptor)
            return None
        return file

    def complete(self, file: PartialFile) -> int:
        """Writes the file to the disk and renames it. Returns its bytes.

        If it raises, the file keeps its name and stays open. The new name is safe from a power failure
        once `sync_directory` has returned.
        """
        os.fsync(file.descriptor)
        size_bytes = os.fstat(file.descriptor).st_size
        with opened_directory(self._directory) as directory:
            os.rename(file.partial_name, file.name, src_dir_fd=directory, dst_dir_fd=directory)
        # All of it is on the disk, so an error of the close changes nothing.
        with suppress(OSError):
            os.close(file.descriptor)
        return size_bytes

    def is_deleted(self, file: PartialFile) -> bool:
        """True if someone deleted the file while it is written. What it has goes with it."""
        return os.fstat(file.descriptor).st_nlink == 0

    def sync_directory(self) -> None:
        """Writes the names of complete files to the disk."""
        with opened_directory(self._directory) as directory:
            os.fsync(directory)

    def discard(self, file: PartialFile) -> None:
        """Removes a file that is not complete, as far as the disk allows."""
        with suppress(OSError):
            os.close(file.descriptor)
        with suppress(OSError), opened_directory(self._directory) as directory:
            os.unlink(file.partial_name, dir_fd=directory)

    def delete_oldest(self, bytes_max: int) -> Sequence[CompleteFile]:
        """Deletes the oldest complete files until the rest has `bytes_max`. Returns the deleted files.

        They may be of any type, of an earlier process, or of another server with the same prefix.
        """
        deleted = []
        with opened_directory(self._directory) as directory:
            for file in files_to_delete(self._complete_files(directory), bytes_max):
                with suppress(FileNotFoundError):
                    os.unlink(file.name, dir_fd=directory)
                    deleted.append(file)
        return deleted

    def complete_files(self) -> Sequence[CompleteFile]:
        """The complete files from the oldest to the newest, of any type and process."""
        with opened_directory(self._directory) as directory:
            return self._complete_files(directory)

    def path_of(self, file: CompleteFile) -> Path:
        """The path of a complete file."""
        return self._directory / file.name

    def delete(self, file: CompleteFile) -> None:
        """Deletes a complete file, if it is still there."""
        self.path_of(file).unlink(missing_ok=True)

    def recover(self) -> Sequence[CompleteFile]:
        """Completes the TFRecord files that processes left when they were killed. Returns them.

        Their last record may be cut short, and goes. Files of other types are not readable without
        their end, and are deleted.
        """
        recovered = []
        with opened_directory(self._directory) as directory:
            for name in sorted(os.listdir(directory)):
                whole = name.removeprefix(".").removesuffix(".partial")
                match = self._pattern.fullmatch(whole)
                if name != _partial(whole) or match is None:
                    continue
                with _abandoned(directory, name) as descriptor:
                    if descriptor is None:
                        continue
                    size_bytes = _truncated(descriptor) if match[2] == TFRECORD else 0
                    if size_bytes == 0:
                        os.unlink(name, dir_fd=directory)
                        continue
                    os.rename(name, whole, src_dir_fd=directory, dst_dir_fd=directory)
                    recovered.append(CompleteFile(whole, size_bytes))
            os.fsync(directory)
        return recovered

    def _complete_files(self, directory: int) -> Sequence[CompleteFile]:
        """The complete files from the oldest to the newest."""
        found = []
        for name in os.listdir(directory):
            match = self._pattern.fullmatch(name)
            if match is None:
                continue
            with suppress(FileNotFoundError):
                entry = os.stat(name, dir_fd=directory, follow_symlinks=False)
                found.append((match[1], CompleteFile(name, entry.st_size)))
        return [file for _, file in sorted(found, key=lambda item: item[0])]


def _partial(name: str) -> str:
    return f".{name}.partial"


@contextmanager
def _abandoned(directory: int, name: str) -> Iterator[int | None]:
    """Yields the opened file if no process writes it, and None if one does."""
    try:
        descriptor = os.open(name, _DIRECTORY_OPEN, dir_fd=directory)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield None
    else:
        yield descriptor
    finally:
        os.close(descriptor)


def _truncated(descriptor: int) -> int:
    """Cuts a TFRecord file after its last whole record, writes it to the disk and returns its bytes."""
    size_bytes = 0
    with suppress(DataLoss):
        for record in read_records(Path(f"/proc/self/fd/{descriptor}")):
            size_bytes += FRAME_BYTES + len(record)
    os.ftruncate(descriptor, size_bytes)
    os.fsync(descriptor)
    return size_bytes
