"""The memory that this process may still take, limited by the machine and its control groups."""

from pathlib import Path

UNLIMITED_BYTES = 2**63 - 1

# From here on a limit of cgroup v1 means "no limit": it shows about the largest page multiple of int64.
_V1_UNLIMITED_BYTES = 2**60


def available_bytes(root: Path = Path("/")) -> int:
    """The bytes that can be taken before the kernel kills or reclaims.

    This is the least of MemAvailable and what the memory limit of each control group above this process
    leaves. Page cache that can be dropped counts as free. Returns UNLIMITED_BYTES if no limit is known.
    `root` is the directory of /proc and /sys, which tests replace.
    """
    return min([_machine_bytes(root), *_cgroup_v2_bytes(root), *_cgroup_v1_bytes(root)])


def _machine_bytes(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return UNLIMITED_BYTES


def _cgroup_v2_bytes(root: Path) -> list[int]:
    directory = root / "sys/fs/cgroup"
    return [
        _left_bytes(group, "memory.max", "memory.current", "inactive_file")
        for group in _groups(directory, _cgroup_path(root, "0::"))
    ]


def _cgroup_v1_bytes(root: Path) -> list[int]:
    directory = root / "sys/fs/cgroup/memory"
    return [
        _left_bytes(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for group in _groups(directory, _cgroup_path(root, ":memory:"))
    ]


def _cgroup_path(root: Path, mark: str) -> str:
    """This process's group from /proc/self/cgroup; "/" in a container that sees only itself."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, found, path = line.partition(mark)
        if found:
            return path
    return "/"


def _groups(directory: Path, path: str) -> list[Path]:
    """The group and all groups above it, because each may have a limit."""
    names = [name for name in path.split("/") if name]
    groups = [directory.joinpath(*names[:depth]) for depth in range(len(names) + 1)]
    return [group for group in groups if group.is_dir()]


def _left_bytes(group: Path, limit_file: str, usage_file: str, cache_name: str) -> int:
    limit = _text(group / limit_file).strip()
    if not limit.isdigit() or int(limit) >= _V1_UNLIMITED_BYTES:
        # The usage is not read: the kernel adds it up for each reader, and each load asks several times.
        return UNLIMITED_BYTES
    usage = _text(group / usage_file).strip()
    if not usage.isdigit():
        return UNLIMITED_BYTES
    cache_bytes = 0
    for line in _text(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == cache_name:
            cache_bytes = int(value)
    return max(0, int(limit) - int(usage) + cache_bytes)


def _text(path: Path) -> str:
    """The file's text; "" if it does not exist, as on some kernels and in some containers."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
