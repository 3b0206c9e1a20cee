"""SwapTimeline: follows each swap from the first sight of its files until its effect is over."""

import resource
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache, partial

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.periodic_thread import Watch
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LOADING,
    UNLOADING,
    LoadStage,
    ServableId,
    ServableStatus,
)
from serving.data_plane.request_statistics import HistoryPoint, RequestStatistics
from serving.manager.task_figures import page_fault_count
from serving.monitoring.swap_record import (
    SpanLatency,
    StageSpan,
    SwapRecord,
    SwapResult,
    failure_of,
    load_stages,
    log_fields,
    problem_of,
    unload_stages,
)

RECORD_COUNT_MAX = 200
"""Swaps that are remembered: a day of one every seven minutes."""

BEFORE_AFTER_NS = 10 * NS_PER_SECOND
"""What a swap is compared with, on both sides: as long as the window of the quantile gauges."""

UNLOAD_EFFECT_NS = NS_PER_SECOND
"""What an unload leaves to be paid for counts as during the swap, as in `loadtest/timeline.py`."""

SLAB_RETURN_NS_MAX = 60 * NS_PER_SECOND
"""A swap is over then even where other models' slabs keep the keeper busy."""

FRESH_NS = 10 * NS_PER_SECOND
"""A version that is aspired longer after it was found has not just been dropped."""

SPAN_NS_MIN = NS_PER_SECOND // 10
"""Less than this between two swaps is nothing to compare with."""

PERIOD_SECONDS = 0.25
"""How often open swaps are looked at."""

_log = structlog.get_logger(__name__)


class _OpenSwap:
    """A swap that is not over yet. Under the timeline's lock."""

    def __init__(self, record: SwapRecord, fault_count: int) -> None:
        self.record = record
        self.fault_count_before = fault_count
        # From then on what happens to the model's requests is its doing.
        self.during_began_at_ns: int | None = None
        self.during_ended_at_ns: int | None = None
        # Of the versions that go because of it.
        self.unloading: set[int] = set()
        # When the last of them was gone; its slab is on its way back from then on.
        self.unloaded_at_ns: int | None = None
        self.slab_back_at_ns: int | None = None

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def is_waiting(self) -> bool:
        """Whether only a change of a version's state can bring the swap on, and not the time."""
        return self.record.result is None and self.unloaded_at_ns is None

    def is_of(self, servable_id: ServableId) -> bool:
        return (self.record.model, self.record.version) == (servable_id.name, servable_id.version)


