"""The threads that load and unload versions: their priority, their cores and their starvation."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import structlog

from serving.base.executor import ThreadExecutor
from serving.config.server_config import ServerConfig
from serving.loading.initial_loads import InitialLoads
from serving.loading.load_priority import LoadPriority
from serving.loading.request_cores import RequestCores
from serving.loading.starvation_watch import Helpers, StarvationWatch
from serving.server.foundation import Foundation

_log = structlog.get_logger(__name__)


class LoadThreads:
    """The executors of loads and unloads, and what their threads do around each task.

    `loaders` has a thread for each core until `end_initial`, because no request is served before.
    """

    def __init__(self, foundation: Foundation, cores: RequestCores | None) -> None:
        """Loads and unloads keep off the cores that `cores` gives to request threads."""
        self._foundation = foundation
        self._cores = cores
        config = foundation.config
        self.priority = LoadPriority(
            foundation.data_plane, config.load_priority, is_stock=config.lab.is_stock
        )
        self._starvation_watch = make_starvation_watch(foundation, self.priority)
        # Initial loads use memory as background threads do; their priority is lowered later.
        self._initial_loads = InitialLoads(self.priority, around_background=self._around_background)
        if config.listen_before_ready:
            self._initial_loads.end()
        self.loaders = make_executor(
            "loader",
            foundation.config.num_load_threads,
            initial_thread_count=initial_thread_count(foundation.config),
            enter_thread=self._initial_loads.enter_thread,
            around_task=self._initial_loads.task,
        )
        self.unloaders = make_executor(
            "unloader",
            foundation.config.num_unload_threads,
            enter_thread=self.priority.enter_background,
            around_task=self._around_unload,
        )

    def start(self) -> None:
        """Starts the watch; a manager starts the executors."""
        if self._starvation_watch is not None:
            self._starvation_watch.start()

    def end_initial(self) -> None:
        """Lowers the priority of loads, and ends the loader threads that were for the start alone."""
        self._initial_loads.end()
        self.loaders.keep(max(1, self._foundation.config.num_load_threads))

    def hurry_unloads(self) -> None:
        """Unloads on a thread for each core from now on, at the caller's priority.

        Call it during a stop, when no request is left that an unload could slow down.
        """
        self.unloaders.hurry(
            max(self._foundation.config.num_unload_threads, len(os.sched_getaffinity(0))),
            # They use memory as background threads do, as for other unloads.
            on_thread_start=self.priority.enter_initial,
        )

    def stop(self) -> None:
        """Stops the watch, after the manager has stopped the executors."""
        if self._starvation_watch is not None:
            self._starvation_watch.stop()

    def watched(self, helpers: Helpers) -> AbstractContextManager[None]:
        """Wraps work of the calling thread, and of `helpers`, that would starve at their priority."""
        if self._starvation_watch is None:
            return nullcontext()
        return self._starvation_watch.watched(threading.get_native_id(), helpers)

    def _around_unload(self) -> AbstractContextManager[None]:
        return self._around_background(threading.get_native_id())

    @contextmanager
    def _around_background(self, thread_id: int) -> Iterator[None]:
        """Pins and watches the thread with that id while it loads or unloads at lowered
        priority.
        """
        with ExitStack() as stack:
            if self._cores is not None:
                stack.enter_context(self._cores.pinned(thread_id))
            if self._starvation_watch is not None:
                stack.enter_context(self._starvation_watch.watched(thread_id))
            yield


def initial_thread_count(config: ServerConfig) -> int:
    """The count of loader threads until gRPC's port opens: as many as cores, because no request is served
    before. 0 with `listen_before_ready`.
    """
    return 0 if config.listen_before_ready else len(os.sched_getaffinity(0))


def make_executor(
    name: str,
    thread_count: int,
    *,
    enter_thread: Callable[[], None],
    around_task: Callable[[], AbstractContextManager[None]],
    initial_thread_count: int = 0,
) -> ThreadExecutor:
    """Makes an executor that has `initial_thread_count` threads, if they are more than `thread_count`,
    until `ThreadExecutor.keep`.
    """
    if thread_count < 1:
        # In TensorFlow Serving, 0 means the manager's own thread, which would be blocked by a load.
        _log.info("thread_count_raised", executor=name, requested=thread_count, used=1)
    return ThreadExecutor(
        name,
        max(1, thread_count, initial_thread_count),
        on_thread_start=enter_thread,
        around_task=around_task,
    )


def make_starvation_watch(foundation: Foundation, priority: LoadPriority) -> StarvationWatch | None:
    """Makes the watch; None if loads run at normal priority and so cannot starve, or if they may starve."""
    is_lowered = foundation.config.load_priority != "normal" and not foundation.config.lab.is_stock
    patience_seconds = foundation.config.lab.load_patience_seconds
    if not is_lowered or patience_seconds == 0:
        return None
    return StarvationWatch(patience_seconds, priority=priority, clock=foundation.clock)
