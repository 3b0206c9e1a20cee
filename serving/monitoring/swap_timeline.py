"""SwapTimeline: follows each swap from the first sight of its files until its effect is over."""

import resource
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.periodic_thread import Watch
from serving.core.servable import AVAILABLE, END, LOADING, UNLOADING, ServableId, ServableStatus
from serving.data_plane.loads import SlabPool
from serving.data_plane.request_statistics import RequestStatistics
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.manager.task_figures import page_fault_count
from serving.monitoring.open_swap import OpenSwap, Phase, SwapProbes, with_load
from serving.monitoring.swap_record import SwapRecord, SwapResult, log_fields, problem_of

RECORD_COUNT_MAX = 200
"""The number of swaps that are remembered: a day, with a swap every seven minutes."""

FRESH_NS = 10 * NS_PER_SECOND
"""The longest time between finding and aspiring a version for which its swap begins with the drop of
its files. A version that is aspired later was dropped long before, for instance before a change of the
selection. Its swap begins when it is aspired."""

PERIOD_SECONDS = 0.25
"""The time between two calls of `advance_swaps`."""

_log = structlog.get_logger(__name__)


class SwapTimeline:
    """Keeps a record of the last RECORD_COUNT_MAX swaps, and logs each swap once it is over.

    `on_status` is a listener of the StateMonitor. It and `default_version_changed` run on the control
    thread. `advance_swaps` runs on the timeline's own thread.

    A swap *ends* when its work is done. Its effect on requests ends UNLOAD_EFFECT_NS later. The
    timeline then counts requests for a comparison, and *closes* the swap, which is then *over*. If the
    next swap or the stop of the server begins before, the timeline closes the ended swap early.

    A *cut* (`RequestStatistics.cut`) separates the requests before an instant from the requests after
    it. A cut is expensive, because it visits the counts of all versions. So each call of
    `advance_swaps` takes at most one cut for all swaps: a cached cut is taken by its first call. Unloads
    that begin during a stop take none.
    """

    def __init__(
        self,
        statistics: RequestStatistics,
        *,
        monitor: StateMonitor,
        streams: Streams,
        slab_pool: SlabPool | None,
        clock: Clock,
        fault_count: Callable[[], int] | None = None,
    ) -> None:
        """`slab_pool` is None if versions have no arenas."""
        self._statistics = statistics
        self._monitor = monitor
        self._streams = streams
        self._clock = clock
        self._probes = SwapProbes(
            statistics=statistics,
            slab_pool=slab_pool,
            fault_count=fault_count or partial(page_fault_count, resource.RUSAGE_SELF),
        )
        self._lock = threading.Lock()
        self._over: deque[SwapRecord] = deque(maxlen=RECORD_COUNT_MAX)
        # The open swaps by id, and the same swaps by model.
        self._open: dict[str, OpenSwap] = {}
        self._open_by_model: dict[str, dict[str, OpenSwap]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        # The swaps that are over and not logged yet.
        self._unreported: list[SwapRecord] = []
        self._listeners: list[Callable[[SwapRecord], None]] = []
        # When the effect of a model's last swap ended.
        self._last_end_ns: dict[str, int] = {}
        self._is_stopping = False
        # Watches the key "open" while at least one swap is open, and is idle otherwise.
        self._watch: Watch[str, None] = Watch(
            "swap-timeline",
            self._advance,
            period_seconds=PERIOD_SECONDS,
            clock=clock,
        )

    def add_listener(self, listener: Callable[[SwapRecord], None]) -> None:
        """Calls `listener` with each swap that is over. Called before `start`.

        `listener` runs on the control thread or the timeline's, and must not wait.
        """
        self._listeners.append(listener)

    def start(self) -> None:
        """Starts the thread that ends records."""
        self._watch.start()

    def stop(self) -> None:
        """Ends the thread. Swaps under way stay open."""
        self._watch.stop()

    # --- Any thread -------------------------------------------------------------------------------

    def begin_stop(self) -> None:
        """Opens no records for unloads from now on: the stop of the server causes them.

        Logs the swaps that have ended, without waiting until the requests after them are counted.
        """
        with self._lock:
            self._is_stopping = True
            now_ns, cut = self._clock.now_ns(), cache(self._statistics.cut)
            for opened in list(self._open.values()):
                self._close_early(opened, now_ns, cut)
        self._notify()

    def records(self) -> list[SwapRecord]:
        """All remembered swaps, newest first. A swap under way has only its stages so far."""
        with self._lock:
            under_way = [item.record for item in self._open.values()]
            over = list(self._over)
        current = [self._as_of_now(record) for record in under_way]
        newest_first = sorted([*over, *current], key=lambda record: record.began_at_ns)[::-1]
        return newest_first[:RECORD_COUNT_MAX]

    def record(self, record_id: str) -> SwapRecord | None:
        """The remembered swap with this id, or None."""
        return next((record for record in self.records() if record.id == record_id), None)

    def counts(self) -> Mapping[tuple[str, str], int]:
        """The number of swaps since the start, by model and result."""
        with self._lock:
            return dict(self._counts)

    def _as_of_now(self, record: SwapRecord) -> SwapRecord:
        if record.result is not None:
            return record
        status = self._monitor.status(ServableId(record.model, record.version))
        return record if status is None else with_load(record, status)

    # --- The control thread -----------------------------------------------------------------------

    def on_status(self, status: ServableStatus) -> None:
        """Records that a version has changed its state."""
        change = {
            LOADING: self._load_began,
            AVAILABLE: self._published,
            UNLOADING: self._unload_began,
            END: self._version_ended,
        }.get(status.state, self._aspired)
        with self._lock:
            change(status, self._clock.now_ns())
        self._watch_and_notify()

    def default_version_changed(
        self, name: str, version: int, previous_version: int | None, how: str
    ) -> None:
        """Records that, without a load, `version` answers instead of `previous_version`.

        It is a `ManagerListener.default_version_changed`.
        """
        with self._lock:
            now_ns = self._clock.now_ns()
            opened = self._open_record(ServableId(name, version), now_ns, previous_version)
            self._begin(opened, now_ns)
            opened.load_began(now_ns, previous_version=None)
            opened.published(SwapResult(how), now_ns)
            self._count(opened)
        self._watch_and_notify()

    def _watch_and_notify(self) -> None:
        # Must not hold self._lock: `advance_swaps` takes self._lock while the watch holds its own lock,
        # so the reverse order could deadlock.
        if self._open:
            self._watch.add("open", None)
        self._notify()

    def _aspired(self, status: ServableStatus, now_ns: int) -> None:
        is_fresh = 0 <= now_ns - status.found_at_ns < FRESH_NS
        began_at_ns = (status.detected_at_ns or status.found_at_ns) if is_fresh else now_ns
        self._open_record(status.id, began_at_ns, self._streams.answering(status.id.name))

    def _load_began(self, status: ServableStatus, now_ns: int) -> None:
        opened = self._open_of(status.id)
        if opened is not None:
            self._begin(opened, now_ns)
            answering = self._streams.answering(status.id.name)
            previous_version = None if answering == status.id.version else answering
            opened.load_began(now_ns, previous_version)

    def _published(self, status: ServableStatus, now_ns: int) -> None:
        opened = self._open_of(status.id)
        if opened is not None:
            opened.loaded(status, now_ns)
            self._count(opened)

    def _unload_began(self, status: ServableStatus, now_ns: int) -> None:
        if self._is_stopping:
            return
        candidates = [
            item
            for item in self._open_of_model(status.id.name)
            if not item.is_of(status.id) and not item.has_ended
        ]
        if candidates:
            opened = candidates[-1]
            # The swap may not have begun yet: some policies unload the old version before they load the
            # new one.
            self._begin(opened, now_ns)
        else:
            opened = self._open_record(status.id, now_ns, None)
            self._begin(opened, now_ns)
            opened.load_began(now_ns, previous_version=None)
            opened.only_unloads()
            self._count(opened)
        opened.unload_began(status.id.version)

    def _version_ended(self, status: ServableStatus, now_ns: int) -> None:
        for opened in self._open_of_model(status.id.name):
            if opened.is_unloading(status.id.version):
                self._unloaded(opened, status, now_ns)
                return
        own = self._open_of(status.id)
        if own is None or own.record.result is not None:
            return
        if own.phase is Phase.ASPIRED:
            # The version was withdrawn before its load began.
            self._forget(own)
            return
        own.load_failed(status, now_ns)
        self._count(own)

    def _unloaded(self, opened: OpenSwap, status: ServableStatus, now_ns: int) -> None:
        opened.unloaded(status, now_ns)
        if self._is_stopping:
            self._close_early(opened, now_ns, cache(self._statistics.cut))
        else:
            opened.advance(now_ns, self._statistics.cut)

    # --- The timeline's thread --------------------------------------------------------------------

    def _advance(self, watched: Mapping[str, None]) -> None:
        del watched
        self.advance_swaps()

    def advance_swaps(self) -> None:
        """Advances the open swaps. Closes and logs each swap whose comparison is complete."""
        with self._lock:
            now_ns, cut = self._clock.now_ns(), cache(self._statistics.cut)
            for opened in [item for item in self._open.values() if not item.is_waiting]:
                if opened.advance(now_ns, cut):
                    self._close(opened, cut())
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
    ) -> OpenSwap:
        offset_ns = self._clock.wall_ns() - self._clock.now_ns()
        record = SwapRecord(
            id=self._free_id(servable_id, (began_at_ns + offset_ns) // NS_PER_SECOND),
            model=servable_id.name,
            version=servable_id.version,
            previous_version=None if previous_version == servable_id.version else previous_version,
            began_at_ns=began_at_ns,
            wall_offset_ns=offset_ns,
        )
        opened = OpenSwap(record, self._probes)
        self._open[record.id] = opened
        self._open_by_model.setdefault(record.model, {})[record.id] = opened
        return opened

    def _free_id(self, servable_id: ServableId, second: int) -> str:
        base = f"{servable_id.name}-{servable_id.version}-{second}"
        record_id, number = base, 1
        while record_id in self._open or any(record.id == record_id for record in self._over):
            number += 1
            record_id = f"{base}-{number}"
        return record_id

    def _open_of_model(self, model: str) -> Collection[OpenSwap]:
        return self._open_by_model.get(model, {}).values()

    def _open_of(self, servable_id: ServableId) -> OpenSwap | None:
        found = [item for item in self._open_of_model(servable_id.name) if item.is_of(servable_id)]
        return found[-1] if found else None

    def _begin(self, opened: OpenSwap, now_ns: int) -> None:
        """Begins a swap, unless it has begun, and closes the model's other swaps that have ended."""
        if opened.phase is not Phase.ASPIRED:
            return
        model = opened.record.model
        beside = self._begun_beside(opened)
        cut = cache(self._statistics.cut)
        for other in beside:
            self._close_early(other, now_ns, cut)
        # No cut is needed before a model's first swap: there are no earlier requests to compare with.
        is_first = not beside and model not in self._last_end_ns
        opened.begin(now_ns if is_first else cut(), self._calm_since_ns(opened))

    def _begun_beside(self, opened: OpenSwap) -> list[OpenSwap]:
        """The model's other open swaps that may have affected requests."""
        return [
            item
            for item in self._open_of_model(opened.record.model)
            if item is not opened and item.phase is not Phase.ASPIRED
        ]

    def _calm_since_ns(self, opened: OpenSwap) -> int | None:
        """The time since which no other swap of the model has affected requests.

        Returns None while another swap still affects them.
        """
        last_end_ns = self._last_end_ns.get(opened.record.model, 0)
        for other in self._begun_beside(opened):
            if other.during_ended_at_ns is None:
                return None
            last_end_ns = max(last_end_ns, other.during_ended_at_ns)
        return last_end_ns

    def _count(self, opened: OpenSwap) -> None:
        result = opened.record.result
        assert result is not None
        self._counts[opened.record.model, result.value] += 1

    def _close_early(self, opened: OpenSwap, now_ns: int, cut: Callable[[], int]) -> None:
        """Closes a swap that has ended, because the next swap or the stop affects later requests."""
        if opened.check_end(now_ns, may_unload_follow=not self._is_stopping):
            opened.end_effect(cut())
            self._close(opened, cut())

    def _close(self, opened: OpenSwap, at_ns: int) -> None:
        opened.close(at_ns, self._calm_since_ns(opened))
        model = opened.record.model
        during_ended_at_ns = opened.during_ended_at_ns or at_ns
        self._last_end_ns[model] = max(self._last_end_ns.get(model, 0), during_ended_at_ns)
        self._over.append(opened.record)
        self._unreported.append(opened.record)
        self._forget(opened)

    def _forget(self, opened: OpenSwap) -> None:
        del self._open[opened.id]
        of_model = self._open_by_model[opened.record.model]
        del of_model[opened.id]
        if not of_model:
            del self._open_by_model[opened.record.model]
