"""OpenSwap: a swap that is not over yet, and the phases that it goes through."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from serving.base.clock import NS_PER_SECOND
from serving.core.servable import HEALTHY, LoadStage, ServableId, ServableStatus
from serving.data_plane.loads import SlabPool
from serving.data_plane.request_statistics import HistoryPoint, RequestStatistics
from serving.monitoring.swap_record import (
    SpanLatency,
    StageSpan,
    SwapRecord,
    SwapResult,
    failure_of,
    load_stages,
    unload_stages,
)

BEFORE_AFTER_NS = 10 * NS_PER_SECOND
"""The time before and after a swap that it is compared with: the window of the quantile gauges."""

UNLOAD_EFFECT_NS = NS_PER_SECOND
"""How long an unload still slows down requests after it has ended. This time counts as "during", as
in `loadtest/measure/timeline.py`."""

SLAB_RETURN_NS_MAX = 60 * NS_PER_SECOND
"""How long a swap waits for the return of its slab. The slabs of other models may keep the slab keeper
busy for longer."""

UNLOAD_FOLLOWS_NS = NS_PER_SECOND // 4
"""How long to wait after a publish for the unload that it causes."""

SPAN_NS_MIN = NS_PER_SECOND // 10
"""The shortest span whose requests are measured. A shorter span has too few requests."""


class Phase(Enum):
    """The phase of an open swap."""

    # The version waits to be loaded. No request has been affected yet.
    ASPIRED = "aspired"
    # Versions are loaded, published and unloaded, and slabs return to the system.
    CHANGING = "changing"
    # The work is done. The last unload still slows down requests.
    TAKING_EFFECT = "taking_effect"
    # The requests after the swap are being counted.
    COMPARING = "comparing"
    OVER = "over"


NEXT_PHASE: Mapping[Phase, Phase] = MappingProxyType(
    {
        Phase.ASPIRED: Phase.CHANGING,
        Phase.CHANGING: Phase.TAKING_EFFECT,
        Phase.TAKING_EFFECT: Phase.COMPARING,
        Phase.COMPARING: Phase.OVER,
    }
)
"""The phase after each phase. A swap skips none; it may be forgotten while it is ASPIRED."""


@dataclass(frozen=True, kw_only=True)
class SwapProbes:
    """The measurements of a server that describe its swaps.

    `slab_pool` is None if versions have no arenas. `fault_count` returns
    the page faults of the process so far.
    """

    statistics: RequestStatistics
    slab_pool: SlabPool | None
    fault_count: Callable[[], int]

    @property
    def is_slab_due(self) -> bool:
        """True while memory is on its way back to the system."""
        pool = self.slab_pool
        return pool is not None and pool.statistics().surplus_resident_bytes > 0


class OpenSwap:
    """A swap that is not over yet. Used under the timeline's lock.

    "During" begins with the phase CHANGING and ends with TAKING_EFFECT: the swap may have changed
    the latency of the requests that end in this time.
    """

    def __init__(self, record: SwapRecord, probes: SwapProbes) -> None:
        self.record = record
        self.phase = Phase.ASPIRED
        self.during_began_at_ns: int | None = None
        self.during_ended_at_ns: int | None = None
        self._probes = probes
        self._fault_count_before = 0
        # The versions that are being unloaded because of this swap.
        self._unloading: set[int] = set()
        # When the unload of the last of these versions ended. The return of its slab begins then.
        self._unloaded_at_ns: int | None = None
        self._slab_back_at_ns: int | None = None

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def is_waiting(self) -> bool:
        """True if the swap waits for a change of a version's state, so that `advance` has no effect."""
        return self.record.result is None and self._unloaded_at_ns is None

    @property
    def has_ended(self) -> bool:
        """True if all work of the swap is done, so that it takes no further unload."""
        return self.record.ended_at_ns is not None

    def is_of(self, servable_id: ServableId) -> bool:
        return (self.record.model, self.record.version) == (servable_id.name, servable_id.version)

    def is_unloading(self, version: int) -> bool:
        return version in self._unloading

    # --- Changes of versions ----------------------------------------------------------------------

    def begin(self, at_ns: int, calm_since_ns: int | None) -> None:
        """Begins "during".

        `calm_since_ns` is when the effect of the model's last other swap ended. It is None if another
        swap still affects requests.
        """
        self._enter(Phase.CHANGING)
        self._fault_count_before = self._probes.fault_count()
        before = self._undisturbed(at_ns - BEFORE_AFTER_NS, at_ns, calm_since_ns)
        self.record = replace(self.record, before=before)
        self.during_began_at_ns = at_ns

    def load_began(self, now_ns: int, previous_version: int | None) -> None:
        if self.record.previous_version is not None:
            previous_version = self.record.previous_version
        self.record = replace(
            self.record, load_started_at_ns=now_ns, previous_version=previous_version
        )

    def published(self, result: SwapResult, at_ns: int) -> None:
        self.record = replace(self.record, published_at_ns=at_ns, result=result)

    def loaded(self, status: ServableStatus, now_ns: int) -> None:
        """Records a load whose version was published."""
        self.record = with_load(self.record, status)
        at_ns = status.stage_ended_at_ns.get(LoadStage.PUBLISH, now_ns)
        self.published(SwapResult.PUBLISHED, at_ns)

    def load_failed(self, status: ServableStatus, now_ns: int) -> None:
        """Ends the swap without a publish, after the unloads that are under way."""
        self.record = replace(
            with_load(self.record, status),
            result=failure_of(status),
            reason=status.health.message,
        )
        if not self._unloading:
            self._end_at(now_ns)

    def unload_began(self, version: int) -> None:
        self._unloading.add(version)

    def only_unloads(self) -> None:
        """Marks the swap as an unload only: no version is loaded or published."""
        self.record = replace(self.record, result=SwapResult.UNLOADED)

    def unloaded(self, status: ServableStatus, now_ns: int) -> None:
        """Adds the stages and costs of an unload that is over."""
        self._unloading.discard(status.id.version)
        record = self.record
        self.record = replace(
            record,
            stages=(*record.stages, *unload_stages(status)),
            figures={**record.figures, **_unload_figures(record, status)},
            reason=record.reason if status.health == HEALTHY else status.health.message,
        )
        if not self._unloading:
            self._unloaded_at_ns, self._slab_back_at_ns = now_ns, None

    # --- Time -------------------------------------------------------------------------------------

    def advance(self, now_ns: int, cut: Callable[[], int]) -> bool:
        """Enters the phase that is due at `now_ns`. Returns True if the comparison is complete.

        Calls `cut` (`RequestStatistics.cut`) if "during" ends now.
        """
        if not self.check_end(now_ns):
            return False
        if self.during_ended_at_ns is None:
            if now_ns >= (self.record.ended_at_ns or 0) + UNLOAD_EFFECT_NS:
                self.end_effect(cut())
            return False
        return now_ns >= self.during_ended_at_ns + BEFORE_AFTER_NS

    def check_end(self, now_ns: int, *, may_unload_follow: bool = True) -> bool:
        """Enters TAKING_EFFECT if all work is done. Returns True if the swap has ended.

        If `may_unload_follow`, a swap waits UNLOAD_FOLLOWS_NS after its publish for an unload.
        """
        self._await_slab_return(now_ns)
        if self.phase is Phase.CHANGING:
            ended_at_ns = self._ended_at_ns(now_ns, may_unload_follow)
            if ended_at_ns is not None:
                self._end_at(ended_at_ns)
        return self.has_ended

    def end_effect(self, at_ns: int) -> None:
        """Ends "during", unless it has ended before."""
        if self.phase is not Phase.TAKING_EFFECT:
            return
        self._enter(Phase.COMPARING)
        self.during_ended_at_ns = at_ns
        fault_count = self._probes.fault_count() - self._fault_count_before
        self.record = replace(
            self.record,
            during=self._latency(self.during_began_at_ns or 0, at_ns),
            figures={**self.record.figures, "page_fault_count": fault_count},
        )

    def close(self, at_ns: int, calm_since_ns: int | None) -> None:
        """Ends the comparison and completes the record. `calm_since_ns` is as for `begin`."""
        self._enter(Phase.OVER)
        record = self.record
        since_ns = (self.during_began_at_ns or record.began_at_ns) - BEFORE_AFTER_NS
        history = self._probes.statistics.history(record.model, since_ns)
        self.record = replace(
            record,
            after=self._undisturbed(self.during_ended_at_ns or at_ns, at_ns, calm_since_ns),
            history=tuple(point for point in history if point.at_ns <= at_ns),
        )

    def _enter(self, phase: Phase) -> None:
        assert NEXT_PHASE[self.phase] is phase, f"{self.id}: {self.phase} to {phase}"
        self.phase = phase

    def _end_at(self, at_ns: int) -> None:
        self._enter(Phase.TAKING_EFFECT)
        self.record = replace(self.record, ended_at_ns=at_ns)

    def _await_slab_return(self, now_ns: int) -> None:
        """Adds the stage `return_slab` if the slab of the unloaded version is back."""
        unloaded_at_ns = self._unloaded_at_ns
        if self._unloading or unloaded_at_ns is None or self._slab_back_at_ns is not None:
            return
        if self._probes.is_slab_due and now_ns < unloaded_at_ns + SLAB_RETURN_NS_MAX:
            return
        self._slab_back_at_ns = now_ns
        stage = _slab_returned(self.record, unloaded_at_ns, now_ns)
        self.record = replace(self.record, stages=(*self.record.stages, stage))

    def _ended_at_ns(self, now_ns: int, may_unload_follow: bool) -> int | None:
        """The time at which the swap's last work ended; None if work is left."""
        if self.record.result is None or self._unloading:
            return None
        published_at_ns = self.record.published_at_ns or 0
        if self._unloaded_at_ns is not None:
            if self._slab_back_at_ns is None:
                return None
            if self._unloaded_at_ns > published_at_ns:
                return self._slab_back_at_ns
        if may_unload_follow and now_ns < published_at_ns + UNLOAD_FOLLOWS_NS:
            return None
        return max(published_at_ns, self._slab_back_at_ns or 0)

    # --- Requests ---------------------------------------------------------------------------------

    def _undisturbed(
        self, from_ns: int, to_ns: int, calm_since_ns: int | None
    ) -> SpanLatency | None:
        """Measures the span after the effects of other swaps; None if another swap still affects requests."""
        if calm_since_ns is None:
            return None
        return self._latency(max(from_ns, calm_since_ns), to_ns)

    def _latency(self, from_ns: int, to_ns: int) -> SpanLatency | None:
        if to_ns - from_ns < SPAN_NS_MIN:
            return None
        model = self.record.model
        return SpanLatency.of(
            self._probes.statistics.between(model, from_ns, to_ns),
            to_ns - from_ns,
            failed_count=sum(item.failed_count for item in self._seconds(model, from_ns, to_ns)),
            # Requests that name no configured model have a history of their own, under "".
            unmatched_count=sum(item.count for item in self._seconds("", from_ns, to_ns)),
        )

    def _seconds(self, model: str, from_ns: int, to_ns: int) -> list[HistoryPoint]:
        """The points of the seconds of which at least half lies in the span.

        The current second has no point yet.
        """
        half_ns = NS_PER_SECOND // 2
        history = self._probes.statistics.history(model, from_ns + half_ns)
        return [point for point in history if point.at_ns <= to_ns + half_ns]


def with_load(record: SwapRecord, status: ServableStatus) -> SwapRecord:
    """Completes `record` with the stages, figures and verdicts of the load so far."""
    stages = load_stages(status, record.load_started_at_ns)
    return replace(
        record,
        stages=(
            *(stage for stage in stages if stage.began_at_ns >= record.began_at_ns),
            *(stage for stage in record.stages if stage.task == "unload"),
        ),
        figures={**record.figures, **status.figures},
        notes=status.notes,
        verdicts=status.verdicts,
    )


def _unload_figures(record: SwapRecord, status: ServableStatus) -> dict[str, float]:
    """The costs of the unloads, added up if several versions were unloaded."""
    return {
        name: value + record.figures.get(name, 0)
        for name, value in status.figures.items()
        if name.startswith("unload_")
    }


def _slab_returned(record: SwapRecord, unloaded_at_ns: int, now_ns: int) -> StageSpan:
    # The version that was unloaded last. A record of an unload without stages has no other version.
    unloaded = [stage.version for stage in record.stages if stage.task == "unload"]
    return StageSpan(
        name="return_slab",
        task="unload",
        version=unloaded[-1] if unloaded else record.version,
        began_at_ns=unloaded_at_ns,
        ended_at_ns=now_ns,
    )
