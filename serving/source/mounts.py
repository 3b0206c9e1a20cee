"""Mounts: the file systems that base paths are on, and what their directories tell of a change."""

import ctypes
import os
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

# The numbers of statfs(2) for the file systems whose changes can be seen.
_TYPES = {
    0xCA451A4E: "bcachefs",
    0x9123683E: "btrfs",
    0xEF53: "ext4",
    0xF2F52010: "f2fs",
    0x3153464A: "jfs",
    0x6969: "nfs",
    0x794C7630: "overlay",
    0x858458F6: "ramfs",
    0x52654973: "reiserfs",
    0x01021994: "tmpfs",
    0x58465342: "xfs",
    0x2FC12FC1: "zfs",
}
# At least the size of struct statfs, which begins with the number as a long.
_STATFS_BYTES = 256

_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system_of(path: str, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system of an absolute path; "" if it is not known.

    In a chroot no mount may be listed for the path, and /proc may be missing. Then statfs(2) tells the usual types.
    """
    try:
        listed = file_system_type(path, mounts.read_text(errors="surrogateescape"))
    except OSError:
        listed = ""
    return listed or _type_by_number(path)


def _type_by_number(path: str) -> str:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(path), buffer) != 0:
        return ""
    number = ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF
    return _TYPES.get(number, "")


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
