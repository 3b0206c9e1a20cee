"""Arenas: the memory of versions. Whether one fits, which slab it gets, and what is kept for the next.

The slabs themselves are the data plane's (`native/memory/slab_pool.h`); here is what is decided.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from serving.base.errors import DoesNotFitBeside, ResourceExhausted
from serving.core.servable import ServableId
from serving.data_plane.loads import ArenaLoad, MemoryPlan, SlabPool
from serving.data_plane.servables import ArenaRemains

_MB = 1_000_000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """What versions may take. `limit_bytes` 0: no limit but the machine's."""

    headroom_bytes: int
    limit_bytes: int


class Arenas:
    """Gives each load an arena on a slab, or says why it does not fit, before anything is read.

    Of the whole server, any thread: loads that begin together must not count the same free memory.
    `available_bytes` is what the process may still take; a slab that was given and not yet touched
    counts there as free, so what loads under way are still going to touch is kept account of here.
    """

    def __init__(
        self, pool: SlabPool, limits: MemoryLimits, available_bytes: Callable[[], int]
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._available_bytes = available_bytes
        self._lock = threading.Lock()
        self._promised_bytes: dict[ServableId, int] = {}
        self._held_bytes: dict[ServableId, int] = {}
        # What the warm-up of a model's last version took beside its parameters, by name.
        self._warm_up_bytes: dict[str, int] = {}

    def take(
        self, servable_id: ServableId, load: ArenaLoad, graph_bytes: int = 0
    ) -> Mapping[str, float]:
        """Gives `load` its arena and returns how large it is, by name with unit.

        Raises ResourceExhausted with the figures and the remedy.

        Beside the parameters the machine must have room for the graph (`graph_bytes`, of its file)
        and for what the warm-up of the version before took at its peak. Call `loaded` or `failed`
        at the end of the load, also where this raises.
        """
        plan = load.plan_memory(self._limits.headroom_bytes)
        with self._lock:
            self._check_limit(servable_id, plan)
            resident_bytes = load.take_arena(self._pool, plan.slab_bytes)
            fresh_bytes = max(0, plan.parameter_bytes - resident_bytes)
            fresh_bytes += graph_bytes + self._warm_up_bytes.get(servable_id.name, 0)
            self._check_available(servable_id, plan, fresh_bytes)
            self._promised_bytes[servable_id] = fresh_bytes
            self._held_bytes[servable_id] = plan.parameter_bytes
        return {
            "parameter_bytes": plan.parameter_bytes,
            "slab_bytes": plan.slab_bytes,
            "prefaulted_bytes": resident_bytes,
        }

    def failed(self, servable_id: ServableId) -> None:
        """The load has ended and its arena is given back, if it had one."""
        with self._lock:
            self._promised_bytes.pop(servable_id, None)
            self._held_bytes.pop(servable_id, None)

    def loaded(self, servable_id: ServableId, servable: Any, serving_count: int) -> None:
        """From now on spare slabs of the size of this version are kept for the next one.

        `serving_count` versions are served at rest. Where memory for a spare is not there, none is
        kept: the next version is then refused, or touches fresh pages.
        """
        with self._lock:
            self._promised_bytes.pop(servable_id, None)
            parameter_bytes = self._held_bytes.get(servable_id, 0)
            has_room = parameter_bytes <= self._free_bytes()
        if has_room or self._pool.has_spare(servable_id.name):
            self._pool.expect(servable_id.name, servable, serving_count)
        else:
            _log.warning(
                "spare_slab_not_kept",
                model=servable_id.name,
                version=servable_id.version,
                wanted_bytes=parameter_bytes,
                consequence="the next version needs fresh memory, or is refused",
            )
        self._report_overflow(servable_id, servable)

    def warmed_up(self, servable_id: ServableId, peak_bytes: int) -> None:
        """The version's warm-up took so much at its peak: so may that of the next one."""
        with self._lock:
            self._warm_up_bytes[servable_id.name] = max(0, peak_bytes)

    def unloaded(self, servable_id: ServableId) -> None:
        """The version is gone, and its memory free for others."""
        with self._lock:
            self._held_bytes.pop(servable_id, None)

    def forget(self, name: str) -> None:
        """The model has no versions any more and none to come."""
        with self._lock:
            self._warm_up_bytes.pop(name, None)
        self._pool.forget(name)

    def _free_bytes(self) -> int:
        return self._available_bytes() - sum(self._promised_bytes.values())

    def _check_available(self, servable_id: ServableId, plan: MemoryPlan, fresh_bytes: int) -> None:
        free_bytes = self._free_bytes()
        if fresh_bytes > free_bytes:
            fits_alone = fresh_bytes <= free_bytes + self._held_by_others_of(servable_id)
            raise _refusal(
                fits_alone,
                fresh_bytes - free_bytes,
                f"{servable_id} needs {_mb(plan.parameter_bytes)} of memory, {_mb(fresh_bytes)} "
                "with its graph and warm-up and less the spare that waits for it, and "
                f"{_mb(max(0, free_bytes))} are available; give the process more memory or serve "
                "fewer versions",
            )

    def _check_limit(self, servable_id: ServableId, plan: MemoryPlan) -> None:
        limit_bytes = self._limits.limit_bytes
        held_bytes = sum(self._held_bytes.values())
        if limit_bytes and held_bytes + plan.parameter_bytes > limit_bytes:
            left_bytes = held_bytes - self._held_by_others_of(servable_id)
            fits_alone = left_bytes + plan.parameter_bytes <= limit_bytes
            raise _refusal(
                fits_alone,
                held_bytes + plan.parameter_bytes - limit_bytes,
                f"{servable_id} needs {_mb(plan.parameter_bytes)} of memory, the loaded versions "
                f"have {_mb(held_bytes)}, and --model_memory_limit_bytes is {_mb(limit_bytes)}; raise "
                "it or serve fewer versions (a swap needs room for two)",
            )

    def _held_by_others_of(self, servable_id: ServableId) -> int:
        """Of the model's other versions."""
        return sum(
            held_bytes
            for other, held_bytes in self._held_bytes.items()
            if other.name == servable_id.name and other != servable_id
        )

    def _report_overflow(self, servable_id: ServableId, servable: Any) -> None:
        if servable.arena_overflow_block_count == 0:
            return
        _log.warning(
            "arena_overflowed",
            model=servable_id.name,
            version=servable_id.version,
            block_count=servable.arena_overflow_block_count,
            remedy="raise --arena_headroom_bytes, or its init will share memory with requests",
        )


def _refusal(fits_alone: bool, missing_bytes: int, message: str) -> ResourceExhausted:
    if fits_alone:
        return DoesNotFitBeside(message, missing_bytes=missing_bytes)
    return ResourceExhausted(message)


def report_remains(servable_id: ServableId, remains: ArenaRemains) -> None:
    """Says in the log what a version left behind in its arena, which should be nothing."""
    if remains.live_bytes == 0 and remains.overflow_block_count == 0:
        return
    _log.error(
        "arena_leaked",
        model=servable_id.name,
        version=servable_id.version,
        live_bytes=remains.live_bytes,
        live_blocks=_blocks_text(remains.live_blocks),
        overflow_block_count=remains.overflow_block_count,
        consequence="its slab is kept aside and is not used again",
    )


def _blocks_text(live_blocks: Sequence[tuple[int, int]]) -> str:
    """Like "2 x 64, 1 x 4096"."""
    return ", ".join(f"{count} x {block_bytes}" for block_bytes, count in live_blocks)


def _mb(byte_count: int) -> str:
    return f"{byte_count / _MB:,.1f} MB"
