"""AspiredVersionsManager: brings what is loaded to what is aspired, one action at a time.

    set_aspired ─┐                    ┌─> loaders:   load, warm up, publish ───┐
                 ├─> control thread ──┤                                        ├─> control thread
    outcomes ────┘   decides          └─> unloaders: retire, quiesce, destroy ─┘

All state is confined to the control thread. Everybody else posts to its inbox, so there is no lock
to hold in the wrong order and every run of the same messages is the same run: tests call `tick`
themselves. The control thread waits for its inbox and for the next retry, and for nothing else; a
load or a slow request of one model holds up another's versions only where all threads of an
executor are taken.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from serving import errors
from serving.aspired_version_policy import Action, AspiredVersionPolicy, Load
from serving.cancellation import Cancellation
from serving.clock import NS_PER_SECOND, Clock
from serving.executor import Executor
from serving.harness import LoaderHarness, RetryPolicy
from serving.loader import MakeLoader
from serving.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    AspiredVersion,
    GateVerdict,
    LoadStage,
    Servable,
    ServableId,
    ServableSnapshot,
    ServingMap,
    UnloadStage,
)
from serving.state_monitor import StateMonitor
from serving.unload import Unload

_log = structlog.get_logger(__name__)


class Inbox:
    """Calls to be made on the control thread, in the order in which they were posted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: deque[Callable[[], None]] = deque()
        self._arrived = threading.Condition()

    def post(self, call: Callable[[], None]) -> None:
        """Wakes the control thread. Any thread."""
        with self._arrived:
            self._calls.append(call)
            self._arrived.notify()

    def take(self) -> Iterator[Callable[[], None]]:
        """What has arrived, until nothing is left."""
        while self._calls:
            yield self._calls.popleft()

    def wait(self, timeout_seconds: float | None) -> None:
        """Returns at once where something has arrived, else when something does or at the timeout."""
        with self._arrived:
            if not self._calls:
                self._clock.wait(self._arrived, timeout_seconds)


