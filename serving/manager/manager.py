"""AspiredVersionsManager: brings the loaded versions in line with the aspired ones, one action at a time.

    set_aspired ─┐                    ┌─> loaders:   load, warm up, publish ───┐
                 ├─> control thread ──┤                                        ├─> control thread
    outcomes ────┘   decides, retires └─> unloaders: quiesce, destroy ─────────┘

All state is confined to the control thread. Other threads only post messages to the thread's inbox
(`control_thread.py`), so the state needs no lock. The same messages in the same order give the same
run, which is why tests can call `tick` themselves. The control thread waits only for its inbox and
for the next due action. A load or a slow request of one model delays the versions of another model
only if all threads of an executor are taken.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import structlog

from serving.base import errors
from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.executor import Executor
from serving.base.name_text import listed
from serving.core.aspired_version_policy import Action, Load
from serving.core.blocked_versions import BlockedVersions
from serving.core.model_settings import GateMode, ModelSettings
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    AspiredVersion,
    ServableId,
    ServableSnapshot,
    ServableStatus,
    UnloadStage,
)
from serving.data_plane.servables import Servable
from serving.loading.loader import MakeLoader
from serving.manager import canary
from serving.manager.control_thread import (
    Allow,
    FoundAnew,
    GateEnded,
    Inbox,
    LabelsChanged,
    Loaded,
    LoadFailed,
    Measured,
    Message,
    Promote,
    Reply,
    Request,
    RollBack,
    SetAspired,
    SetSettings,
    StageBegan,
    StageEnded,
    Stop,
    Unloaded,
    concerned_streams,
)
from serving.manager.harness import LoaderHarness, RetryPolicy
from serving.manager.listener import ManagerListener
from serving.manager.manager_view import ManagerView
from serving.manager.memory_pressure import MemoryPressure
from serving.manager.rollout import Rollback, Rollout
from serving.manager.router import Router
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import Stream, StreamStatus, SwapJitter
from serving.manager.version_tasks import NoVersionMemory, VersionMemory, VersionTasks

Result = TypeVar("Result")

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
        make_loader: MakeLoader,
        retry: RetryPolicy,
        loaders: Executor,
        unloaders: Executor,
        router: Router,
        monitor: StateMonitor,
        clock: Clock,
        version_memory: VersionMemory | None = None,
        listener: ManagerListener | None = None,
        blocked_versions: Mapping[str, BlockedVersions] = MappingProxyType({}),
        swap_jitter: SwapJitter | None = None,
    ) -> None:
        """`blocked_versions` are the versions that were blocked when the previous process ended."""
        self._retry = retry
        self._router = router
        self._monitor = monitor
        self._clock = clock
        self._version_memory = version_memory or NoVersionMemory()
        self._swap_jitter = swap_jitter or SwapJitter()
        self._inbox = Inbox(clock)
        self._view = ManagerView(router, clock)
        self._tasks = VersionTasks(
            make_loader=make_loader,
            loaders=loaders,
            unloaders=unloaders,
            version_memory=self._version_memory,
            router=router,
            view=self._view,
            inbox=self._inbox,
            clock=clock,
        )
        self._rollout = Rollout(
            router,
            self._view,
            listener or ManagerListener(),
            apply_wanted=self._apply_wanted,
            clock=clock,
        )
        self._memory_pressure = MemoryPressure(router, self._rollout, self._stream_of)
        self._streams: dict[str, Stream] = {}
        # The time of each stream's next action if no message arrives before (monotonic). Computed at
        # the stream's last turn.
        self._due_ns: dict[str, int] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._restore_blocked(blocked_versions)
        router.on_labels(lambda name: self._inbox.post(LabelsChanged(name)))

    # --- Any thread -------------------------------------------------------------------------------

    def set_aspired(self, name: str, versions: Sequence[AspiredVersion]) -> None:
        """Replaces the aspired versions of one stream. Returns at once."""
        self._inbox.post(SetAspired(name, tuple(versions)))

    def set_settings(self, name: str, settings: ModelSettings) -> None:
        """Replaces the settings of one stream. Returns at once.

        A swap under way continues by the new settings.
        """
        self._inbox.post(SetSettings(name, settings))

    def found_anew(self, name: str, version: int) -> None:
        """Unblocks a version that a failure blocked, because it was found with other files.

        Does nothing for a version that is not blocked. Returns at once.
        """
        self._inbox.post(FoundAnew(name, version))

    def incumbent(self, servable_id: ServableId) -> Servable | None:
        """See `ManagerView.incumbent`."""
        return self._view.incumbent(servable_id)

    def servable(self, servable_id: ServableId) -> Servable | None:
        """See `ManagerView.servable`."""
        return self._view.servable(servable_id)

    def blocked(self, name: str) -> frozenset[int]:
        """See `ManagerView.blocked`."""
        return self._view.blocked(name)

    def blocks(self, name: str) -> BlockedVersions:
        """See `ManagerView.blocks`."""
        return self._view.blocks(name)

    def stream_status(self, name: str) -> StreamStatus | None:
        """See `ManagerView.status`."""
        return self._view.status(name)

    def rollback(self, name: str, *, is_cold_allowed: bool = False) -> Future[Rollback]:
        """Blocks the version that answers and returns its requests to the version before it.

        All requests see the change at once: it is one update of the serving map. The future raises
        NotFound for a stream without versions, and FailedPrecondition if no earlier version is in
        memory. With `is_cold_allowed` an earlier version may be loaded from disk while the current
        one serves on.
        """
        reply = Reply[Rollback]()
        self._inbox.post(RollBack(name, is_cold_allowed, reply))
        return reply.future

    def promote(self, name: str) -> Future[int]:
        """Ends the canary, which then answers all requests.

        The future returns its version, or raises FailedPrecondition without a canary.
        """
        reply = Reply[int]()
        self._inbox.post(Promote(name, reply))
        return reply.future

    def allow(self, name: str, version: int) -> Future[None]:
        """Unblocks a version. The future raises FailedPrecondition if it is not blocked."""
        reply = Reply[None]()
        self._inbox.post(Allow(name, version, reply))
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
        # The executors are idle once the control thread has ended, so their stop is short. If it has
        # not ended, no time is left for them.
        are_tasks_over = self._tasks.stop(timeout_seconds if has_ended else 0.0)
        return has_ended and are_tasks_over

    # --- The control thread -----------------------------------------------------------------------

    def tick(self) -> None:
        """Handles all messages, then acts for each stream that they concern or that is due.

        A stream gets actions until its policy has no further one.
        """
        for name in self._take_in():
            stream = self._streams.get(name)
            if stream is not None:
                self._take_turn(name, stream)

    def _take_in(self) -> Iterable[str]:
        """Handles the messages that have arrived; returns the streams that may have an action.

        A stream does not depend on other streams. So a server of thousands of models examines one
        stream when a load ends, and no stream while the load proceeds.
        """
        names: dict[str, None] = {}
        are_all_concerned = False
        for message in self._inbox.take():
            self._guarded(partial(self._handle, message))
            concerned = concerned_streams(message)
            are_all_concerned |= concerned is None
            names.update(dict.fromkeys(concerned or ()))
        if are_all_concerned:
            return list(self._streams)
        now_ns = self._clock.now_ns()
        due = (name for name, due_ns in self._due_ns.items() if due_ns <= now_ns)
        return {**names, **dict.fromkeys(due)}

    def _handle(self, message: Message) -> None:
        match message:
            case StageBegan(harness, stage):
                harness.stage_began(stage)
            case StageEnded(harness, stage, seconds, ended_at_ns):
                harness.stage_ended(stage, seconds, ended_at_ns)
            case Measured(harness, figures):
                harness.measured(figures)
            case GateEnded(harness, verdict):
                harness.gate_ended(verdict)
            case Loaded(harness, servable):
                self._loaded(harness, servable)
            case LoadFailed(harness, error):
                self._load_failed(harness, error)
            case Unloaded(harness, failure):
                self._unloaded(harness, failure)
            case _:
                self._handle_request(message)

    def _handle_request(self, message: Request) -> None:
        match message:
            case SetAspired(name, versions):
                self._replace_aspired(name, versions)
            case SetSettings(name, settings):
                self._replace_settings(name, settings)
            case FoundAnew(name, version):
                self._found_anew(name, version)
            case LabelsChanged():
                pass  # The turn of its stream follows, and looks up the labels.
            case RollBack(name, is_cold_allowed, reply):
                roll_back = partial(self._roll_back, name, is_cold_allowed=is_cold_allowed)
                reply.answer(partial(self._shown, name, roll_back))
            case Promote(name, promoted):
                promoted.answer(partial(self._shown, name, partial(self._rollout.promote, name)))
            case Allow(name, version, allowed):
                allowed.answer(partial(self._shown, name, partial(self._allow, name, version)))
            case Stop():
                self._begin_stop()

    def _shown(self, name: str, change: Callable[[], Result]) -> Result:
        """Does an operator's change, and publishes the status before the operator gets the answer."""
        result = change()
        stream = self._streams.get(name)
        if stream is not None and (stream.aspired or stream.harnesses):
            self._view.set_status(name, self._status_of(name, stream))
        return result

    def _roll_back(self, name: str, *, is_cold_allowed: bool) -> Rollback:
        stream = self._stream_with_versions(name)
        return self._rollout.roll_back(name, stream, is_cold_allowed=is_cold_allowed)

    def _allow(self, name: str, version: int) -> None:
        self._rollout.allow(name, self._stream_with_versions(name), version)

    def _take_turn(self, name: str, stream: Stream) -> None:
        self._guarded(partial(self._advance, name, stream))
        self._guarded(partial(self._note_due, name))
        if stream.aspired or stream.harnesses:
            stream.is_idle = False
            self._view.set_status(name, self._status_of(name, stream))
        elif not stream.is_idle:
            self._guarded(partial(self._retire_stream, name, stream))

    def _note_due(self, name: str) -> None:
        self._due_ns.pop(name, None)
        due_ns = min(self._due_instants_ns(name), default=None)
        if due_ns is not None:
            self._due_ns[name] = due_ns

    def next_due_seconds(self) -> float | None:
        """Returns the seconds until an action is due even if no message arrives.

        Returns None if no action is due. Such actions are a retry, a delayed swap, the unload of a
        previous version, the judgement of a canary, and the return of a version that crashed.
        """
        due_ns = min(self._due_ns.values(), default=None)
        return None if due_ns is None else max(0, due_ns - self._clock.now_ns()) / NS_PER_SECOND

    def _due_instants_ns(self, name: str) -> Iterator[int]:
        stream = self._streams[name]
        crash_wait_ns = stream.blocks.wait_ns(self._clock.wall_ns())
        if crash_wait_ns is not None:
            yield self._clock.now_ns() + crash_wait_ns
        for harness in stream.harnesses.values() if self._may_retry(name, stream) else ():
            if harness.retry_at_ns is not None:
                yield harness.retry_at_ns
        action = self._next_action(name, stream)
        swap_version = None if action is None else stream.swap_of(action)
        if swap_version is not None and swap_version in stream.swap_at_ns:
            yield stream.swap_at_ns[swap_version]
        keep_until_ns = None if stream.unloads_first else stream.keep_until_ns()
        if keep_until_ns is not None:
            yield keep_until_ns
        if self._rollout.is_judged_by_rule(name, stream):
            yield self._clock.now_ns() + round(canary.PERIOD_SECONDS * NS_PER_SECOND)

    def _run(self) -> None:
        while not (self._is_stopping and not self._streams):
            self._inbox.wait(self.next_due_seconds())
            self.tick()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 (a bug with one model must not stop the others)
            _log.exception("control_failed")

    def _begin_stop(self) -> None:
        for name, stream in list(self._streams.items()):
            self._replace_aspired(name, ())
            stream.blocks.replace({})
            if stream.is_idle:
                del self._streams[name]
                self._due_ns.pop(name, None)
        self._is_stopping = True

    def _restore_blocked(self, blocked_versions: Mapping[str, BlockedVersions]) -> None:
        for name, blocked in blocked_versions.items():
            if blocked:
                self._streams[name] = Stream(is_idle=True)
                self._rollout.restore(name, self._streams[name], blocked)
                self._view.set_blocked(name, frozenset(blocked), blocked)

    def _found_anew(self, name: str, version: int) -> None:
        if name in self._streams:
            stream = self._streams[name]
            self._rollout.unblock(name, stream, version, "its files have changed")
            # If a rolled back version serves as the last resort, the unblocked version may replace it.
            self._rollout.note_last_resort(name, stream)

    def _replace_settings(self, name: str, settings: ModelSettings) -> None:
        self._view.set_settings(name, settings)
        if name in self._streams:
            self._streams[name].settings = settings
            self._rollout.change_canary(name, settings.canary)

    def _status_of(self, name: str, stream: Stream) -> StreamStatus:
        return stream.status(self._router.routing(name), self._router.wanted_labels(name))

    def _retire_stream(self, name: str, stream: Stream) -> None:
        """Removes a stream without versions. Keeps it, idle, while it has blocked versions.

        Does not keep it when the manager stops.
        """
        self._view.forget_versions(name)
        self._version_memory.forget(name)
        if stream.blocks and not self._is_stopping:
            stream.is_idle = True
        else:
            del self._streams[name]
            self._due_ns.pop(name, None)
            self._view.forget_blocked(name)
            self._router.forget(name)

    def _replace_aspired(self, name: str, versions: tuple[AspiredVersion, ...]) -> None:
        if self._is_stopping:
            return
        stream = self._streams.setdefault(name, Stream(settings=self._view.settings(name)))
        stream.wanted = versions
        # Now, and not with a new life: a rollback may take the version before it has one.
        stream.loads.found(versions)
        if stream.is_idle:
            # The source may be new. A new source has not received the blocked versions yet.
            self._rollout.notify_blocked(name, stream)
        self._apply_wanted(name, stream)

    def _apply_wanted(self, name: str, stream: Stream) -> None:
        stream.aspired = {version.version: version for version in stream.effective_aspired()}
        self._router.set_last_resorts(name, stream.blocks.versions & stream.aspired.keys())
        self._rollout.end_canary_unless_aspired(name, stream)
        stream.pressure.end_unless_aspired(stream.aspired)
        for version, harness in stream.harnesses.items():
            aspired, state = stream.aspired.get(version), harness.status.state
            if aspired is None and state in (START, LOADING):
                harness.cancel()
            elif aspired is not None and state is AVAILABLE and aspired != harness.aspired:
                harness.aspired = aspired
                _log.warning(
                    "live_version_files_changed",
                    **harness.log_fields,
                    remedy="it serves the files that were loaded; drop other files under a new version",
                )
        # Reconciles now and not at the next tick: a later message may aspire a version again that this
        # list omits.
        self._reconcile(name, stream)

    def _stream_with_versions(self, name: str) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            raise errors.NotFound(
                f"model {name!r} has no versions; "
                f"models with versions: {listed(sorted(self._streams))}"
            )
        return stream

    def _reconcile(self, name: str, stream: Stream) -> None:
        """Drops lives that are over, and begins a life for each aspired version without one."""
        for version, harness in list(stream.harnesses.items()):
            aspired = stream.aspired.get(version)
            is_over = harness.status.state is END
            if is_over and (harness.is_discarded or aspired != harness.aspired):
                del stream.harnesses[version]
        stream.forget_past_swaps()
        begun = [version for version in stream.aspired if version not in stream.harnesses]
        if begun:
            self._view.add_companions(name, begun, stream.harnesses.keys())
        for version in begun:
            stream.harnesses[version] = LoaderHarness(
                ServableId(name, version),
                stream.aspired[version],
                retry=self._retry,
                clock=self._clock,
                record=self._monitor.record,
            )

    def _advance(self, name: str, stream: Stream) -> None:
        # Clears failures worth a retry first, so that the policy sees these versions in START. Settles
        # the canary before the policy runs, because the canary changes the routing.
        if stream.blocks.crashed:
            # A version that crashed the server may have waited long enough to serve again.
            self._rollout.note_last_resort(name, stream)
        self._try_again(name, stream)
        self._reconcile(name, stream)
        self._rollout.end_canary_unless_aspired(name, stream)
        self._rollout.resume_canary(name, stream, stream.settings.canary)
        self._rollout.judge_canary(name, stream)
        stream.note_superseded(self._router.routing(name), self._clock.now_ns())
        while (action := self._next_action(name, stream)) is not None:
            swap_version = stream.swap_of(action)
            if swap_version is not None and self._is_delayed(stream, swap_version):
                break
            self._perform(action, stream.harnesses[action.id.version])
        if self._may_retry(name, stream):
            self._retry_due_loads(stream)
        stream.note_superseded(self._router.routing(name), self._clock.now_ns())

    def _try_again(self, name: str, stream: Stream) -> None:
        """Clears failures worth a retry.

        A failure is worth a retry if a setting that the load failed under has changed, or if another
        version can now be unloaded to free memory.
        """
        stream.forget_past_loads()
        for version, reason in stream.worth_another_try(self._router.routing(name)).items():
            stream.loads.forget_failure(version)
            _log.info("load_tried_again", model=name, version=version, reason=reason)
            stream.harnesses.pop(version, None)
            if version in stream.blocks:
                self._rollout.unblock(name, stream, version, reason)

    def _next_action(self, name: str, stream: Stream) -> Action | None:
        return stream.policy.next_action(self._snapshots(name, stream))

    def _may_retry(self, name: str, stream: Stream) -> bool:
        return stream.policy.may_retry(self._snapshots(name, stream))

    def _snapshots(self, name: str, stream: Stream) -> list[ServableSnapshot]:
        return stream.snapshots(self._router.routing(name), self._clock.now_ns())

    def _is_delayed(self, stream: Stream, version: int) -> bool:
        """Returns True while the swap to `version` is delayed by `SwapJitter`.

        Delays the load, and an unload that makes room for it, by a time that is drawn once. Does not
        delay the first version of a model.
        """
        if self._swap_jitter.is_off or not stream.ready_versions:
            return False
        now_ns = self._clock.now_ns()
        if version not in stream.swap_at_ns:
            stream.swap_at_ns[version] = now_ns + self._swap_jitter.draw_ns()
            _log.info(
                "load_delayed",
                **stream.harnesses[version].log_fields,
                seconds=(stream.swap_at_ns[version] - now_ns) / NS_PER_SECOND,
            )
        return now_ns < stream.swap_at_ns[version]

    def _retry_due_loads(self, stream: Stream) -> None:
        now_ns = self._clock.now_ns()
        for harness in stream.harnesses.values():
            if harness.retry_at_ns is not None and harness.retry_at_ns <= now_ns:
                self._note_settings(harness)
                harness.begin_retry()
                self._tasks.load(harness)

    def _note_settings(self, harness: LoaderHarness) -> None:
        stream = self._streams[harness.id.name]
        stream.loads.note_begin(harness.id.version, stream.settings)

    def _perform(self, action: Action, harness: LoaderHarness) -> None:
        if isinstance(action, Load):
            self._note_settings(harness)
            harness.begin_load()
            _log.info("load_started", **harness.log_fields)
            self._tasks.load(harness)
        else:
            harness.begin_unload()
            _log.info("unload_started", **harness.log_fields)
            self._view.remove_servable(harness.id)
            self._retire(harness)

    def _retire(self, harness: LoaderHarness) -> None:
        """Retires the version from the serving map, and passes it to an unloader.

        Retires it on the control thread: an unloader runs at idle priority, so an UNLOADING version
        would answer requests until the unloader gets a core.
        """
        try:
            self._router.retire(harness.id)
        except Exception as error:  # noqa: BLE001 (it ends this unload and no other)
            _log.exception("unload_raised", **harness.log_fields)
            self._unloaded(harness, errors.from_exception(error))
            return
        harness.stage_began(UnloadStage.QUIESCE)
        self._tasks.unload(harness)

    def _loaded(self, harness: LoaderHarness, servable: Servable) -> None:
        harness.loaded(servable)
        name = harness.id.name
        self._view.add_servable(harness.id, servable)
        if name in self._streams:
            self._streams[name].served.add(harness.id.version)
            self._streams[name].pressure.end()
            self._rollout.note_last_resort(name, self._streams[name])
        _log.info("version_available", **harness.log_fields, **_stage_fields(harness))

    def _load_failed(self, harness: LoaderHarness, error: errors.MillpondError) -> None:
        error = self._memory_pressure.note_failure(harness, error)
        is_memory_being_freed = self._memory_pressure.begin(harness, error)
        harness.load_failed(error, is_retried=is_memory_being_freed)
        self._remember_failure(harness)
        self._memory_pressure.take_back(harness)
        health = harness.status.health
        will_retry = harness.retry_at_ns is not None
        report = _log.info if harness.is_cancelled else _log.warning if will_retry else _log.error
        report(
            "load_failed",
            **harness.log_fields,
            code=health.code.name,
            reason=_reason_for_log(harness.status),
            will_retry=will_retry,
        )

    def _remember_failure(self, harness: LoaderHarness) -> None:
        stream = self._stream_of(harness)
        if stream is not None and not harness.is_cancelled and harness.status.state is END:
            stream.load_failed(harness)

    def _stream_of(self, harness: LoaderHarness) -> Stream | None:
        """Returns the stream of a life; None if it is gone, or the version has another life."""
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


def _reason_for_log(status: ServableStatus) -> str:
    """Returns the reason for the log.

    If gates refused the version, returns only their names: each gate has logged its own reason.
    """
    refused_by = [
        verdict.gate
        for verdict in status.verdicts
        if not verdict.is_passed and verdict.mode == GateMode.ENFORCE.value
    ]
    if status.health.code is errors.StatusCode.FAILED_PRECONDITION and refused_by:
        return f"it did not pass {', '.join(f'gate {gate!r}' for gate in refused_by)}"
    return status.health.message


def _stage_fields(harness: LoaderHarness) -> dict[str, object]:
    stage_seconds = harness.status.stage_seconds
    fields = {f"{stage.value}_seconds": round(took, 4) for stage, took in stage_seconds.items()}
    return {**fields, "load_seconds": round(sum(stage_seconds.values()), 4)}
