"""VersionTasks: loads and unloads versions on the threads of two executors.

Nothing here decides or changes a state. The control thread starts a task, and the task posts its
progress and its outcome to the inbox of the control thread.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Concatenate, ParamSpec, Protocol

import structlog

from serving.base import errors
from serving.base.clock import Clock
from serving.base.errors import MillpondError
from serving.base.executor import Executor
from serving.core.cancellation import Cancellation
from serving.core.servable import GateVerdict, LoadStage, ServableId, Stage
from serving.data_plane.servables import Servable
from serving.loading.loader import Loader
from serving.loading.unload import VersionUnload
from serving.manager.control_thread import Inbox, Loaded, LoadFailed, Progress, Unloaded
from serving.manager.harness import LoaderHarness
from serving.manager.task_figures import thread_costs

_log = structlog.get_logger(__name__)

_Values = ParamSpec("_Values")


class VersionMemory(Protocol):
    """Keeps account of the memory of versions (`arenas.Arenas`)."""

    def unloaded(self, servable_id: ServableId, *, makes_room: bool = False) -> None:
        """Takes a version that is gone. Any thread.

        If it `makes_room`, no other model has its memory until a version of its model is loaded, or `end_room`.
        """
        ...

    def end_room(self, name: str) -> None:
        """Called each time that a model has no load under way and none that begins by itself. Ends its room."""
        ...

    def forget(self, name: str) -> None:
        """Takes a model whose last version is gone while none is aspired."""
        ...


class NoVersionMemory:
    """Keeps no account: versions have no memory of their own."""

    def unloaded(self, servable_id: ServableId, *, makes_room: bool = False) -> None:
        """See `VersionMemory`."""

    def end_room(self, name: str) -> None:
        """See `VersionMemory`."""

    def forget(self, name: str) -> None:
        """See `VersionMemory`."""


class TaskProgress:
    """Posts the progress of one load or unload. On the thread of its task; implements `LoadProgress`."""

    def __init__(
        self, servable_id: ServableId, cancellation: Cancellation, inbox: Inbox, clock: Clock
    ) -> None:
        self._id = servable_id
        self._cancellation = cancellation
        self._inbox = inbox
        self._clock = clock

    @property
    def cancellation(self) -> Cancellation:
        return self._cancellation

    def stage_began(self, stage: LoadStage) -> None:
        self._post(LoaderHarness.stage_began, stage)

    def stage_ended(self, stage: Stage, seconds: float) -> None:
        ended_at_ns = self._clock.now_ns()
        self._post(LoaderHarness.stage_ended, stage, seconds, ended_at_ns)

    def measured(self, figures: Mapping[str, float]) -> None:
        self._post(LoaderHarness.measured, figures)

    def noted(self, notes: Mapping[str, str]) -> None:
        self._post(LoaderHarness.noted, notes)

    def gate_ended(self, verdict: GateVerdict) -> None:
        self._post(LoaderHarness.gate_ended, verdict)

    def _post(
        self,
        change: Callable[Concatenate[LoaderHarness, _Values], LoaderHarness],
        *values: _Values.args,
        **named: _Values.kwargs,
    ) -> None:
        def step(harness: LoaderHarness) -> LoaderHarness:
            return change(harness, *values, **named)

        self._inbox.post(Progress(self._id, (step,)))


class VersionTasks:
    """Owns the loader and the unloader threads. The control thread calls its public methods.

    At most one task works on a version at a time.
    """

    def __init__(
        self,
        *,
        loader: Loader,
        loaders: Executor,
        unloaders: Executor,
        version_memory: VersionMemory,
        inbox: Inbox,
        clock: Clock,
    ) -> None:
        self._loader = loader
        self._loaders = loaders
        self._unloaders = unloaders
        self._version_memory = version_memory
        self._inbox = inbox
        self._clock = clock
        # How to stop each load that is under way. Control thread only.
        self._cancellations: dict[ServableId, Cancellation] = {}

    def start(self) -> None:
        """Starts the threads."""
        self._loaders.start()
        self._unloaders.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the threads; returns False if a task still runs after `timeout_seconds`."""
        executors = [self._loaders.stop(timeout_seconds), self._unloaders.stop(timeout_seconds)]
        return all(executors)

    def load(self, servable_id: ServableId, directory: str) -> None:
        """Starts a load. `Loaded` or `LoadFailed` follows."""
        cancellation = self._cancellations[servable_id] = Cancellation()
        load = partial(self._load, servable_id, directory, cancellation)
        self._loaders.submit(load, servable_id.name)

    def stop_load(self, servable_id: ServableId) -> None:
        """Stops a load under way at its next stage. Does nothing for one that is over already."""
        cancellation = self._cancellations.get(servable_id)
        if cancellation is not None:
            cancellation.cancel()

    def load_ended(self, servable_id: ServableId) -> None:
        """Forgets a load whose outcome has arrived."""
        self._cancellations.pop(servable_id, None)

    def discard(self, servable_id: ServableId, servable: Servable, error: MillpondError) -> None:
        """Frees a loaded version that could not be published. `LoadFailed` with `error` follows."""
        self._loaders.submit(partial(self._discard, servable_id, servable, error), servable_id.name)

    def unload(self, servable_id: ServableId, servable: Servable) -> None:
        """Starts the unload of a version that was retired just now. `Unloaded` follows."""

        progress = TaskProgress(servable_id, Cancellation(), self._inbox, self._clock)
        unload = VersionUnload(
            servable_id, servable, clock=self._clock, stage_ended=progress.stage_ended
        )
        self._unloaders.submit(partial(self._unload, servable_id, unload, progress))

    # --- Loader threads ---------------------------------------------------------------------------

    def _load(self, servable_id: ServableId, directory: str, cancellation: Cancellation) -> None:
        try:
            progress = TaskProgress(servable_id, cancellation, self._inbox, self._clock)
            with thread_costs("load", progress.measured):
                servable = self._loader.load(servable_id, directory, progress)
            if cancellation.is_cancelled:
                self._free(servable_id, servable)
                raise errors.Cancelled(f"{servable_id}: no longer aspired; its load is undone")
        except Exception as error:  # noqa: BLE001 (whatever it is, it ends this load and no other)
            failure = errors.from_exception(error)
            if isinstance(failure, errors.InternalError):
                _log.exception("load_raised", **_fields(servable_id))
            self._inbox.post(LoadFailed(servable_id, failure))
        else:
            self._inbox.post(Loaded(servable_id, servable))

    def _discard(self, servable_id: ServableId, servable: Servable, error: MillpondError) -> None:
        try:
            self._free(servable_id, servable)
        except Exception:  # noqa: BLE001 (the life of the version ends all the same)
            _log.exception("load_raised", **_fields(servable_id))
        self._inbox.post(LoadFailed(servable_id, error))

    def _free(self, servable_id: ServableId, servable: Servable) -> None:
        servable.destroy()
        # It never served, and its load has ended the room of its model, which may have no other version.
        self._version_memory.unloaded(servable_id, makes_room=True)

    # --- Unloader threads -------------------------------------------------------------------------

    def _unload(
        self, servable_id: ServableId, unload: VersionUnload, progress: TaskProgress
    ) -> None:
        costs: dict[str, float] = {}
        try:
            with thread_costs("unload", costs.update):
                is_gone = unload.take_turn()
        except Exception as error:  # noqa: BLE001 (it ends this unload and no other)
            _log.exception("unload_raised", **_fields(servable_id))
            self._inbox.post(Unloaded(servable_id, errors.from_exception(error)))
            return
        if is_gone:
            # Only the turn that freed the version counts: the turns before it only waited.
            progress.measured(costs)
            self._inbox.post(Unloaded(servable_id))
        else:
            self._unloaders.submit(partial(self._unload, servable_id, unload, progress))


def _fields(servable_id: ServableId) -> Mapping[str, str | int]:
    """The fields that name the version in a log line."""
    return {"model": servable_id.name, "version": servable_id.version}