@dataclass
class _Stream:
    """All versions of one name: what is aspired, and the lives under way or ended in failure."""

    aspired: dict[int, AspiredVersion] = field(default_factory=dict)
    harnesses: dict[int, LoaderHarness] = field(default_factory=dict)

    def snapshots(self) -> list[ServableSnapshot]:
        return [
            harness.snapshot(is_aspired=version in self.aspired)
            for version, harness in self.harnesses.items()
        ]


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
    """What a loader thread says about a load, posted to the control thread."""

    def __init__(self, harness: LoaderHarness, inbox: Inbox) -> None:
        self._harness = harness
        self._inbox = inbox

    @property
    def cancellation(self) -> Cancellation:
        return self._harness.cancellation

    def stage_began(self, stage: LoadStage) -> None:
        self._inbox.post(partial(self._harness.stage_began, stage))

    def stage_ended(self, stage: LoadStage, seconds: float) -> None:
        self._inbox.post(partial(self._harness.stage_ended, stage, seconds))

    def gate_ended(self, verdict: GateVerdict) -> None:
        self._inbox.post(partial(self._harness.gate_ended, verdict))


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
        monitor: StateMonitor,
        clock: Clock,
    ) -> None:
        self._make_loader = make_loader
        self._serving_map = serving_map
        self._policy = policy
        self._retry = retry
        self._loaders = loaders
        self._unloaders = unloaders
        self._version_memory = version_memory or NoVersionMemory()
        self._monitor = monitor
        self._clock = clock
        self._inbox = Inbox(clock)
        self._streams: dict[str, _Stream] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    # --- Any thread -------------------------------------------------------------------------------

    def set_aspired(self, name: str, versions: Sequence[AspiredVersion]) -> None:
        """Replaces the aspired versions of one stream. Returns at once."""
        self._inbox.post(partial(self._replace_aspired, name, tuple(versions)))

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
        """Takes in what has arrived, then acts for each stream until its policy is content."""
        for call in self._inbox.take():
            self._guarded(call)
        for name, stream in list(self._streams.items()):
            self._guarded(partial(self._advance, name, stream))
            if not stream.aspired and not stream.harnesses:
                del self._streams[name]
                self._guarded(partial(self._version_memory.forget, name))

    def next_retry_seconds(self) -> float | None:
        """Seconds until `tick` has a load to try again (0: now); None where there is none."""
        due_ns = [
            harness.retry_at_ns
            for stream in self._streams.values()
            for harness in stream.harnesses.values()
            if harness.retry_at_ns is not None
        ]
        if not due_ns:
            return None
        return max(0, min(due_ns) - self._clock.now_ns()) / NS_PER_SECOND

    def _run(self) -> None:
        while not (self._is_stopping and not self._streams):
            self._inbox.wait(self.next_retry_seconds())
            self.tick()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 (a bug; one model's must not stop the others)
            _log.exception("control_failed")

    def _begin_stop(self) -> None:
        for name in self._streams:
            self._replace_aspired(name, ())
        self._is_stopping = True

    def _replace_aspired(self, name: str, versions: tuple[AspiredVersion, ...]) -> None:
        if self._is_stopping:
            return
        stream = self._streams.setdefault(name, _Stream())
        stream.aspired = {version.version: version for version in versions}
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

    def _reconcile(self, name: str, stream: _Stream) -> None:
        """Lets go of lives that are over, and begins one for each aspired version without."""
        for version, harness in list(stream.harnesses.items()):
            aspired = stream.aspired.get(version)
            is_over = harness.status.state is END
            if is_over and (harness.is_discarded or aspired != harness.aspired):
                del stream.harnesses[version]
        for version, aspired in stream.aspired.items():
            if version not in stream.harnesses:
                stream.harnesses[version] = LoaderHarness(
                    ServableId(name, version),
                    aspired,
                    retry=self._retry,
                    clock=self._clock,
                    record=self._monitor.record,
                )

    def _advance(self, name: str, stream: _Stream) -> None:
        self._reconcile(name, stream)
        self._retry_due_loads(stream)
        while (action := self._policy.next_action(stream.snapshots())) is not None:
            self._perform(action, stream.harnesses[action.id.version])

    def _retry_due_loads(self, stream: _Stream) -> None:
        now_ns = self._clock.now_ns()
        for harness in stream.harnesses.values():
            if harness.retry_at_ns is not None and harness.retry_at_ns <= now_ns:
                harness.begin_retry()
                self._loaders.submit(partial(self._load, harness))

    def _perform(self, action: Action, harness: LoaderHarness) -> None:
        if isinstance(action, Load):
            harness.begin_load()
            _log.info("load_began", **_fields(harness))
            self._loaders.submit(partial(self._load, harness))
        else:
            harness.begin_unload()
            _log.info("unload_began", **_fields(harness))
            harness.stage_began(UnloadStage.QUIESCE)
            self._unloaders.submit(partial(self._unload, harness, self._unload_of(harness)))

    def _unload_of(self, harness: LoaderHarness) -> Unload:
        def stage_ended(stage: UnloadStage, seconds: float) -> None:
            self._inbox.post(partial(harness.stage_ended, stage, seconds))

        return Unload(
            harness.id,
            harness.servable,
            serving_map=self._serving_map,
            clock=self._clock,
            stage_ended=stage_ended,
        )

    def _loaded(self, harness: LoaderHarness, servable: Servable) -> None:
        harness.loaded(servable)
        _log.info("version_available", **_fields(harness), **_stage_fields(harness))

    def _load_failed(self, harness: LoaderHarness, error: errors.MillpondError) -> None:
        harness.load_failed(error)
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

    def _unloaded(self, harness: LoaderHarness, error: errors.MillpondError | None) -> None:
        harness.unloaded(error)
        self._version_memory.unloaded(harness.id)

    # --- Loader threads ---------------------------------------------------------------------------

    def _load(self, harness: LoaderHarness) -> None:
        try:
            servable = self._load_and_publish(harness)
        except Exception as error:  # noqa: BLE001 (whatever it is, it ends this load and no other)
            failure = errors.from_exception(error)
            if isinstance(failure, errors.InternalError):
                _log.exception("load_raised", **_fields(harness))
            self._inbox.post(partial(self._load_failed, harness, failure))
        else:
            self._inbox.post(partial(self._loaded, harness, servable))

    def _load_and_publish(self, harness: LoaderHarness) -> Servable:
        loader = self._make_loader(harness.id, harness.aspired.directory)
        servable = loader.load(_Progress(harness, self._inbox))
        try:
            if harness.is_cancelled:
                raise errors.Cancelled(f"{harness.id}: no longer aspired; its load is undone")
            # Before it is AVAILABLE: who reads that state may send a request at once.
            self._serving_map.publish(servable)
        except BaseException:
            servable.destroy()
            self._version_memory.unloaded(harness.id)
            raise
        return servable

    # --- Unloader threads -------------------------------------------------------------------------

    def _unload(self, harness: LoaderHarness, unload: Unload) -> None:
        try:
            is_gone = unload.take_turn()
        except Exception as error:  # noqa: BLE001 (it ends this unload and no other)
            _log.exception("unload_raised", **_fields(harness))
            self._inbox.post(partial(self._unloaded, harness, errors.from_exception(error)))
            return
        if is_gone:
            self._inbox.post(partial(self._unloaded, harness, None))
        else:
            self._unloaders.submit(partial(self._unload, harness, unload))


def _fields(harness: LoaderHarness) -> dict[str, object]:
    return {"model": harness.id.name, "version": harness.id.version}


def _stage_fields(harness: LoaderHarness) -> dict[str, object]:
    stage_seconds = harness.status.stage_seconds
    fields = {f"{stage.value}_seconds": round(took, 4) for stage, took in stage_seconds.items()}
    return {**fields, "load_seconds": round(sum(stage_seconds.values()), 4)}
