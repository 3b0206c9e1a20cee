"""AspiredVersionsManager: brings the loaded versions in line with the aspired ones, one decision at a time.

    set_aspired ─┐                    ┌─> loaders:   load, warm up ────────────┐
                 ├─> control thread ──┤                                        ├─> control thread
    outcomes ────┘   decides, routes  └─> unloaders: quiesce, destroy ─────────┘

Deciding is pure (`decision.py`). The control thread is the only one that decides, that writes the serving
map, and that replaces the state of a stream. Other threads only post messages to the thread's inbox
(`control_thread.py`), and read the states that it publishes (`streams.py`), so no state needs a lock. The
same messages in the same order give the same run, which is why tests can call `tick` themselves. The
control thread waits only for its inbox and for the next due action, and up to REPLY_SECONDS_MAX for
the reply to an operator, when other models wait too. A load or a slow request of one model
delays the versions of another model only if all threads of an executor are taken.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import structlog

from serving.base import errors
from serving.base.clock import NS_PER_SECOND, Clock, Now, seconds_since
from serving.base.executor import Executor
from serving.base.fingerprint import Fingerprint
from serving.base.name_text import listed
from serving.core.blocked_versions import BlockedVersions
from serving.core.model_settings import ModelSettings
from serving.core.operator_api import Rollback
from serving.core.servable import AspiredVersion, ServableId, ServableStatus, UnloadStage
from serving.data_plane.servables import Servable, ServingMap
from serving.loading.loader import Loader
from serving.manager import blocking, canary_turns, events
from serving.manager.blocked_state import BlockedState
from serving.manager.control_thread import (
    Inbox,
    LifeChange,
    Loaded,
    LoadFailed,
    Message,
    OperatorRequest,
    Progress,
    Reply,
    Request,
    Stop,
    StreamChange,
    Unloaded,
    concerned_streams,
)
from serving.manager.decision import decide
from serving.manager.harness import LoaderHarness
from serving.manager.listener import ManagerListener
from serving.manager.rollback import roll_back
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import StreamState
from serving.manager.streams import Streams
from serving.manager.turn import (
    BlocksChanged,
    Decision,
    DefaultChanged,
    Effect,
    Ended,
    Figures,
    Found,
    LogLine,
    Notice,
    StartLoad,
    StartUnload,
    StopLoad,
    Turn,
)
from serving.manager.version_tasks import NoVersionMemory, VersionMemory, VersionTasks

LABELS_SECONDS_MAX = 10.0
"""The longest wait for new labels to take effect. The control thread takes a few milliseconds."""

Result = TypeVar("Result")

REPLY_SECONDS_MAX = 0.005
"""The longest that the control thread waits between the answer to an operator and what follows from it. Without
that wait it would keep the interpreter, and the thread that sends the reply would get it only when all is
told. A reply takes less than a millisecond; this is the interpreter's switch interval."""

FAILED_TURN_NS = NS_PER_SECOND
"""The time until decisions of a model are tried again after a bug ended them."""

_log = structlog.get_logger(__name__)


