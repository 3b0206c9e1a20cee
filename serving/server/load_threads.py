"""The threads that load and unload versions: sets their priority and cores, and watches that none starves."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import structlog

from serving.base.executor import ThreadExecutor
from serving.config.server_config import ServerConfig
from serving.loading.background_work import BackgroundWork
from serving.loading.initial_loads import InitialLoads
from serving.loading.library_threads import lowered_library_threads
from serving.loading.load_priority import LoadPriority
from serving.loading.request_cores import RequestCores
from serving.loading.starvation_watch import Helpers, StarvationWatch, no_helpers
from serving.server.foundation import Foundation

_log = structlog.get_logger(__name__)


class LoadThreads:
    """The executors of loads and unloads. Each task runs with the priority and the cores that it should have.

    Until `end_initial`, `loaders` has a thread for each core, because no request is served before.
    """

    def __init__(self, foundation: Foundation, cores: RequestCores | None) -> None:
        """Loads and unloads keep off the cores that `cores` gives to request threads; None gives none."""
        self._foundation = foundation
        self._cores = cores
        config = foundation.config
        self._priority = LoadPriority(
            foundation.data_plane, config.background_priority, is_stock=config.lab.is_stock
        )
        self._starvation_watch = make_starvation_watch(foundation, self._priority)
        self.background = BackgroundWork(self._priority, self._starvation_watch)
        # Initial loads run at the usual priority, which is lowered when the first requests may come.
        self._initial_loads = InitialLoads(self._priority, around_background=self._around_load)
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
            enter_thread=self.background.enter,
            around_task=self._around_unload,
        )

    def start(self) -> None:
        """Starts the watch for starvation. The manager starts the executors."""
        if self._starvation_watch is not None:
            self._starvation_watch.start()

    def end_initial(self) -> None:
        """Lowers the priority of loads, and ends the loader threads that only the start needed."""
        self._initial_loads.end()
        self.loaders.keep(max(1, self._foundation.config.num_load_threads))

    def hurry_unloads(self) -> None:
        """Unloads with a thread for each core from now on, at the usual priority.

        Call it during a stop, when no request is left that an unload could slow down.
        """
        self.unloaders.hurry(
            max(self._foundation.config.num_unload_threads, len(os.sched_getaffinity(0))),
            # These threads use memory as background threads do, like the other threads of unloads.
            on_thread_start=self._priority.enter_initial,
        )

    def stop(self) -> None:
        """Stops the watch. Call it after the manager has stopped the executors."""
        if self._starvation_watch is not None:
            self._starvation_watch.stop()

    def _around_load(self, thread_id: int) -> AbstractContextManager[None]:
        return self._around_background(thread_id, lowered_library_threads)

    def _around_unload(self) -> AbstractContextManager[None]:
        return self._around_background(threading.get_native_id(), no_helpers)

    @contextmanager
    def _around_background(self, thread_id: int, helpers: Helpers) -> Iterator[None]:
        """Pins and watches the thread with this id while it loads or unloads at a lowered priority."""
        with ExitStack() as stack:
            if self._cores is not None:
                stack.enter_context(self._cores.pinned(thread_id))
            stack.enter_context(self.background.watched(thread_id, helpers))
            yield


def initial_thread_count(config: ServerConfig) -> int:
    """The number of loader threads until gRPC's port opens: one for each core, or 0 with `listen_before_ready`.

    Before the port opens, no request needs the cores.
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
    """Makes an executor with `thread_count` threads.

    If `initial_thread_count` is more, it has that many until `ThreadExecutor.keep` is called.
    """
    if thread_count < 1:
        # In TensorFlow Serving, 0 means that the manager's thread loads. Here a load would block that thread.
        _log.info("thread_count_raised", executor=name, requested=thread_count, used=1)
    return ThreadExecutor(
        name,
        max(1, thread_count, initial_thread_count),
        on_thread_start=enter_thread,
        around_task=around_task,
    )


def make_starvation_watch(foundation: Foundation, priority: LoadPriority) -> StarvationWatch | None:
    """Makes the watch for starvation; None if loads run at normal priority, or the settings let them starve."""
    is_lowered = (
        foundation.config.background_priority != "normal" and not foundation.config.lab.is_stock
    )
    patience_seconds = foundation.config.lab.load_patience_seconds
    if not is_lowered or patience_seconds == 0:
        return None
    return StarvationWatch(patience_seconds, priority=priority, clock=foundation.clock)
