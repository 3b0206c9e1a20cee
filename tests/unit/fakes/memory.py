"""Figures of the memory of versions, slabs and requests."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FakeArenaStatistics:
    """Each figure is a different power of ten."""

    allocated_bytes: int = 1_000
    active_unused_bytes: int = 100
    retained_bytes: int = 10
    unused_bytes: int = 1
    slab_resident_bytes: int = 1_100


@dataclass(frozen=True)
class FakeSlabPoolStatistics:
    """Each figure has its own value."""

    in_use_count: int = 2
    in_use_bytes: int = 2_000
    spare_count: int = 1
    spare_bytes: int = 1_001
    spare_resident_bytes: int = 900
    surplus_resident_bytes: int = 77
    quarantined_count: int = 3
    quarantined_bytes: int = 3_003


@dataclass(frozen=True)
class FakeRequestMemory:
    """Each figure has its own value."""

    in_use_bytes: int = 5_000
    in_use_bytes_peak: int = 6_000
    allocation_count: int = 7_000


@dataclass(frozen=True)
class FakeRemains:
    """The remains of an arena at its end; `live_blocks` has (bytes of a block, count)."""

    live_bytes: int = 0
    live_blocks: Sequence[tuple[int, int]] = ()
    overflow_block_count: int = 0
