"""AspiredVersionsManager: brings what is loaded to what is aspired, one action at a time.

    set_aspired ─┐                    ┌─> loaders:   load, warm up, publish ───┐
                 ├─> control thread ──┤                                        ├─> control thread
    outcomes ────┘   decides, retires └─> unloaders: quiesce, destroy ─────────┘

All state is confined to the control thread. Everybody else posts to its inbox, so there is no lock
to hold in the wrong order and every run of the same messages is the same run: tests call `tick`
themselves. The control thread waits for its inbox and for the next retry, and for nothing else; a
load or a slow request of one model holds up another's versions only where all threads of an
executor are taken.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from types import MappingProxyType
from typing import Protocol, TypeVar

import structlog

from serving.base import errors
from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.executor import Executor
from serving.base.name_text import listed
from serving.core.aspired_version_policy import (
    Action,
    AspiredVersionPolicy,
    Load,
    ResourcePreserving,
)
from serving.core.blocked_versions import BlockedVersions
from serving.core.cancellation import Cancellation
from serving.core.model_settings import ModelSettings
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    AspiredVersion,
    GateVerdict,
    LoadStage,
    ServableId,
    ServableSnapshot,
    UnloadStage,
)
from serving.data_plane.servables import Servable, ServingMap
from serving.loading.loader import MakeLoader
from serving.loading.unload import Unload
from serving.manager import canary
from serving.manager.harness import LoaderHarness, RetryPolicy
from serving.manager.memory_pressure import MemoryPressure
from serving.manager.rollout import (
    BlockedVersionsChanged,
    DefaultVersionChanged,
    FoundVersions,
    KeepBlockedVersions,
    Rollback,
    Rollout,
)
from serving.manager.router import Canary, Router
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import Stream, StreamStatus
from serving.manager.task_figures import thread_costs

Answer = TypeVar("Answer")

_RESOURCE_PRESERVING = ResourcePreserving()
_DEFAULT_SETTINGS = ModelSettings()

_log = structlog.get_logger(__name__)


class Inbox:
    """Calls to be made on the control thread, in the order in which they were posted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: deque[tuple[Callable[[], None], Collection[str] | None]] = deque()
        self._arrived = threading.Condition()

    def post(self, call: Callable[[], None], *, concerns: Collection[str] | None = None) -> None:
        """Wakes the control thread. Any thread.

        `concerns` are the streams that may have something to do after `call`; None means all.
        """
        with self._arrived:
            self._calls.append((call, concerns))
            self._arrived.notify()

    def take(self) -> Iterator[tuple[Callable[[], None], Collection[str] | None]]:
        """What has arrived, until nothing is left."""
        while self._calls:
            yield self._calls.popleft()

    def wait(self, timeout_seconds: float | None) -> None:
        """Returns at once where something has arrived, else when something does or at the timeout."""
        with self._arrived:
            if not self._calls:
                self._clock.wait(self._arrived, timeout_seconds)


class VersionMemory(Protocol):
    """Who keeps account of the memory of versions (`arenas.Arenas`)."""

    def unloaded(self, servable_id: ServableId) -> None:
        """The version is gone. Any thread."""
        ...

    def forget(self, name: str) -> None:
        """The last version of the name is gone and none is aspired."""
        ...


class NoVersionMemory:
    """Where versions have no memory of their own."""

    def unloaded(self, servable_id: ServableId) -> None:
        """Nothing to keep account of."""

    def forget(self, name: str) -> None:
        """Nothing is kept."""


class _Progress:
    """What a loader thread says about a load, posted to the control thread.

    No policy looks at it, so no stream has anything to do after it.
    """

    def __init__(self, harness: LoaderHarness, inbox: Inbox, clock: Clock) -> None:
        self._harness = harness
        self._inbox = inbox
        self._clock = clock

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.post(call, concerns=())

    @property
    def cancellation(self) -> Cancellation:
        return self._harness.cancellation

    def stage_began(self, stage: LoadStage) -> None:
        self._post(partial(self._harness.stage_began, stage))

    def stage_ended(self, stage: LoadStage, seconds: float) -> None:
        ended_at_ns = self._clock.now_ns()
        self._post(partial(self._harness.stage_ended, stage, seconds, ended_at_ns))

    def measured(self, figures: Mapping[str, float]) -> None:
        self._post(partial(self._harness.measured, figures))

    def gate_ended(self, verdict: GateVerdict) -> None:
        self._post(partial(self._harness.gate_ended, verdict))


