"""Arenas: decides whether a version's memory fits, and whether spare memory is kept.

The data plane manages the slabs themselves (`native/memory/slab_pool.h`).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from serving.base.errors import DoesNotFitBeside, FitsNowhere, ResourceExhausted
from serving.core.servable import ServableId
from serving.data_plane.loads import MemoryPlan, SavedModelLoad, SlabPool
from serving.data_plane.servables import ArenaRemains, Servable

_MB = 1_000_000

_log = structlog.get_logger(__name__)


HEADROOM_BYTES = 256 * 2**20
"""The address space of a slab beside a version's variables, for what its init op allocates. It takes no
memory until it is used, and tables and other state of usual models fit."""


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """The limits of versions' memory. If `limit_bytes` is 0, only the machine limits it."""

    limit_bytes: int
    headroom_bytes: int = HEADROOM_BYTES


@dataclass(frozen=True)
class _Charge:
    """The parameters of one version. Other versions may have the same tables."""

    private_bytes: int
    table_bytes: int

    @property
    def all_bytes(self) -> int:
        return self.private_bytes + self.table_bytes


class Arenas:
    """Gives each load an arena on a slab, or refuses the load before its variables are read.

    One object serves the whole server, from any thread, because loads that begin together must not
    count the same free memory. `available_bytes` returns what the process may still take. It counts
    a slab that is not touched yet as free, so this class subtracts what loads under way will touch.

    The versions hold their private bytes and the pool's held tables, each table once. Tables may outlive the
    version that read them, so no version is charged for one.

    A model whose version was unloaded for its next load keeps the *room* of that version until a version of it is
    loaded, or no load of it is to come: otherwise another model could take that memory, and the first one would
    have no version at all.
    """

    def __init__(
        self, pool: SlabPool, limits: MemoryLimits, available_bytes: Callable[[], int]
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._available_bytes = available_bytes
        self._lock = threading.Lock()
        self._promised_bytes: dict[ServableId, int] = {}
        self._charges: dict[ServableId, _Charge] = {}
        # The versions that are loaded, and the rooms: the parameters of versions that were unloaded so that a load
        # of their model, by name, has their memory.
        self._loaded: set[ServableId] = set()
        self._rooms: dict[str, _Charge] = {}
        # The bytes that the warm-up of each model's last version took beside its parameters, by name.
        self._warm_up_bytes: dict[str, int] = {}
        self._reported_refusal = ""

    def take(
        self, servable_id: ServableId, load: SavedModelLoad, graph_bytes: int = 0
    ) -> Mapping[str, float]:
        """Gives `load` its arena and returns its sizes, by name with unit.

        Besides the parameters, the graph (`graph_bytes`, the size of its file) and the peak of the
        previous version's warm-up must fit. Call `loaded` or `failed` at the end of the load, even if
        this raises. Raises ResourceExhausted with the figures and the remedy.
        """
        load.use_tables(self._pool)
        plan = load.plan_memory(self._limits.headroom_bytes)
        charge = _charge(plan, load)
        with self._lock:
            held_bytes = self._held_bytes()
            self._check_limit(servable_id, charge, held_bytes, plan.own_bytes)
            self._charges[servable_id] = charge
            resident_bytes = load.take_arena(self._pool, plan.slab_bytes)
            # The plan counts a shared table as there, and it may have been on standby.
            self._check_limit(servable_id, charge, held_bytes, self._held_bytes() - held_bytes)
            fresh_bytes = max(0, plan.parameter_bytes - resident_bytes)
            fresh_bytes += plan.log_bytes + graph_bytes
            fresh_bytes += self._warm_up_bytes.get(servable_id.name, 0)
            self._check_available(servable_id, plan, fresh_bytes)
            self._promised_bytes[servable_id] = fresh_bytes
        return {
            "parameter_bytes": plan.parameter_bytes,
            "slab_bytes": plan.slab_bytes,
            "prefaulted_bytes": resident_bytes,
        }

    def failed(self, servable_id: ServableId) -> None:
        """Records that the load has failed and its arena, if it had one, was returned."""
        with self._lock:
            self._promised_bytes.pop(servable_id, None)
            self._charges.pop(servable_id, None)
            self._refill()

    def loaded(self, servable_id: ServableId, servable: Servable, serving_count: int) -> None:
        """Records that the version is loaded, and that the next version will need as much memory.

        `serving_count` is the number of versions that the model serves between swaps. If the room for
        all spare memory is lacking, less is kept: a swap then touches fresh pages, or is refused.
        """
        with self._lock:
            self._promised_bytes.pop(servable_id, None)
            self._loaded.add(servable_id)
            self._rooms.pop(servable_id.name, None)
            self._pool.expect(servable_id.name, servable, serving_count)
            has_room = self._refill()
        if not has_room:
            _log.warning(
                "spare_memory_not_kept",
                model=servable_id.name,
                version=servable_id.version,
                consequence="some next versions need fresh memory, or are refused",
            )
        self._report_overflow(servable_id, servable)

    def warmed_up(self, servable_id: ServableId, peak_bytes: int) -> None:
        """Records the peak of the version's warm-up, which is expected of the next version too."""
        with self._lock:
            self._warm_up_bytes[servable_id.name] = max(0, peak_bytes)

    def unloaded(self, servable_id: ServableId, *, makes_room: bool = False) -> None:
        """Records that the version is unloaded and its memory is free.

        If it `makes_room`, and no version of its model is loaded, that memory is for its model alone.
        """
        name = servable_id.name
        with self._lock:
            charge = self._charges.pop(servable_id, None)
            self._loaded.discard(servable_id)
            if makes_room and charge and all(item.name != name for item in self._loaded):
                self._rooms[name] = charge
            self._refill()

    def end_room(self, name: str) -> None:
        """Gives the room of a model to all, because no load of it is to come. Does nothing if it has none."""
        # Without the lock, which a load of another model may hold for long: the control thread calls this often.
        if name not in self._rooms:
            return
        with self._lock:
            if self._rooms.pop(name, None) is not None:
                self._refill()

    def forget(self, name: str) -> None:
        """Forgets a model that is no longer served. Memory that no other model needs goes back."""
        with self._lock:
            self._warm_up_bytes.pop(name, None)
            self._rooms.pop(name, None)
            self._pool.forget(name)
            self._refill()

    def free_bytes(self, servable_id: ServableId) -> int:
        """Returns the bytes that are left for a version whose parameters are in place.

        Other loads under way take what they were promised.
        """
        with self._lock:
            own_bytes = self._promised_bytes.get(servable_id, 0)
            return max(0, self._free_bytes() + own_bytes)

    def _refill(self) -> bool:
        """Lets the pool make the spare memory that is missing, if there is room. Needs the lock.

        Logs first if the system has refused such memory since the last call.
        """
        refusal = self._pool.statistics().reservation_refusal
        if refusal and refusal != self._reported_refusal:
            _log.warning(
                "spare_memory_refused",
                reason=refusal,
                consequence="the next versions need fresh memory, or are refused",
            )
        self._reported_refusal = refusal
        return self._pool.refill(self._free_bytes())

    def _free_bytes(self) -> int:
        return self._available_bytes() - sum(self._promised_bytes.values())

    def _held_bytes(self) -> int:
        private_bytes = sum(charge.private_bytes for charge in self._charges.values())
        return private_bytes + self._pool.table_statistics().held_bytes

    def _room_bytes(self, name: str) -> int:
        """The bytes of rooms that are for other models than `name`, and that these do not have yet."""
        return sum(self._untaken_rooms(name).values())

    def _fresh_room_bytes(self, name: str) -> int:
        """The part of these bytes that is not in memory yet.

        The tables of a model that no version holds are, and spare memory may be of any room.
        """
        fresh_bytes = 0
        for other, size in self._untaken_rooms(name).items():
            kept_bytes = min(self._rooms[other].table_bytes, self._pool.free_table_bytes(other))
            fresh_bytes += max(0, size - kept_bytes)
        return max(0, fresh_bytes - self._pool.statistics().spare_resident_bytes)

    def _untaken_rooms(self, name: str) -> Mapping[str, int]:
        """The bytes of each room that is for another model than `name`, without what a load of that has taken."""
        taken = {other: 0 for other in self._rooms if other != name}
        for servable_id, charge in self._charges.items():
            if servable_id.name in taken:
                taken[servable_id.name] += charge.all_bytes
        return {other: max(0, self._rooms[other].all_bytes - size) for other, size in taken.items()}

    def _check_available(self, servable_id: ServableId, plan: MemoryPlan, fresh_bytes: int) -> None:
        room_bytes = self._room_bytes(servable_id.name)
        free_bytes = self._free_bytes() - self._fresh_room_bytes(servable_id.name)
        if fresh_bytes > free_bytes:
            kept_bytes = self._bytes_without_others(servable_id, self._charges[servable_id])
            freed_bytes = max(0, self._held_bytes() + room_bytes - kept_bytes)
            fits_alone = fresh_bytes <= free_bytes + freed_bytes
            raise _refusal(
                fits_alone,
                fresh_bytes - free_bytes,
                f"{servable_id} needs {_mb(plan.parameter_bytes)} of memory, {_mb(fresh_bytes)} "
                "with its graph and warm-up and without spare memory, but only "
                f"{_mb(max(0, free_bytes))} are available; give the process more memory or serve "
                "fewer versions",
            )

    def _check_limit(
        self, servable_id: ServableId, charge: _Charge, held_bytes: int, own_bytes: int
    ) -> None:
        """Refuses a version that adds `own_bytes` to the `held_bytes` of before."""
        limit_bytes = self._limits.limit_bytes
        room_bytes = self._room_bytes(servable_id.name)
        held_bytes += room_bytes
        if limit_bytes and own_bytes > limit_bytes:
            raise FitsNowhere(
                f"{servable_id} needs {_mb(own_bytes)} of memory, and --model_memory_limit_bytes is "
                f"{_mb(limit_bytes)} for all versions together; raise it"
            )
        if limit_bytes and held_bytes + own_bytes > limit_bytes:
            rooms = (
                f" and {_mb(room_bytes)} are for models that unloaded a version"
                if room_bytes
                else ""
            )
            raise _refusal(
                self._bytes_without_others(servable_id, charge) <= limit_bytes,
                held_bytes + own_bytes - limit_bytes,
                f"{servable_id} needs {_mb(own_bytes)} of memory, the loaded versions "
                f"have {_mb(held_bytes - room_bytes)}{rooms}, "
                f"and --model_memory_limit_bytes is {_mb(limit_bytes)}; raise "
                "it or serve fewer versions (a swap needs room for two)",
            )

    def _bytes_without_others(self, servable_id: ServableId, charge: _Charge) -> int:
        """Computes the most that would be held with this version, and without the model's others.

        A table that versions of another model share counts for each of them, because the pool has one sum for
        all models. Nothing is unloaded in vain for that.
        """
        others_bytes = sum(
            other_charge.all_bytes
            for other, other_charge in self._charges.items()
            if other.name != servable_id.name
        )
        return charge.all_bytes + others_bytes + self._room_bytes(servable_id.name)

    def _report_overflow(self, servable_id: ServableId, servable: Servable) -> None:
        if servable.arena_overflow_block_count == 0:
            return
        _log.warning(
            "arena_overflowed",
            model=servable_id.name,
            version=servable_id.version,
            block_count=servable.arena_overflow_block_count,
            remedy="let its init op allocate less, because what does not fit shares memory with "
            "requests; or run without arenas: --arena=false",
        )


def _charge(plan: MemoryPlan, load: SavedModelLoad) -> _Charge:
    table_bytes = sum(
        report.table_bytes for report in load.table_reports() if report.read_bytes == 0
    )
    return _Charge(plan.parameter_bytes - table_bytes, table_bytes)


def _refusal(fits_alone: bool, missing_bytes: int, message: str) -> ResourceExhausted:
    if fits_alone:
        return DoesNotFitBeside(message, missing_bytes=missing_bytes)
    return ResourceExhausted(message)


def report_remains(servable_id: ServableId, remains: ArenaRemains) -> None:
    """Logs the blocks that are still allocated in a version's arena, if there are any."""
    if remains.live_bytes == 0 and remains.overflow_block_count == 0:
        return
    _log.error(
        "arena_leaked",
        model=servable_id.name,
        version=servable_id.version,
        live_bytes=remains.live_bytes,
        live_blocks=_blocks_text(remains.live_blocks),
        overflow_block_count=remains.overflow_block_count,
        consequence="its slab is quarantined and not used again",
    )


def _blocks_text(live_blocks: Sequence[tuple[int, int]]) -> str:
    """Returns a text like "2 x 64, 1 x 4096"."""
    return ", ".join(f"{count} x {block_bytes}" for block_bytes, count in live_blocks)


def _mb(byte_count: int) -> str:
    return f"{byte_count / _MB:,.1f} MB"
