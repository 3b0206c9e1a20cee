"""Figures of the memory of versions, slabs and requests, each with its own value."""

from serving.data_plane.loads import SlabPoolStatistics, TableStatistics
from serving.data_plane.plane import RequestMemoryStatistics
from serving.data_plane.servables import ArenaStatistics

ARENA_STATISTICS = ArenaStatistics(
    allocated_bytes=1_000,
    active_unused_bytes=100,
    retained_bytes=10,
    unused_bytes=1,
    slab_resident_bytes=1_100,
)

SLAB_POOL_STATISTICS = SlabPoolStatistics(
    in_use_count=2,
    in_use_bytes=2_000,
    spare_count=1,
    spare_bytes=1_001,
    spare_resident_bytes=900,
    surplus_resident_bytes=77,
    quarantined_count=3,
    quarantined_bytes=3_003,
    reservation_refusal="",
)

TABLE_STATISTICS = TableStatistics(
    held_count=4,
    held_bytes=4_004,
    standby_count=5,
    standby_bytes=5_005,
    dirty_count=1,
    copying_bytes=6_006,
)

REQUEST_MEMORY_STATISTICS = RequestMemoryStatistics(
    in_use_bytes=5_000, in_use_bytes_peak=6_000, allocation_count=7_000
)
