"""VersionTasks: loads and unloads versions on the threads of two executors.

Nothing here decides or changes a state. The control thread starts a task, and the task posts its
progress and its outcome to the inbox of the control thread.
"""

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import structlog

from serving.base import errors
from serving.base.clock import Clock, seconds_since
from serving.base.executor import Executor
from serving.core.cancellation import Cancellation
from serving.core.servable import GateVerdict, LoadStage, ServableId, UnloadStage
from serving.data_plane.servables import Servable
from serving.loading.loader import MakeLoader
from serving.loading.unload import Unload
from serving.manager.control_thread import (
    GateEnded,
    Inbox,
    Loaded,
    LoadFailed,
    Measured,
    StageBegan,
    StageEnded,
    Unloaded,
)
from serving.manager.harness import LoaderHarness
from serving.manager.manager_view import ManagerView
from serving.manager.router import Router
from serving.manager.task_figures import thread_costs

_log = structlog.get_logger(__name__)


class VersionMemory(Protocol):
    """Keeps account of the memory of versions (`arenas.Arenas`)."""

    def unloaded(self, servable_id: ServableId) -> None:
        """Takes a version that is gone. Any thread."""
        ...

    def forget(self, name: str) -> None:
        """Takes a model whose last version is gone while none is aspired."""
        ...


class NoVersionMemory:
    """Keeps no account: versions have no memory of their own."""

    def unloaded(self, servable_id: ServableId) -> None:
        """See `VersionMemory`."""

    def forget(self, name: str) -> None:
        """See `VersionMemory`."""


class TaskProgress:
    """Posts the progress of one load. On its loader thread; implements `LoadProgress`."""

    def __init__(self, harness: LoaderHarness, inbox: Inbox, clock: Clock) -> None:
        self._harness = harness
        self._inbox = inbox
        self._clock = clock

    @property
    def cancellation(self) -> Cancellation:
        return self._harness.cancellation

    def stage_began(self, stage: LoadStage) -> None:
        self._inbox.post(StageBegan(self._harness, stage))

    def stage_ended(self, stage: LoadStage, seconds: float) -> None:
        self._inbox.post(StageEnded(self._harness, stage, seconds, self._clock.now_ns()))

    def measured(self, figures: Mapping[str, float]) -> None:
        self._inbox.post(Measured(self._harness, figures))

    def gate_ended(self, verdict: GateVerdict) -> None:
        self._inbox.post(GateEnded(self._harness, verdict))


class VersionTasks:
    """Owns the loader and the unloader threads. The control thread calls its public methods.

    A loader publishes its version itself, before the version is AVAILABLE: a client that reads that
    state may send a request at once. A harness is only read here, and only what is safe for any
    thread: its id, its files, its cancellation and its servable.
    """

    def __init__(
        self,
        *,
        make_loader: MakeLoader,
        loaders: Executor,
        unloaders: Executor,
        version_memory: VersionMemory,
        router: Router,
        view: ManagerView,
        inbox: Inbox,
        clock: Clock,
    ) -> None:
        self._make_loader = make_loader
        self._loaders = loaders
        self._unloaders = unloaders
        self._version_memory = version_memory
        self._router = router
        self._view = view
        self._inbox = inbox
        self._clock = clock

    def start(self) -> None:
        """Starts the threads."""
        self._loaders.start()
        self._unloaders.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the threads; returns False if a task still runs after `timeout_seconds`."""
        executors = [self._loaders.stop(timeout_seconds), self._unloaders.stop(timeout_seconds)]
        return all(executors)

    def load(self, harness: LoaderHarness) -> None:
        """Starts a load. `Loaded` or `LoadFailed` follows."""
        self._loaders.submit(partial(self._load, harness), harness.id.name)

    def unload(self, harness: LoaderHarness) -> None:
        """Starts the unload of a version that the router has retired just now. `Unloaded` follows."""

        def stage_ended(stage: UnloadStage, seconds: float) -> None:
            self._inbox.post(StageEnded(harness, stage, seconds, self._clock.now_ns()))

        unload = Unload(harness.id, harness.servable, clock=self._clock, stage_ended=stage_ended)
        self._unloaders.submit(partial(self._unload, harness, unload))

    # --- Loader threads ---------------------------------------------------------------------------

    def _load(self, harness: LoaderHarness) -> None:
        try:
            servable = self._load_and_publish(harness)
        except Exception as error:  # noqa: BLE001 (whatever it is, it ends this load and no other)
            failure = errors.from_exception(error)
            if isinstance(failure, errors.InternalError):
                _log.exception("load_raised", **harness.log_fields)
            self._inbox.post(LoadFailed(harness, failure))
        else:
            self._inbox.post(Loaded(harness, servable))

    def _load_and_publish(self, harness: LoaderHarness) -> Servable:
        loader = self._make_loader(harness.id, harness.aspired.directory)
        progress = TaskProgress(harness, self._inbox, self._clock)
        with thread_costs("load", progress.measured):
            servable = loader.load(progress)
        try:
            if harness.is_cancelled:
                raise errors.Cancelled(f"{harness.id}: no longer aspired; its load is undone")
            start_ns = self._clock.now_ns()
            canary = self._view.first_canary(harness.id, harness.began_at_ns)
            self._router.publish(harness.id, servable, canary=canary)
            progress.stage_ended(LoadStage.PUBLISH, seconds_since(self._clock, start_ns))
        except BaseException:
            servable.destroy()
            self._version_memory.unloaded(harness.id)
            raise
        return servable

    # --- Unloader threads -------------------------------------------------------------------------

    def _unload(self, harness: LoaderHarness, unload: Unload) -> None:
        costs: dict[str, float] = {}
        try:
            with thread_costs("unload", costs.update):
                is_gone = unload.take_turn()
        except Exception as error:  # noqa: BLE001 (it ends this unload and no other)
            _log.exception("unload_raised", **harness.log_fields)
            self._inbox.post(Unloaded(harness, errors.from_exception(error)))
            return
        if is_gone:
            # The costs of the turn that freed the version: the turns before it only waited.
            self._inbox.post(Measured(harness, costs))
            self._inbox.post(Unloaded(harness))
        else:
            self._unloaders.submit(partial(self._unload, harness, unload))