class AspiredVersionsManager:
    """See the module. Its thread `control` runs from `start` to `stop`.

    Omission from an aspired list means unload, an empty list unloads all. A version that is
    AVAILABLE and aspired is never unloaded. A version whose load failed for good stays in END until
    it is omitted or found anew. A version that is aspired again while its life ends (a cancelled
    load, an unload) waits for that end and is then loaded from its files.
    """

    def __init__(
        self,
        *,
        make_loader: MakeLoader,
        serving_map: ServingMap,
        policy: AspiredVersionPolicy,
        retry: RetryPolicy,
        loaders: Executor,
        unloaders: Executor,
        version_memory: VersionMemory | None = None,
        router: Router | None = None,
        blocked_versions_changed: BlockedVersionsChanged = lambda name, versions: None,
        found_versions: FoundVersions = lambda name: (),
        blocked_versions: Mapping[str, BlockedVersions] = MappingProxyType({}),
        keep_blocked_versions: KeepBlockedVersions = lambda name, blocked_versions: None,
        default_version_changed: DefaultVersionChanged = lambda name, version, previous_version, how: (
            None
        ),
        load_jitter_seconds: float = 0.0,
        random: Callable[[], float] = lambda: 1.0,
        monitor: StateMonitor,
        clock: Clock,
    ) -> None:
        """`blocked_versions_changed` is called with the versions that a model's source leaves out.
        `found_versions` returns the versions that the source finds. `blocked_versions` are those of
        each model before the process began; `keep_blocked_versions` stores them for the next process.
        `default_version_changed` is called if a version answers without having been loaded for it.
        `random` (0 to 1) draws the share of `load_jitter_seconds` that a swap is put off.
        """
        self._make_loader = make_loader
        self._policy = policy
        self._retry = retry
        self._loaders = loaders
        self._unloaders = unloaders
        self._version_memory = version_memory or NoVersionMemory()
        self._router = router or Router(serving_map)
        self._router.on_labels(lambda name: self._inbox.post(lambda: None, concerns=(name,)))
        self._rollout = Rollout(
            self._router,
            found_versions=found_versions,
            blocked_versions_changed=self._notify_blocked,
            keep_blocked_versions=keep_blocked_versions,
            default_version_changed=default_version_changed,
            apply_wanted=self._apply_wanted,
            clock=clock,
        )
        self._blocked_versions_changed = blocked_versions_changed
        self._memory_pressure = MemoryPressure(self._router, self._rollout, self._stream_of)
        self._load_jitter_ns = round(load_jitter_seconds * NS_PER_SECOND)
        self._random = random
        self._monitor = monitor
        self._clock = clock
        self._inbox = Inbox(clock)
        self._streams: dict[str, Stream] = {}
        # Values that other threads read; each is replaced as a whole.
        self._settings: dict[str, ModelSettings] = {}
        self._statuses: dict[str, StreamStatus] = {}
        self._servables: dict[str, Mapping[int, Servable]] = {}
        self._blocked: dict[str, frozenset[int]] = {}
        # The versions that were first aspired together with each version of a name.
        self._companions: dict[str, Mapping[int, frozenset[int]]] = {}
        # Since when a name has had a version AVAILABLE without a break (monotonic).
        self._served_since_ns: dict[str, int] = {}
        # When a stream has something to do by itself, as of its last turn; only those that will have.
        self._due_ns: dict[str, int] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._restore_blocked(blocked_versions)

    # --- Any thread -------------------------------------------------------------------------------

    def set_aspired(self, name: str, versions: Sequence[AspiredVersion]) -> None:
        """Replaces the aspired versions of one stream. Returns at once."""
        self._inbox.post(partial(self._replace_aspired, name, tuple(versions)), concerns=(name,))

    def set_settings(self, name: str, settings: ModelSettings) -> None:
        """Replaces what is said of one stream. Returns at once; a swap under way goes on by it."""
        self._inbox.post(partial(self._replace_settings, name, settings), concerns=(name,))

    def incumbent(self, servable_id: ServableId) -> Servable | None:
        """Returns the version whose clients `servable_id` will get: the one that answers now.

        None for a version that gets no clients of another one. That is one that is lower, by a
        rollback or by its number alone; one beside which the other was first aspired, as at the
        start of a server of several versions; and one that follows a version rolled back.
        """
        name = servable_id.name
        servables = self._servables.get(name, {})
        default = self._router.answering(name)
        version = default if default in servables else max(servables, default=None)
        companions = self._companions.get(name, {}).get(servable_id.version, frozenset())
        if version is None or version in companions or version in self.blocked(name):
            return None
        return servables.get(version) if version < servable_id.version else None

    def servable(self, servable_id: ServableId) -> Servable | None:
        """The version, where it is AVAILABLE. Whoever has it may meet its end at any time."""
        return self._servables.get(servable_id.name, {}).get(servable_id.version)

    def blocked(self, name: str) -> frozenset[int]:
        """The versions that a model's source is to leave out."""
        return self._blocked.get(name, frozenset())

    def found_anew(self, name: str, version: int) -> None:
        """A version was found, or with other files than before; it may be blocked. Returns at once."""
        self._inbox.post(partial(self._found_anew, name, version), concerns=(name,))

    def stream_status(self, name: str) -> StreamStatus | None:
        """What there is to say of a stream beside its versions; None where it has none."""
        return self._statuses.get(name)

    def rollback(self, name: str, *, is_cold_allowed: bool = False) -> Future[Rollback]:
        """Puts the version before the one that answers back in its place, and blocked_versions that one.

        Requests see it within one change of the serving map. The future has what was done, or
        FailedPrecondition where no earlier version is in memory, unless a cold one (loaded from
        disk while this one goes on) will do; NotFound for a stream that has no version.
        """

        def roll_back() -> Rollback:
            stream = self._stream_with_versions(name)
            return self._rollout.roll_back(name, stream, is_cold_allowed=is_cold_allowed)

        return self._ask(name, roll_back)

    def promote(self, name: str) -> Future[int]:
        """Ends the canary: it answers everything. The future has its version, or FailedPrecondition."""
        return self._ask(name, lambda: self._rollout.promote(name))

    def allow(self, name: str, version: int) -> Future[None]:
        """Takes back what a rollback said of a version; FailedPrecondition where it is not blocked."""
        return self._ask(
            name, lambda: self._rollout.allow(name, self._stream_with_versions(name), version)
        )

    def start(self) -> None:
        """Starts the control thread, the loaders and the unloaders."""
        self._loaders.start()
        self._unloaders.start()
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Unloads everything, version by version, and ends all threads.

        A load under way ends at its next stage. False where something still runs after
        `timeout_seconds`; the threads are daemons, so the process can end all the same.
        """
        self._inbox.post(self._begin_stop)
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        has_ended = not self._thread.is_alive()
        # Idle where the control thread has ended, so this is short; else there is no time left.
        grace_seconds = timeout_seconds if has_ended else 0.0
        executors = [self._loaders.stop(grace_seconds), self._unloaders.stop(grace_seconds)]
        return has_ended and all(executors)

    # --- The control thread -----------------------------------------------------------------------

    def tick(self) -> None:
        """Takes in what has arrived, then acts for each stream that it concerns or that is due, until
        its policy is content.
        """
        for name in self._take_in():
            stream = self._streams.get(name)
            if stream is not None:
                self._take_turn(name, stream)

    def _take_in(self) -> Iterable[str]:
        """Makes the calls that have arrived; returns the streams that may have something to do.

        A stream depends on no other stream. So a server of thousands of models looks at one of
        them when a load ends, and at none while it goes on.
        """
        names: dict[str, None] = {}
        are_all_concerned = False
        for call, concerns in self._inbox.take():
            self._guarded(call)
            are_all_concerned |= concerns is None
            names.update(dict.fromkeys(concerns or ()))
        if are_all_concerned:
            return list(self._streams)
        now_ns = self._clock.now_ns()
        due = (name for name, due_ns in self._due_ns.items() if due_ns <= now_ns)
        return {**names, **dict.fromkeys(due)}

    def _take_turn(self, name: str, stream: Stream) -> None:
        self._guarded(partial(self._advance, name, stream))
        self._guarded(partial(self._note_due, name))
        if stream.aspired or stream.harnesses:
            stream.is_idle = False
            self._statuses[name] = self._status_of(name, stream)
        elif not stream.is_idle:
            self._guarded(partial(self._let_rest, name, stream))

    def _note_due(self, name: str) -> None:
        self._due_ns.pop(name, None)
        due_ns = min(self._due_instants_ns(name), default=None)
        if due_ns is not None:
            self._due_ns[name] = due_ns

    def next_due_seconds(self) -> float | None:
        """Seconds until `tick` has something to do by itself (0: now); None where there is nothing.

        A load to try again or that was put off, a previous version to let go, a canary to judge.
        """
        due_ns = min(self._due_ns.values(), default=None)
        return None if due_ns is None else max(0, due_ns - self._clock.now_ns()) / NS_PER_SECOND

    def _due_instants_ns(self, name: str) -> Iterator[int]:
        stream = self._streams[name]
        for harness in stream.harnesses.values() if self._may_retry(name, stream) else ():
            if harness.retry_at_ns is not None:
                yield harness.retry_at_ns
        action = self._next_action(name, stream)
        swap_version = None if action is None else stream.swap_of(action)
        if swap_version is not None and swap_version in stream.swap_at_ns:
            yield stream.swap_at_ns[swap_version]
        keep_until_ns = None if stream.is_resource_preserving else stream.keep_until_ns()
        if keep_until_ns is not None:
            yield keep_until_ns
        if self._rollout.is_judged_by_rule(name, stream):
            yield self._clock.now_ns() + round(canary.PERIOD_SECONDS * NS_PER_SECOND)

    def _run(self) -> None:
        while not (self._is_stopping and not self._streams):
            self._inbox.wait(self.next_due_seconds())
            self.tick()

    def _post_of(self, harness: LoaderHarness, call: Callable[[], None]) -> None:
        self._inbox.post(call, concerns=(harness.id.name,))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 (a bug; one model's must not stop the others)
            _log.exception("control_failed")

    def _begin_stop(self) -> None:
        for name, stream in list(self._streams.items()):
            self._replace_aspired(name, ())
            stream.blocked_versions = {}
            if stream.is_idle:
                del self._streams[name]
                self._due_ns.pop(name, None)
        self._is_stopping = True

    def _restore_blocked(self, blocked_versions: Mapping[str, BlockedVersions]) -> None:
        for name, blocked in blocked_versions.items():
            if blocked:
                self._streams[name] = Stream(is_idle=True)
                self._rollout.restore(name, self._streams[name], blocked)
                self._blocked[name] = frozenset(blocked)

    def _notify_blocked(self, name: str, versions: frozenset[int]) -> None:
        self._blocked[name] = versions
        self._blocked_versions_changed(name, versions)

    def _found_anew(self, name: str, version: int) -> None:
        if name in self._streams:
            stream = self._streams[name]
            self._rollout.unblock(name, stream, version, "its files have changed")
            # One that is not blocked takes the place of a rolled back one that came back.
            self._rollout.note_last_resort(name, stream)

    def _replace_settings(self, name: str, settings: ModelSettings) -> None:
        self._settings[name] = settings
        if name in self._streams:
            self._streams[name].settings = settings
            self._rollout.change_canary(name, settings.canary)

    def _status_of(self, name: str, stream: Stream) -> StreamStatus:
        return stream.status(self._router.routing(name), self._router.wanted_labels(name))

    def _let_rest(self, name: str, stream: Stream) -> None:
        """Nothing of the stream is left, or to come; what was rolled back is remembered."""
        self._statuses.pop(name, None)
        self._companions.pop(name, None)
        self._version_memory.forget(name)
        if stream.blocked and not self._is_stopping:
            stream.is_idle = True
        else:
            del self._streams[name]
            self._due_ns.pop(name, None)
            self._blocked.pop(name, None)
            self._router.forget(name)

    def _ask(self, name: str, question: Callable[[], Answer]) -> Future[Answer]:
        future: Future[Answer] = Future()

        def answer() -> None:
            try:
                future.set_result(question())
            except Exception as error:  # noqa: BLE001 (whoever asked gets it)
                future.set_exception(error)

        # With what the log says of whoever asks: the call's trace.
        self._inbox.post(partial(copy_context().run, answer), concerns=(name,))
        return future

    def _replace_aspired(self, name: str, versions: tuple[AspiredVersion, ...]) -> None:
        if self._is_stopping:
            return
        stream = self._streams.setdefault(name, Stream(settings=self._settings_of(name)))
        stream.wanted = versions
        if stream.is_idle:
            # The source may be another one than that which was told.
            self._rollout.notify_blocked(name, stream)
        self._apply_wanted(name, stream)

    def _apply_wanted(self, name: str, stream: Stream) -> None:
        stream.aspired = {version.version: version for version in stream.effective_aspired()}
        self._router.set_last_resorts(name, stream.blocked & stream.aspired.keys())
        self._rollout.end_canary_unless_aspired(name, stream)
        if stream.pressing_version not in stream.aspired:
            stream.end_making_room()
        for version, harness in stream.harnesses.items():
            aspired, state = stream.aspired.get(version), harness.status.state
            if aspired is None and state in (START, LOADING):
                harness.cancel()
            elif aspired is not None and state is AVAILABLE and aspired != harness.aspired:
                harness.aspired = aspired
                _log.warning(
                    "live_version_found_anew",
                    **_fields(harness),
                    remedy="it serves what was loaded; drop other files under a new version",
                )
        # Now and not at the next tick: the next list may have back what this one omits.
        self._reconcile(name, stream)

    def _settings_of(self, name: str) -> ModelSettings:
        return self._settings.get(name, _DEFAULT_SETTINGS)

    def _stream_with_versions(self, name: str) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            raise errors.NotFound(
                f"model {name!r} has no versions; those that have: {listed(sorted(self._streams))}"
            )
        return stream

    def _reconcile(self, name: str, stream: Stream) -> None:
        """Lets go of lives that are over, and begins one for each aspired version without."""
        for version, harness in list(stream.harnesses.items()):
            aspired = stream.aspired.get(version)
            is_over = harness.status.state is END
            if is_over and (harness.is_discarded or aspired != harness.aspired):
                del stream.harnesses[version]
        stream.forget_past_swaps()
        begun = [version for version in stream.aspired if version not in stream.harnesses]
        if begun:
            known = self._companions.get(name, {})
            kept = {version: known[version] for version in stream.harnesses if version in known}
            self._companions[name] = {**kept, **dict.fromkeys(begun, frozenset(begun))}
        for version in begun:
            stream.harnesses[version] = LoaderHarness(
                ServableId(name, version),
                stream.aspired[version],
                retry=self._retry,
                clock=self._clock,
                record=self._monitor.record,
            )

    def _advance(self, name: str, stream: Stream) -> None:
        self._try_again(name, stream)
        self._reconcile(name, stream)
        self._rollout.end_canary_unless_aspired(name, stream)
        self._rollout.resume_canary(name, stream, stream.settings.canary)
        self._rollout.judge_canary(name, stream)
        stream.note_superseded(self._router.routing(name), self._clock.now_ns())
        while (action := self._next_action(name, stream)) is not None:
            swap_version = stream.swap_of(action)
            if swap_version is not None and self._is_put_off(stream, swap_version):
                break
            self._perform(action, stream.harnesses[action.id.version])
        if self._may_retry(name, stream):
            self._retry_due_loads(stream)
        stream.note_superseded(self._router.routing(name), self._clock.now_ns())

    def _try_again(self, name: str, stream: Stream) -> None:
        """Lets go of failures by settings that are others now, or for want of room that can be made."""
        stream.forget_past_loads()
        for version, reason in stream.worth_another_try(self._router.routing(name)).items():
            del stream.failed_loads[version]
            _log.info("load_tried_again", model=name, version=version, reason=reason)
            stream.harnesses.pop(version, None)
            if version in stream.blocked_versions:
                self._rollout.unblock(name, stream, version, reason)

    def _next_action(self, name: str, stream: Stream) -> Action | None:
        return self._policy_of(stream).next_action(self._snapshots(name, stream))

    def _may_retry(self, name: str, stream: Stream) -> bool:
        return self._policy_of(stream).may_retry(self._snapshots(name, stream))

    def _policy_of(self, stream: Stream) -> AspiredVersionPolicy:
        return _RESOURCE_PRESERVING if stream.is_resource_preserving else self._policy

    def _snapshots(self, name: str, stream: Stream) -> list[ServableSnapshot]:
        return stream.snapshots(self._router.routing(name), self._clock.now_ns())

    def _is_put_off(self, stream: Stream, version: int) -> bool:
        """Whether the swap to `version` waits, so that a fleet does not swap in step: the load, and
        the unload that makes room for it, by an instant that is drawn once. Never a model's first.
        """
        if self._load_jitter_ns == 0 or not stream.ready_versions:
            return False
        now_ns = self._clock.now_ns()
        if version not in stream.swap_at_ns:
            stream.swap_at_ns[version] = now_ns + round(self._random() * self._load_jitter_ns)
            _log.info(
                "load_put_off",
                **_fields(stream.harnesses[version]),
                seconds=(stream.swap_at_ns[version] - now_ns) / NS_PER_SECOND,
            )
        return now_ns < stream.swap_at_ns[version]

    def _retry_due_loads(self, stream: Stream) -> None:
        now_ns = self._clock.now_ns()
        for harness in stream.harnesses.values():
            if harness.retry_at_ns is not None and harness.retry_at_ns <= now_ns:
                self._note_settings(harness)
                harness.begin_retry()
                self._loaders.submit(partial(self._load, harness), harness.id.name)

    def _note_settings(self, harness: LoaderHarness) -> None:
        stream = self._streams[harness.id.name]
        stream.load_settings[harness.id.version] = stream.settings

    def _perform(self, action: Action, harness: LoaderHarness) -> None:
        if isinstance(action, Load):
            self._note_settings(harness)
            harness.begin_load()
            _log.info("load_started", **_fields(harness))
            self._loaders.submit(partial(self._load, harness), harness.id.name)
        else:
            harness.begin_unload()
            _log.info("unload_started", **_fields(harness))
            self._let_go(harness.id)
            self._retire(harness)

    def _retire(self, harness: LoaderHarness) -> None:
        """Takes the version from requests, and has the rest done by an unloader.

        Here and not on the unloader's thread, which runs at idle priority: a version that is
        UNLOADING must not answer until that thread gets a core.
        """
        try:
            self._router.retire(harness.id)
        except Exception as error:  # noqa: BLE001 (it ends this unload and no other)
            _log.exception("unload_raised", **_fields(harness))
            self._unloaded(harness, errors.from_exception(error))
            return
        harness.stage_began(UnloadStage.QUIESCE)
        self._unloaders.submit(partial(self._unload, harness, self._unload_of(harness)))

    def _unload_of(self, harness: LoaderHarness) -> Unload:
        def stage_ended(stage: UnloadStage, seconds: float) -> None:
            ended_at_ns = self._clock.now_ns()
            self._inbox.post(partial(harness.stage_ended, stage, seconds, ended_at_ns), concerns=())

        return Unload(
            harness.id,
            harness.servable,
            clock=self._clock,
            stage_ended=stage_ended,
        )

    def _loaded(self, harness: LoaderHarness, servable: Servable) -> None:
        harness.loaded(servable)
        name = harness.id.name
        self._servables[name] = {**self._servables.get(name, {}), harness.id.version: servable}
        self._served_since_ns.setdefault(name, self._clock.now_ns())
        if name in self._streams:
            self._streams[name].served.add(harness.id.version)
            self._streams[name].end_making_room()
            self._rollout.note_last_resort(name, self._streams[name])
        _log.info("version_available", **_fields(harness), **_stage_fields(harness))

    def _let_go(self, servable_id: ServableId) -> None:
        left = dict(self._servables.get(servable_id.name, {}))
        left.pop(servable_id.version, None)
        if left:
            self._servables[servable_id.name] = left
        else:
            self._servables.pop(servable_id.name, None)
            self._served_since_ns.pop(servable_id.name, None)

    def _load_failed(self, harness: LoaderHarness, error: errors.MillpondError) -> None:
        error = self._memory_pressure.note_failure(harness, error)
        makes_room = self._memory_pressure.begin(harness, error)
        harness.load_failed(error, is_retried=makes_room)
        self._remember_failure(harness)
        self._memory_pressure.take_back(harness)
        health = harness.status.health
        will_retry = harness.retry_at_ns is not None
        report = _log.info if harness.is_cancelled else _log.warning if will_retry else _log.error
        report(
            "load_failed",
            **_fields(harness),
            code=health.code.name,
            reason=health.message,
            will_retry=will_retry,
        )

    def _remember_failure(self, harness: LoaderHarness) -> None:
        stream = self._stream_of(harness)
        if stream is not None and not harness.is_cancelled and harness.status.state is END:
            stream.load_failed(harness)

    def _stream_of(self, harness: LoaderHarness) -> Stream | None:
        """The stream whose life this is; None where it is gone, or the version has another life."""
        stream = self._streams.get(harness.id.name)
        is_current = stream is not None and stream.harnesses.get(harness.id.version) is harness
        return stream if is_current else None

    def _unloaded(self, harness: LoaderHarness, error: errors.MillpondError | None) -> None:
        harness.unloaded(error)
        self._version_memory.unloaded(harness.id)
        stream = self._streams.get(harness.id.name)
        for waiting in stream.harnesses.values() if stream else ():
            if waiting.status.health.code is errors.StatusCode.RESOURCE_EXHAUSTED:
                waiting.retry_now()

    # --- Loader threads ---------------------------------------------------------------------------

    def _load(self, harness: LoaderHarness) -> None:
        try:
            servable = self._load_and_publish(harness)
        except Exception as error:  # noqa: BLE001 (whatever it is, it ends this load and no other)
            failure = errors.from_exception(error)
            if isinstance(failure, errors.InternalError):
                _log.exception("load_raised", **_fields(harness))
            self._post_of(harness, partial(self._load_failed, harness, failure))
        else:
            self._post_of(harness, partial(self._loaded, harness, servable))

    def _load_and_publish(self, harness: LoaderHarness) -> Servable:
        loader = self._make_loader(harness.id, harness.aspired.directory)
        progress = _Progress(harness, self._inbox, self._clock)
        with thread_costs("load", progress.measured):
            servable = loader.load(progress)
        try:
            if harness.is_cancelled:
                raise errors.Cancelled(f"{harness.id}: no longer aspired; its load is undone")
            start_ns = self._clock.now_ns()
            self._publish(harness, servable)
            progress.stage_ended(LoadStage.PUBLISH, seconds_since(self._clock, start_ns))
        except BaseException:
            servable.destroy()
            self._version_memory.unloaded(harness.id)
            raise
        return servable

    def _publish(self, harness: LoaderHarness, servable: Servable) -> None:
        """Before the version is AVAILABLE: who reads that state may send a request at once."""
        self._router.publish(harness.id, servable, canary=self._canary_of(harness))

    def _canary_of(self, harness: LoaderHarness) -> Canary | None:
        """The share that a new version begins with; none where it came together with the first one."""
        wanted = self._settings_of(harness.id.name).canary
        served_since_ns = self._served_since_ns.get(harness.id.name)
        is_further = served_since_ns is not None and harness.began_at_ns >= served_since_ns
        if wanted.weight == 0 or not is_further:
            return None
        return Canary.of(harness.id.version, wanted)

    # --- Unloader threads -------------------------------------------------------------------------

    def _unload(self, harness: LoaderHarness, unload: Unload) -> None:
        costs: dict[str, float] = {}
        try:
            with thread_costs("unload", costs.update):
                is_gone = unload.take_turn()
        except Exception as error:  # noqa: BLE001 (it ends this unload and no other)
            _log.exception("unload_raised", **_fields(harness))
            self._post_of(harness, partial(self._unloaded, harness, errors.from_exception(error)))
            return
        if is_gone:
            # Of the turn that freed it; those before it only waited.
            self._inbox.post(partial(harness.measured, costs), concerns=())
            self._post_of(harness, partial(self._unloaded, harness, None))
        else:
            self._unloaders.submit(partial(self._unload, harness, unload))


def _fields(harness: LoaderHarness) -> dict[str, object]:
    return {"model": harness.id.name, "version": harness.id.version}


def _stage_fields(harness: LoaderHarness) -> dict[str, object]:
    stage_seconds = harness.status.stage_seconds
    fields = {f"{stage.value}_seconds": round(took, 4) for stage, took in stage_seconds.items()}
    return {**fields, "load_seconds": round(sum(stage_seconds.values()), 4)}
