"""Places models on servers by memory and load. Pure.

A model gets one replica or more, each on another server. Each replica takes the memory of two versions,
because a server holds two versions of a model while it swaps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SWAP_VERSION_COUNT = 2
"""The number of versions in memory at the peak of a swap, with the default policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeed:
    """A model to place: the memory of one version, its requests per second, and its replicas.

    `replica_count` is the least number of replicas; the requests may need more. `process_bytes` is the
    memory of a server process itself, if each replica has its own process; otherwise 0.
    """

    name: str
    version_bytes: int
    requests_per_second: float = 0.0
    replica_count: int = 1
    process_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """The memory of one replica."""
        return self.process_bytes + SWAP_VERSION_COUNT * self.version_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRoom:
    """A server or a node: its memory for models, and the most requests per second that it may get.

    `free_bytes` is the memory that nothing has reserved; None if that is not known. A node that drains ends
    at `drain_deadline_ns` (wall time); 0 if it has no deadline.
    """

    name: str
    memory_bytes: int
    requests_per_second: float = float("inf")
    is_draining: bool = False
    drain_deadline_ns: int = 0
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The servers that each model gets, and the number of its replicas for which no server has room, by model."""

    servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Room:
    """The room that a server has left while models are placed on it."""

    server: ServerRoom
    free_bytes: int
    free_requests: float

    def fits(self, need_bytes: int, requests: float) -> bool:
        return self.free_bytes >= need_bytes and self.free_requests >= requests

    def take(self, need_bytes: int, requests: float) -> None:
        self.free_bytes -= need_bytes
        self.free_requests -= requests


def replicas_needed(need: ModelNeed, rooms: Sequence[ServerRoom]) -> int:
    """The number of replicas that a model needs: enough that none gets more requests than the largest server
    may get.
    """
    largest = max((room.requests_per_second for room in rooms), default=0.0)
    if need.requests_per_second <= 0 or largest == float("inf"):
        return need.replica_count
    if largest <= 0:
        return need.replica_count
    return max(need.replica_count, -int(-need.requests_per_second // largest))


def place(
    needs: Sequence[ModelNeed],
    rooms: Sequence[ServerRoom],
    present: Mapping[str, Sequence[str]] | None = None,
) -> Placement:
    """Places the models, and moves as few as it can.

    `present` has the servers that each model has now. A replica keeps its server if the server is there, does
    not drain and has the room. Larger models are placed first, each on the server with the most free memory,
    and among equal servers on the first by name. So the same values give the same placement.
    """
    usable = {
        room.name: _Room(room, room.memory_bytes, room.requests_per_second)
        for room in sorted(rooms, key=lambda room: room.name)
        if not room.is_draining
    }
    ordered = sorted(needs, key=lambda need: (-need.room_bytes, need.name))
    counts = {
        need.name: replicas_needed(need, [room.server for room in usable.values()])
        for need in ordered
    }
    chosen: dict[str, list[str]] = {need.name: [] for need in ordered}
    for need in ordered:
        for name in (present or {}).get(need.name, ())[: counts[need.name]]:
            if name in usable:
                _take(need, counts[need.name], usable[name], chosen[need.name])
    for need in ordered:
        _fill(need, counts[need.name], usable, chosen[need.name])
    return Placement(
        servers={name: tuple(sorted(servers)) for name, servers in chosen.items()},
        missing={
            name: counts[name] - len(servers)
            for name, servers in chosen.items()
            if len(servers) < counts[name]
        },
    )


def _fill(need: ModelNeed, count: int, usable: Mapping[str, _Room], chosen: list[str]) -> None:
    by_room = sorted(usable.values(), key=lambda room: (-room.free_bytes, room.server.name))
    for room in by_room:
        if len(chosen) >= count:
            return
        if room.server.name not in chosen:
            _take(need, count, room, chosen)


def _take(need: ModelNeed, count: int, room: _Room, chosen: list[str]) -> None:
    """Takes room for a replica if the server has enough."""
    requests = need.requests_per_second / count
    if room.fits(need.room_bytes, requests):
        room.take(need.room_bytes, requests)
        chosen.append(room.server.name)
