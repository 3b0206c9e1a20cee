"""Fingerprint: tells if the files below a directory are still the same."""

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Entry = tuple[str, int, int, int]
"""The relative path, size in bytes, mtime_ns and stamp of a file or directory; see `Fingerprint`."""


@dataclass(frozen=True)
class Fingerprint:
    """The entries below a directory, which is itself the entry with the path "".

    The stamp is the ctime_ns, because a copy that keeps the times (`cp -p`, `rsync -a`) can have other bytes
    with the same size and mtime. For a file with several hard links it is minus the inode's number: each
    new link of it, such as that of a delta version, changes its ctime.
    """

    entries: tuple[Entry, ...]

    def is_as(self, other: "Fingerprint") -> bool:
        """True if nothing differs. A file may have got other links since."""
        return _are_same(self.entries, other.entries)

    def has_the_files_of(self, other: "Fingerprint") -> bool:
        """True if nothing differs except perhaps the ctime of the directory itself.

        It differs after the directory was moved away and back.
        """
        return _are_same(_without_own_ctime(self), _without_own_ctime(other))

    @property
    def mtime_ns_newest(self) -> int:
        """The latest change of a file or directory, on the clock of the file system."""
        return max((mtime_ns for _, _, mtime_ns, _ in self.entries), default=0)


def stamp_of(status: os.stat_result) -> int:
    """The stamp of an entry, as `Fingerprint` says."""
    is_linked = status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
    return -status.st_ino if is_linked else status.st_ctime_ns


def _are_same(entries: Sequence[Entry], others: Sequence[Entry]) -> bool:
    return len(entries) == len(others) and all(map(_is_same, entries, others))


def _is_same(entry: Entry, other: Entry) -> bool:
    # If only one has a ctime, the file had one link at one of the two times, and its ctime shows nothing.
    has_one_ctime = (entry[3] < 0) != (other[3] < 0)
    return entry[:3] == other[:3] and (has_one_ctime or entry[3] == other[3])


def _without_own_ctime(fingerprint: Fingerprint) -> list[Entry]:
    return [entry if entry[0] else (*entry[:3], 0) for entry in fingerprint.entries]


def fingerprint(directory: str) -> Fingerprint:
    """The fingerprint of `directory` as it is now.

    Raises OSError if an entry of it cannot be read.
    """
    return Fingerprint(tuple(sorted(_entries(directory, ""))))


def _entries(root: str, relative: str) -> Iterable[Entry]:
    status = Path(root, relative).stat()
    yield relative, status.st_size, status.st_mtime_ns, stamp_of(status)
    with os.scandir(Path(root, relative)) as entries:
        for entry in entries:
            path = os.path.join(relative, entry.name)
            # Links to directories are entries, but are not walked: they could form a circle.
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(root, path)
            else:
                yield _entry(entry, path)


def _entry(entry: os.DirEntry[str], path: str) -> Entry:
    try:
        status = entry.stat()
    except FileNotFoundError:
        # A dangling link, or a file that has just been deleted. The version may load without it; the
        # completeness check decides that. If the file appears later, the fingerprint changes.
        return path, -1, 0, 0
    return path, status.st_size, status.st_mtime_ns, stamp_of(status)