class AspiredVersionsManager:
    """Loads and unloads versions until the loaded versions are the aspired versions.

    The thread `control` runs from `start` to `stop`.

    Omission from an aspired list means unload, and an empty list unloads all versions. A version that
    is AVAILABLE and aspired is never unloaded. A version whose load failed and is not retried stays in
    END until it is omitted, is found with other files, or a cause of the failure changes. A version
    that is aspired again while its life ends (a cancelled load, an unload) is loaded again after that
    life has ended.
    """

    def __init__(
        self,
        *,
        loader: Loader,
        loaders: Executor,
        unloaders: Executor,
        serving_map: ServingMap,
        streams: Streams,
        monitor: StateMonitor,
        clock: Clock,
        random: Callable[[], float],
        version_memory: VersionMemory | None = None,
        listener: ManagerListener | None = None,
        blocked_versions: Mapping[str, BlockedVersions] = MappingProxyType({}),
    ) -> None:
        """`blocked_versions` are the versions that were blocked when the previous process ended.

        `random` (0 to 1) draws the share of a wait, of a retry or of a swap.
        """
        self._serving_map = serving_map
        self._streams = streams
        self._monitor = monitor
        self._clock = clock
        self._version_memory = version_memory or NoVersionMemory()
        self._listener = listener or ManagerListener()
        self._random = random
        self._inbox = Inbox(clock)
        self._tasks = VersionTasks(
            loader=loader,
            loaders=loaders,
            unloaders=unloaders,
            version_memory=self._version_memory,
            inbox=self._inbox,
            clock=clock,
        )
        self._list_numbers = itertools.count()
        # The number of the last list of aspired versions for each stream.
        self._newest_lists: dict[str, int] = {}
        # The time of each stream's next action if no message arrives before (monotonic).
        self._due_ns: dict[str, int] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        for name, blocks in blocked_versions.items():
            state = replace(streams.of(name), blocks=BlockedState(dict(blocks)))
            streams.replace(state)

    # --- Any thread -------------------------------------------------------------------------------

    def set_aspired(
        self,
        name: str,
        versions: Sequence[AspiredVersion],
        left_out: frozenset[int] | None = None,
    ) -> None:
        """Replaces the aspired versions of one stream. Returns at once.

        `left_out` are the blocked versions that the list was made without; None: those of this moment.
        Not called for one stream by two threads at once.
        """
        number = next(self._list_numbers)
        if left_out is None:
            left_out = self._streams.blocked(name)
        self._newest_lists[name] = number
        self._inbox.post(Request(name, partial(self._aspire, tuple(versions), number, left_out)))

    def set_settings(self, name: str, settings: ModelSettings) -> None:
        """Replaces the settings of one stream. Returns at once.

        A swap under way continues by the new settings.
        """
        self._inbox.post(Request(name, partial(events.set_settings, settings=settings)))

    def set_labels(self, name: str, labels: Mapping[str, int]) -> None:
        """Replaces the labels of one stream; each takes effect once its version is AVAILABLE.

        If the control thread runs, returns once that is done, because the caller's next request may have a
        label.
        """
        is_change = bool(labels or self._streams.of(name).labels)
        labels, reply = MappingProxyType(dict(labels)), Reply[None]()
        self._inbox.post(Request(name, partial(events.set_labels, labels=labels), reply))
        if is_change and self._thread.is_alive():
            done, _ = wait([reply.future], LABELS_SECONDS_MAX)
            for future in done:
                future.result()
            if not done:
                _log.warning("labels_late", model=name, timeout_seconds=LABELS_SECONDS_MAX)

    def found_anew(self, name: str, version: int, files: Fingerprint | None = None) -> None:
        """Unblocks a version that a failure blocked, or that gates have refused with other files than `files`.

        Does nothing for a version that is not blocked. Returns at once.
        """
        self._inbox.post(Request(name, partial(events.found_anew, version=version, files=files)))

    def rollback(self, name: str, *, is_cold_allowed: bool = False) -> Future[Rollback]:
        """Blocks the version that answers and returns its requests to the version before it.

        All requests see the change at once: it is one update of the serving map. The future raises
        NotFound for a stream without versions, and FailedPrecondition if no earlier version is in
        memory. With `is_cold_allowed` an earlier version may be loaded from disk while the current
        one serves on.
        """
        return self._ask(name, partial(roll_back, is_cold_allowed=is_cold_allowed))

    def promote(self, name: str) -> Future[int]:
        """Ends the canary, which then answers all requests.

        The future returns its version, or raises FailedPrecondition without a canary.
        """
        return self._ask(name, canary_turns.promote)

    def allow(self, name: str, version: int) -> Future[None]:
        """Unblocks a version. The future raises FailedPrecondition if it is not blocked."""
        return self._ask(name, partial(blocking.allow, version=version))

    def _ask(self, name: str, change: StreamChange[Result]) -> Future[Result]:
        reply = Reply[Result]()
        self._inbox.post(OperatorRequest(name, change, reply))
        return reply.future

    def start(self) -> None:
        """Starts the control thread, the loaders and the unloaders."""
        self._tasks.start()
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Unloads everything, version by version, and ends all threads.

        A load under way ends at its next stage. Returns False if a thread still runs after
        `timeout_seconds`. All threads are daemons, so the process can end even then.
        """
        self._inbox.post(Stop())
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        has_ended = not self._thread.is_alive()
        # Once the control thread has ended, the executors are idle, so their stop is short. If it has not
        # ended, no time is left for them.
        are_tasks_over = self._tasks.stop(timeout_seconds if has_ended else 0.0)
        return has_ended and are_tasks_over

    # --- The control thread -----------------------------------------------------------------------

    def tick(self) -> None:
        """Handles all messages, then decides for each stream that they concern or that is due.

        A stream gets decisions until it is at rest.
        """
        for name in self._take_in():
            self._guarded(partial(self._take_turn, name))

    def _take_in(self) -> Iterable[str]:
        """Handles the messages that have arrived; returns the streams that may have an action.

        Streams do not depend on each other. So a server of thousands of models examines one stream when a
        load ends, and none while the load proceeds.
        """
        names: dict[str, None] = {}
        are_all_concerned = False
        for message in self._inbox.take():
            self._guarded(partial(self._handle, message))
            concerned = concerned_streams(message)
            are_all_concerned |= concerned is None
            names.update(dict.fromkeys(concerned or ()))
        if are_all_concerned:
            return [state.name for state in self._streams.states()]
        now_ns = self._clock.now_ns()
        due = (name for name, due_ns in self._due_ns.items() if due_ns <= now_ns)
        return {**names, **dict.fromkeys(due)}

    def next_due_seconds(self) -> float | None:
        """The seconds until a decision is due even if no message arrives; None if none is due."""
        due_ns = min(self._due_ns.values(), default=None)
        return None if due_ns is None else max(0, due_ns - self._clock.now_ns()) / NS_PER_SECOND

    def _run(self) -> None:
        while not (self._is_stopping and all(state.is_idle for state in self._streams.states())):
            self._inbox.wait(self.next_due_seconds())
            self.tick()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 (a bug with one model must not stop the others)
            _log.exception("control_failed")

    def _take_turn(self, name: str) -> None:
        """Decides until the stream is at rest, and notes when the next decision is due."""
        # Set before the decisions, so that a quiet model does not wait for its next event for ever if they
        # fail.
        self._due_ns[name] = self._clock.now_ns() + FAILED_TURN_NS
        figures = self._figures(self._streams.of(name))
        while True:
            before = self._streams.of(name)
            decision = decide(before, self._found(before), figures, Now.of(self._clock))
            self._apply(before, decision)
            if decision.is_rest:
                break
        if decision.due_ns is None:
            self._due_ns.pop(name, None)
            if not self._streams.of(name).is_loading:
                self._version_memory.end_room(name)
        else:
            self._due_ns[name] = decision.due_ns

    def _found(self, state: StreamState) -> Found:
        return self._find(state.name) if state.blocks else Found()

    def _find(self, name: str) -> Found:
        listener = self._listener
        return Found(listener.found_versions(name), listener.awaited_base_path(name))

    def _figures(self, state: StreamState) -> Figures:
        ready = state.ready_versions if state.unverified else ()
        statistics = {version: state.harnesses[version].servable.statistics() for version in ready}
        return Figures(statistics, self._random())

    # --- Messages ---------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        match message:
            case Progress(servable_id, changes):
                self._proceed(servable_id, changes)
            case Request(name, change, Reply() as reply):
                reply.answer(partial(self._event, name, change))
            case Request(name, change):
                self._event(name, change)
            case OperatorRequest(name, change, reply):
                self._answer_operator(name, change, reply)
            case Loaded(servable_id, servable):
                self._loaded(servable_id, servable)
            case LoadFailed(servable_id, error):
                self._load_failed(servable_id, error)
            case Unloaded(servable_id, failure):
                self._unloaded(servable_id, failure)
            case Stop():
                self._begin_stop()

    def _begin_stop(self) -> None:
        for state in self._streams.states():
            self._event(state.name, partial(events.aspire, versions=()))
        self._is_stopping = True

    def _aspire(
        self,
        versions: tuple[AspiredVersion, ...],
        number: int,
        left_out: frozenset[int],
        turn: Turn,
    ) -> None:
        """Aspires the versions of the list `number`, which was made without the versions `left_out`.

        A list is stale if other versions are left out by now and a newer list waits: it may lack a version
        that an operator has allowed since, and that answers.
        """
        is_newest = self._newest_lists.get(turn.state.name) == number
        is_stale = not is_newest and turn.state.blocks.left_out != left_out
        if not (is_stale or self._is_stopping):
            events.aspire(turn, versions)

    def _answer_operator(
        self, name: str, change: StreamChange[Result], reply: Reply[Result]
    ) -> None:
        """Answers once requests and readers see an operator's change. Tells of it and begins its effects after
        the answer, because that takes longer.
        """
        try:
            result, turn = reply.run(partial(self._operate, name, change))
        except Exception as error:  # noqa: BLE001 (the caller gets it from the future)
            reply.future.set_exception(error)
            return
        reply.future.set_result(result)
        self._inbox.wait(REPLY_SECONDS_MAX)
        reply.run(partial(self._follow, turn.before, turn.decision()))

    def _operate(self, name: str, change: StreamChange[Result]) -> tuple[Result, Turn]:
        """Shows an operator's change. Raises NotFound for a stream without versions."""
        if not self._streams.of(name).exists:
            raise errors.NotFound(
                f"model {name!r} has no versions; "
                f"models with versions: {listed(self._streams.names())}"
            )
        turn = self._turn(name, self._find(name))
        result = change(turn)
        self._show(turn.before, turn.decision())
        return result, turn

    def _proceed(self, servable_id: ServableId, changes: Iterable[LifeChange]) -> None:
        harness = self._streams.of(servable_id.name).harnesses.get(servable_id.version)
        if harness is not None:
            for change in changes:
                harness = change(harness)
            self._note(harness)

    def _note(self, harness: LoaderHarness) -> None:
        """Records the progress of a load or an unload."""
        self._streams.replace(self._streams.of(harness.id.name).with_harness(harness))
        self._monitor.record(harness.status)

    def _load_failed(self, servable_id: ServableId, error: errors.MillpondError) -> None:
        self._tasks.load_ended(servable_id)
        fail = partial(events.load_failed, version=servable_id.version, error=error)
        self._event(servable_id.name, fail)

    def _unloaded(self, servable_id: ServableId, error: errors.MillpondError | None) -> None:
        end = partial(events.unloaded, version=servable_id.version, error=error)
        harness = self._streams.of(servable_id.name).harnesses[servable_id.version]
        # Before the event, which may start the load that waits for this memory.
        self._version_memory.unloaded(servable_id, makes_room=harness.makes_room)
        self._event(servable_id.name, end)

    def _loaded(self, servable_id: ServableId, servable: Servable) -> None:
        """Publishes a loaded version, and reports it AVAILABLE only then, because a client that reads that
        state may send a request at once.

        Frees a version that was withdrawn meanwhile. If it is aspired again by now, it is loaded anew,
        because its files may have changed.
        """
        name, version = servable_id.name, servable_id.version
        self._tasks.load_ended(servable_id)
        if self._streams.of(name).harnesses[version].is_cancelled:
            self._tasks.discard(
                servable_id, servable, errors.Cancelled(f"{servable_id}: withdrawn")
            )
            return
        start_ns = self._clock.now_ns()
        turn = self._turn(name)
        events.loaded(turn, version, servable)
        try:
            self._serving_map.publish(servable, turn.state.routing)
        except Exception as error:  # noqa: BLE001 (it ends this load and no other)
            failure = errors.from_exception(error)
            if isinstance(failure, errors.InternalError):
                _log.exception("load_raised", model=name, version=version)
            self._tasks.discard(servable_id, servable, failure)
            return
        seconds, now_ns = seconds_since(self._clock, start_ns), self._clock.now_ns()
        # Requests see the version now, so nothing that may fail is asked any more.
        events.published(turn, version, seconds, now_ns)
        self._publish(turn.decision())
        self._follow(turn.before, turn.decision())

    def _event(self, name: str, change: StreamChange[Result]) -> Result:
        """Applies what follows at once from an event. If `change` raises, nothing has changed."""
        turn = self._turn(name)
        result = change(turn)
        self._apply(turn.before, turn.decision())
        return result

    def _turn(self, name: str, found: Found | None = None) -> Turn:
        state = self._streams.of(name)
        figures = Figures(drawn=self._random())
        return Turn(state, Now.of(self._clock), found or self._found(state), figures)

    # --- Effects ----------------------------------------------------------------------------------

    def _apply(self, before: StreamState, decision: Decision) -> None:
        """Applies a decision. See `_show` for what it raises."""
        self._show(before, decision)
        self._follow(before, decision)

    def _show(self, before: StreamState, decision: Decision) -> None:
        """Lets requests see a decision, in one snapshot, and then all readers.

        If the serving map refuses the change, raises its error with nothing applied: the state stays what
        requests see.
        """
        self._record(decision.statuses_before)
        version = decision.unloaded_version
        if version is not None:
            self._retire(before, decision, version)
        elif decision.routing != before.routing:
            self._serving_map.set_routing(decision.state.name, decision.routing)
        self._publish(decision)

    def _publish(self, decision: Decision) -> None:
        """Lets all readers see a decision that requests see already, and the next process its blocks: an
        operator's caller waits until these are on disk.
        """
        self._streams.replace(decision.state)
        for notice in decision.notices_before:
            self._guarded(partial(self._tell, decision.state.name, notice))
        # Before the other notices, so that whoever reads a line of the log finds the status that it speaks of.
        self._record(decision.statuses_after)
        for notice in decision.notices:
            if isinstance(notice, BlocksChanged):
                self._guarded(partial(self._keep, decision.state.name, notice.blocks))

    def _keep(self, name: str, blocks: BlockedState) -> None:
        self._listener.keep_blocked_versions(name, blocks.kept)

    def _follow(self, before: StreamState, decision: Decision) -> None:
        """Tells of a decision that all see already, and begins its effects."""
        name = decision.state.name
        if decision.routing != before.routing:
            self._guarded(partial(self._streams.tell_routing, name))
        for notice in decision.notices_after:
            # If one fails, the others follow all the same, because all readers have the state that they
            # belong to.
            self._guarded(partial(self._tell, name, notice))
        for effect in decision.effects:
            self._guarded(partial(self._act, decision.state, effect))

    def _record(self, statuses: Iterable[ServableStatus]) -> None:
        for status in statuses:
            self._monitor.record(status)

    def _retire(self, before: StreamState, decision: Decision, version: int) -> None:
        """Retires a version from the serving map. If it is refused, records its former status again.

        On this thread: an unloader runs at idle priority, so an UNLOADING version would answer requests until
        the unloader gets a core.
        """
        name = decision.state.name
        try:
            self._serving_map.retire(name, version, decision.routing)
        except Exception:
            if version in self._serving_map.versions(name):
                # It answers still. The next decision of the model tries again.
                self._monitor.record(before.harnesses[version].status)
                raise
            _log.exception("retire_raised", model=name, version=version)
            self._serving_map.set_routing(name, decision.routing)

    def _unload(self, harness: LoaderHarness) -> None:
        self._note(harness.stage_began(UnloadStage.QUIESCE))
        self._tasks.unload(harness.id, harness.servable)

    def _tell(self, name: str, notice: Notice) -> None:
        match notice:
            case LogLine(level, event, fields):
                getattr(_log, level)(event, model=name, **fields)
            case BlocksChanged(blocks):
                self._listener.blocked_versions_changed(name, blocks.left_out)
            case DefaultChanged(version, previous, how):
                self._listener.default_version_changed(name, version, previous, how)
            case Ended():
                self._version_memory.forget(name)

    def _act(self, state: StreamState, effect: Effect) -> None:
        """Starts or stops a load, or starts an unload."""
        match effect:
            case StartLoad(version):
                harness = state.harnesses[version]
                self._tasks.load(harness.id, harness.aspired.directory)
            case StopLoad(version):
                self._tasks.stop_load(ServableId(state.name, version))
            case StartUnload(version):
                self._unload(state.harnesses[version])
