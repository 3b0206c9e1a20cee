"""Mounts: the file systems that base paths are on, and what their directories tell of a change."""

import re
from pathlib import Path

WATCHED_FILE_SYSTEMS = frozenset(
    {
        *("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs"),
        *("reiserfs", "tmpfs", "xfs", "zfs"),
    }
)
"""File systems that this kernel alone changes, so that inotify sees each change."""

DATED_FILE_SYSTEMS = WATCHED_FILE_SYSTEMS | {"nfs", "nfs4"}
"""File systems whose directories get a new mtime with each entry that comes or goes.

File systems over object storage (FUSE) have made-up times, so their directories are listed at each poll.
"""

_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system_of(path: str, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system of an absolute path; "" if it is not known."""
    try:
        return file_system_type(path, mounts.read_text(errors="surrogateescape"))
    except OSError:
        return ""


def file_system_type(path: str, mount_info: str) -> str:
    """Finds the type in the text of proc_pid_mountinfo(5); "" if no mount holds the path. Pure.

    Among mounts on the same directory the last one hides the others.
    """
    longest, found = -1, ""
    for line in mount_info.splitlines():
        mount, _, source = line.partition(" - ")
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        if len(point) >= longest and (path + "/").startswith(point.rstrip("/") + "/"):
            longest, found = len(point), source.split(" ")[0]
    return found