class SwapTimeline:
    """Keeps a record of each swap, the last RECORD_COUNT_MAX, and logs each once it is over.

    `on_status` is a listener of the StateMonitor and runs on the control thread, as `default_version_changed`
    does; `look` on the timeline's own. `status` gives the last status of a version, `answering`
    which version of a model answers, `is_slab_due` whether memory is on its way back to the system.
    """

    def __init__(
        self,
        statistics: RequestStatistics,
        *,
        status: Callable[[ServableId], ServableStatus | None],
        answering: Callable[[str], int | None],
        is_slab_due: Callable[[], bool],
        clock: Clock,
        fault_count: Callable[[], int] | None = None,
    ) -> None:
        self._statistics = statistics
        self._status = status
        self._answering = answering
        self._is_slab_due = is_slab_due
        self._clock = clock
        self._fault_count = fault_count or partial(page_fault_count, resource.RUSAGE_SELF)
        self._lock = threading.Lock()
        self._over: deque[SwapRecord] = deque(maxlen=RECORD_COUNT_MAX)
        # By id, and the same by model.
        self._open: dict[str, _OpenSwap] = {}
        self._open_by_model: dict[str, dict[str, _OpenSwap]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        # Of those that are over, what is still to be logged.
        self._unreported: list[SwapRecord] = []
        self._listeners: list[Callable[[SwapRecord], None]] = []
        # When the effect of a model's last swap was over.
        self._last_end_ns: dict[str, int] = {}
        # One key, "open", as long as any swap is.
        self._watch: Watch[str, None] = Watch(
            "swap-timeline", lambda _: self.look(), period_seconds=PERIOD_SECONDS, clock=clock
        )

    def add_listener(self, listener: Callable[[SwapRecord], None]) -> None:
        """`listener` hears of each swap that is over, on the control thread or this one's. Before `start`;
        it waits for nothing.
        """
        self._listeners.append(listener)

    def start(self) -> None:
        """Starts the thread that ends records."""
        self._watch.start()

    def stop(self) -> None:
        """Ends it; swaps under way stay open."""
        self._watch.stop()

    # --- Any thread -------------------------------------------------------------------------------

    def records(self) -> list[SwapRecord]:
        """All that are remembered, the newest first; what is under way as far as it has come."""
        with self._lock:
            under_way = [item.record for item in self._open.values()]
            over = list(self._over)
        current = [self._as_of_now(record) for record in under_way]
        newest_first = sorted([*over, *current], key=lambda record: record.began_at_ns)[::-1]
        return newest_first[:RECORD_COUNT_MAX]

    def record(self, record_id: str) -> SwapRecord | None:
        """One of `records`."""
        return next((record for record in self.records() if record.id == record_id), None)

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many swaps of each (model, result) there were since the start."""
        with self._lock:
            return dict(self._counts)

    def _as_of_now(self, record: SwapRecord) -> SwapRecord:
        if record.result is not None:
            return record
        status = self._status(ServableId(record.model, record.version))
        return record if status is None else _with_load(record, status)

    # --- The control thread -----------------------------------------------------------------------

    def on_status(self, status: ServableStatus) -> None:
        """A version has changed its state."""
        change = {
            LOADING: self._load_began,
            AVAILABLE: self._published,
            UNLOADING: self._unload_began,
            END: self._ended,
        }.get(status.state, self._aspired)
        with self._lock:
            change(status, self._clock.now_ns())
        self._watch_and_notify()

    def default_version_changed(
        self, name: str, version: int, previous_version: int | None, how: str
    ) -> None:
        """Without a load `version` answers from now on and `previous_version` does not
        (`rollout.DefaultVersionChanged`).
        """
        with self._lock:
            now_ns = self._clock.now_ns()
            opened = self._open_record(ServableId(name, version), now_ns, previous_version)
            self._begin(opened, now_ns)
            self._publish(opened, SwapResult(how), now_ns)
        self._watch_and_notify()

    def _watch_and_notify(self) -> None:
        # Not under the lock, which `look` takes within the watch's.
        self._watch.add("open", None)
        self._notify()

    def _aspired(self, status: ServableStatus, now_ns: int) -> None:
        is_fresh = 0 <= now_ns - status.found_at_ns < FRESH_NS
        began_at_ns = (status.detected_at_ns or status.found_at_ns) if is_fresh else now_ns
        self._open_record(status.id, began_at_ns, self._answering(status.id.name))

    def _load_began(self, status: ServableStatus, now_ns: int) -> None:
        opened = self._open_of(status.id)
        if opened is not None:
            self._begin(opened, now_ns)
            previous_version = opened.record.previous_version or self._answering_before(opened)
            opened.record = replace(opened.record, previous_version=previous_version)

    def _published(self, status: ServableStatus, now_ns: int) -> None:
        opened = self._open_of(status.id)
        if opened is not None:
            opened.record = _with_load(opened.record, status)
            published_at_ns = status.stage_ended_at_ns.get(LoadStage.PUBLISH, now_ns)
            self._publish(opened, SwapResult.PUBLISHED, published_at_ns)

    def _unload_began(self, status: ServableStatus, now_ns: int) -> None:
        candidates = [
            item
            for item in self._open_of_model(status.id.name)
            if not item.is_of(status.id) and item.record.ended_at_ns is None
        ]
        if candidates:
            opened = candidates[-1]
            # Where the old version goes first, the new one's load has not begun.
            self._begin_during(opened, now_ns)
        else:
            opened = self._open_record(status.id, now_ns, None)
            self._begin(opened, now_ns)
            self._conclude(opened, SwapResult.UNLOADED)
        opened.unloading.add(status.id.version)

    def _ended(self, status: ServableStatus, now_ns: int) -> None:
        version = status.id.version
        for opened in self._open_of_model(status.id.name):
            if version in opened.unloading:
                self._unloaded(opened, status, now_ns)
                return
        own = self._open_of(status.id)
        if own is None or own.record.result is not None:
            return
        if own.during_began_at_ns is None:
            # Taken back before anything was done for it. Nobody waits for the watch to forget it.
            self._forget(own)
            return
        own.record = replace(
            _with_load(own.record, status),
            ended_at_ns=None if own.unloading else now_ns,
            reason=status.health.message,
        )
        self._conclude(own, failure_of(status))

    def _unloaded(self, opened: _OpenSwap, status: ServableStatus, now_ns: int) -> None:
        opened.unloading.discard(status.id.version)
        record = opened.record
        opened.record = replace(
            record,
            stages=(*record.stages, *unload_stages(status)),
            figures={**record.figures, **_unload_figures(record, status)},
            reason=record.reason if status.health == HEALTHY else status.health.message,
        )
        if not opened.unloading:
            opened.unloaded_at_ns, opened.slab_back_at_ns = now_ns, None
            self._advance(opened, now_ns, self._statistics.cut)

    # --- The timeline's thread --------------------------------------------------------------------

    def look(self) -> None:
        """Ends what is over and logs it."""
        with self._lock:
            now_ns = self._clock.now_ns()
            # A cut goes through the counts of all versions: one does for all swaps of a look.
            cut = cache(self._statistics.cut)
            for opened in [item for item in self._open.values() if not item.is_waiting]:
                if self._advance(opened, now_ns, cut):
                    self._close(opened, cut)
            if not self._open:
                self._watch.remove("open")
        self._notify()

    def _notify(self) -> None:
        with self._lock:
            unreported, self._unreported = self._unreported, []
        for record in unreported:
            log = _log.warning if problem_of(record) else _log.info
            log("swap", **log_fields(record))
            for listener in self._listeners:
                listener(record)

    # --- Under the lock ---------------------------------------------------------------------------

    def _open_record(
        self, servable_id: ServableId, began_at_ns: int, previous_version: int | None
    ) -> _OpenSwap:
        offset_ns = self._clock.wall_ns() - self._clock.now_ns()
        base = (
            f"{servable_id.name}-{servable_id.version}-{(began_at_ns + offset_ns) // NS_PER_SECOND}"
        )
        record_id, number = base, 1
        while self._is_taken(record_id):
            number += 1
            record_id = f"{base}-{number}"
        record = SwapRecord(
            id=record_id,
            model=servable_id.name,
            version=servable_id.version,
            previous_version=None if previous_version == servable_id.version else previous_version,
            began_at_ns=began_at_ns,
            wall_offset_ns=offset_ns,
        )
        opened = _OpenSwap(record, self._fault_count())
        self._open[record_id] = opened
        self._open_by_model.setdefault(record.model, {})[record_id] = opened
        return opened

    def _is_taken(self, record_id: str) -> bool:
        return record_id in self._open or any(record.id == record_id for record in self._over)

    def _open_of_model(self, model: str) -> Collection[_OpenSwap]:
        return self._open_by_model.get(model, {}).values()

    def _open_of(self, servable_id: ServableId) -> _OpenSwap | None:
        found = [item for item in self._open_of_model(servable_id.name) if item.is_of(servable_id)]
        return found[-1] if found else None

    def _begin(self, opened: _OpenSwap, now_ns: int) -> None:
        self._begin_during(opened, now_ns)
        opened.record = replace(opened.record, load_started_at_ns=now_ns)

    def _begin_during(self, opened: _OpenSwap, now_ns: int) -> None:
        """What happens to requests from now on is the swap's doing, where it was not before."""
        if opened.during_began_at_ns is not None:
            return
        beside = self._under_way_beside(opened)
        for other in beside:
            self._cut_short(other, now_ns)
        # Before a model's first swap it has answered nothing that would have to be kept apart.
        is_first = not beside and opened.record.model not in self._last_end_ns
        began_at_ns = now_ns if is_first else self._statistics.cut()
        opened.fault_count_before = self._fault_count()
        before = self._undisturbed(opened, began_at_ns - BEFORE_AFTER_NS, began_at_ns)
        opened.record = replace(opened.record, before=before)
        opened.during_began_at_ns = began_at_ns

    def _under_way_beside(self, opened: _OpenSwap) -> list[_OpenSwap]:
        """The model's other swaps that did something to its requests and are not closed."""
        return [
            item
            for item in self._open_of_model(opened.record.model)
            if item is not opened and item.during_began_at_ns is not None
        ]

    def _answering_before(self, opened: _OpenSwap) -> int | None:
        version = self._answering(opened.record.model)
        return None if version == opened.record.version else version

    def _publish(self, opened: _OpenSwap, result: SwapResult, at_ns: int) -> None:
        opened.record = replace(opened.record, published_at_ns=at_ns)
        self._conclude(opened, result)

    def _conclude(self, opened: _OpenSwap, result: SwapResult) -> None:
        opened.record = replace(opened.record, result=result)
        self._counts[opened.record.model, result.value] += 1

    def _advance(self, opened: _OpenSwap, now_ns: int, cut: Callable[[], int]) -> bool:
        """As far as the time has come; True where nothing is left to wait for."""
        if not self._has_ended(opened, now_ns):
            return False
        if opened.during_ended_at_ns is None:
            if now_ns < (opened.record.ended_at_ns or 0) + UNLOAD_EFFECT_NS:
                return False
            self._end_during(opened, cut)
            return False
        return now_ns >= opened.during_ended_at_ns + BEFORE_AFTER_NS

    def _has_ended(self, opened: _OpenSwap, now_ns: int) -> bool:
        self._await_slab_return(opened, now_ns)
        if opened.record.ended_at_ns is None:
            opened.record = replace(opened.record, ended_at_ns=_ended_at_ns(opened, now_ns))
        return opened.record.ended_at_ns is not None

    def _await_slab_return(self, opened: _OpenSwap, now_ns: int) -> None:
        """Ends the return of the slab where it is back."""
        unloaded_at_ns = opened.unloaded_at_ns
        if opened.unloading or unloaded_at_ns is None or opened.slab_back_at_ns is not None:
            return
        if self._is_slab_due() and now_ns < unloaded_at_ns + SLAB_RETURN_NS_MAX:
            return
        opened.slab_back_at_ns = now_ns
        stage = _slab_returned(opened.record, unloaded_at_ns, now_ns)
        opened.record = replace(opened.record, stages=(*opened.record.stages, stage))

    def _end_during(self, opened: _OpenSwap, cut: Callable[[], int]) -> None:
        record = opened.record
        opened.during_ended_at_ns = cut()
        fault_count = self._fault_count() - opened.fault_count_before
        opened.record = replace(
            record,
            during=self._latency(
                record.model, opened.during_began_at_ns or 0, opened.during_ended_at_ns
            ),
            figures={**record.figures, "page_fault_count": fault_count},
        )

    def _cut_short(self, opened: _OpenSwap, now_ns: int) -> None:
        """Another swap of the model begins: what it does is not this one's."""
        if not self._has_ended(opened, now_ns):
            return
        if opened.during_ended_at_ns is None:
            self._end_during(opened, self._statistics.cut)
        self._close(opened, self._statistics.cut)

    def _close(self, opened: _OpenSwap, cut: Callable[[], int]) -> None:
        record = opened.record
        ended_at_ns = cut()
        during_ended_at_ns = opened.during_ended_at_ns or ended_at_ns
        since_ns = (opened.during_began_at_ns or record.began_at_ns) - BEFORE_AFTER_NS
        history = self._statistics.history(record.model, since_ns)
        opened.record = replace(
            record,
            after=self._undisturbed(opened, during_ended_at_ns, ended_at_ns),
            history=tuple(point for point in history if point.at_ns <= ended_at_ns),
        )
        last_end_ns = self._last_end_ns.get(record.model, 0)
        self._last_end_ns[record.model] = max(last_end_ns, during_ended_at_ns)
        self._over.append(opened.record)
        self._unreported.append(opened.record)
        self._forget(opened)

    def _forget(self, opened: _OpenSwap) -> None:
        del self._open[opened.id]
        of_model = self._open_by_model[opened.record.model]
        del of_model[opened.id]
        if not of_model:
            del self._open_by_model[opened.record.model]

    def _undisturbed(self, opened: _OpenSwap, from_ns: int, to_ns: int) -> SpanLatency | None:
        """The last part of the span in which no other swap of the model did anything; None: no such."""
        model = opened.record.model
        last_end_ns = self._last_end_ns.get(model, 0)
        for other in self._under_way_beside(opened):
            if other.during_ended_at_ns is None:
                return None
            last_end_ns = max(last_end_ns, other.during_ended_at_ns)
        return self._latency(model, max(from_ns, last_end_ns), to_ns)

    def _latency(self, model: str, from_ns: int, to_ns: int) -> SpanLatency | None:
        if to_ns - from_ns < SPAN_NS_MIN:
            return None
        return SpanLatency.of(
            self._statistics.between(model, from_ns, to_ns),
            to_ns - from_ns,
            failed_count=sum(item.failed_count for item in self._seconds(model, from_ns, to_ns)),
            # Where an old version goes first nobody answers, and these are all that clients got.
            unmatched_count=sum(item.count for item in self._seconds("", from_ns, to_ns)),
        )

    def _seconds(self, model: str, from_ns: int, to_ns: int) -> list[HistoryPoint]:
        """Those that are mostly within; the one that runs is not among them."""
        half_ns = NS_PER_SECOND // 2
        history = self._statistics.history(model, from_ns + half_ns)
        return [point for point in history if point.at_ns <= to_ns + half_ns]


def _ended_at_ns(opened: _OpenSwap, now_ns: int) -> int | None:
    """When the last of it was done; None while something is left. Pure."""
    if opened.record.result is None or opened.unloading:
        return None
    published_at_ns = opened.record.published_at_ns or 0
    if opened.unloaded_at_ns is not None:
        if opened.slab_back_at_ns is None:
            return None
        if opened.unloaded_at_ns > published_at_ns:
            return opened.slab_back_at_ns
    # Whether an unload follows is decided in the next moment.
    if now_ns < published_at_ns + round(PERIOD_SECONDS * NS_PER_SECOND):
        return None
    return max(published_at_ns, opened.slab_back_at_ns or 0)


def _with_load(record: SwapRecord, status: ServableStatus) -> SwapRecord:
    stages = load_stages(status, record.load_started_at_ns)
    return replace(
        record,
        stages=(
            *(stage for stage in stages if stage.began_at_ns >= record.began_at_ns),
            *(stage for stage in record.stages if stage.task == "unload"),
        ),
        figures={**record.figures, **status.figures},
        verdicts=status.verdicts,
    )


def _unload_figures(record: SwapRecord, status: ServableStatus) -> dict[str, float]:
    """What the unloads cost; added up where several versions went."""
    return {
        name: value + record.figures.get(name, 0)
        for name, value in status.figures.items()
        if name.startswith("unload_")
    }


def _slab_returned(record: SwapRecord, unloaded_at_ns: int, now_ns: int) -> StageSpan:
    return StageSpan(
        name="return_slab",
        task="unload",
        version=record.version,
        began_at_ns=unloaded_at_ns,
        ended_at_ns=now_ns,
    )
