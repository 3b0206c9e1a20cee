"""The memory that this process may still take, limited by the machine and its control groups."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

UNLIMITED_BYTES = 2**63 - 1

# From here on a limit of cgroup v1 means "no limit": it shows about the largest page multiple of int64.
_V1_UNLIMITED_BYTES = 2**60


class _Group(NamedTuple):
    """A control group: its directory, the names of two of its files, and a name in its `memory.stat`."""

    directory: str
    limit_file: str
    usage_file: str
    cache_name: str

    def left_bytes(self) -> int:
        """The bytes that the group's limit leaves; UNLIMITED_BYTES without a limit."""
        limit = _text(f"{self.directory}/{self.limit_file}").strip()
        if not limit.isdigit() or int(limit) >= _V1_UNLIMITED_BYTES:
            # The usage is not read, because the kernel adds it up for each reader.
            return UNLIMITED_BYTES
        usage = _text(f"{self.directory}/{self.usage_file}").strip()
        if not usage.isdigit():
            return UNLIMITED_BYTES
        cache_bytes = 0
        for line in _text(f"{self.directory}/memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == self.cache_name:
                cache_bytes = int(value)
        return max(0, int(limit) - int(usage) + cache_bytes)


def available_bytes(root: Path = Path("/")) -> int:
    """The bytes that can be taken before the kernel kills or reclaims. Quick: each load asks several times.

    This is the least of MemAvailable and what the memory limit of each control group above this process
    leaves. Page cache that can be dropped counts as free. Returns UNLIMITED_BYTES if no limit is known.
    `root` is the directory of /proc and /sys, which tests replace.
    """
    groups = _groups(root, _text(f"{root}/proc/self/cgroup"))
    return min([_machine_bytes(root), *(group.left_bytes() for group in groups)])


def _machine_bytes(root: Path) -> int:
    for line in _text(f"{root}/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return UNLIMITED_BYTES


# Kept, because a process rarely moves to another group.
@lru_cache(maxsize=1)
def _groups(root: Path, text: str) -> Sequence[_Group]:
    """The control groups of this process and all groups above them, because each may have a limit.

    `text` is that of /proc/self/cgroup.
    """
    v2, v1 = root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"
    v1_files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return [
        *(
            _Group(directory, "memory.max", "memory.current", "inactive_file")
            for directory in _directories(v2, _group_path(text, "0::"))
        ),
        *(
            _Group(directory, *v1_files)
            for directory in _directories(v1, _group_path(text, ":memory:"))
        ),
    ]


def _group_path(text: str, mark: str) -> str:
    """The path of this process's group; "/" in a container that sees only itself."""
    for line in text.splitlines():
        _, found, path = line.partition(mark)
        if found:
            return path
    return "/"


def _directories(directory: Path, path: str) -> list[str]:
    """The directories of the group with this path and of all groups above it, if they are there."""
    names = [name for name in path.split("/") if name]
    groups = [directory.joinpath(*names[:depth]) for depth in range(len(names) + 1)]
    return [str(group) for group in groups if group.is_dir()]


def _text(path: str) -> str:
    """The file's text; "" if it does not exist, as on some kernels and in some containers."""
    try:
        # Without a buffer, because the files are small and read often.
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
