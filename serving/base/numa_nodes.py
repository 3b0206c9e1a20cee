"""Reads the NUMA nodes of the machine: memory, and the cores that are near it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class NumaNode:
    """A node, and those of its cores that were asked about, ascending."""

    number: int
    cores: tuple[int, ...]


def numa_nodes(cores: Iterable[int], folder: Path = FOLDER) -> list[NumaNode]:
    """Divides `cores` by node, in the order of the nodes' numbers. Nodes without one of them are left out.

    All cores are of node 0 if the kernel does not tell the node of each.
    """
    wanted = set(cores)
    found = {
        int(path.name.removeprefix("node")): wanted & _parse_cores(path / "cpulist")
        for path in folder.glob("node[0-9]*")
    }
    if set().union(*found.values()) != wanted:
        return [NumaNode(0, tuple(sorted(wanted)))]
    return [NumaNode(node, tuple(sorted(found[node]))) for node in sorted(found) if found[node]]


def _parse_cores(path: Path) -> set[int]:
    """The cores of a file like `0-3,8`; none if it cannot be read."""
    try:
        ranges = [part.partition("-") for part in path.read_text().strip().split(",") if part]
        return {
            core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)
        }
    except (OSError, ValueError):
        return set()
