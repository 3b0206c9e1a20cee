"""The priority of loads before and after gRPC's port opens.

Until the port opens, no client waits for a core that a load uses. So loads run at the usual priority
until then, and in the background afterwards.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from serving.loading.load_priority import LoadPriority


def graph_runner_threads() -> list[int]:
    """The threads on which TensorFlow folds constants for loads; the first load starts them."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            if (task / "comm").read_text().strip() == "tf_graph_runner":
                found.append(int(task.name))
    return found


class InitialLoads:
    """Gives each loader thread its priority. Any thread may call `end`.

    A load that runs when `end` is called has a background thread's priority from then on, and
    `around_background` is entered for it. As in any initial load, the large kernels of its warm-up
    still use TensorFlow's pool.
    """

    def __init__(
        self,
        priority: LoadPriority,
        *,
        around_background: Callable[[int], AbstractContextManager[None]],
        other_threads: Callable[[], list[int]] = graph_runner_threads,
    ) -> None:
        """`around_background` is entered for each load of lowered priority, with the id of its thread.

        Another thread may enter it, but the load's thread leaves it. The threads that `other_threads`
        returns are lowered too, because an initial load may have started them.
        """
        self._priority = priority
        self._around_background = around_background
        self._other_threads = other_threads
        self._lock = threading.Lock()
        self._has_ended = False
        self._thread_ids: set[int] = set()
        # The initial loads that run now, by thread id, with the contexts to leave after each.
        self._running: dict[int, ExitStack] = {}
        self._of_thread = threading.local()

    def enter_thread(self) -> None:
        """Sets the priority of the calling loader thread, before its first load."""
        with self._lock:
            is_initial = not self._has_ended
            if is_initial:
                self._thread_ids.add(threading.get_native_id())
        self._of_thread.is_initial = is_initial
        if is_initial:
            self._priority.enter_initial()
        else:
            self._priority.enter_background()

    @contextmanager
    def task(self) -> Iterator[None]:
        """Wraps one load, on its thread."""
        thread_id = threading.get_native_id()
        with ExitStack() as stack:
            if not self._begin_initial(thread_id, stack):
                self._enter_background_once()
                stack.enter_context(self._around_background(thread_id))
            try:
                yield
            finally:
                # From here on `end` must not enter a context into the stack, which is about to close.
                with self._lock:
                    self._running.pop(thread_id, None)

    def end(self) -> None:
        """Lowers the loader threads. Call it while all of them are running."""
        with self._lock:
            self._has_ended = True
            others = self._other_threads() if self._thread_ids else []
            for thread_id in (*self._thread_ids, *others):
                self._priority.lower(thread_id)
            self._thread_ids.clear()
            for thread_id, stack in self._running.items():
                stack.enter_context(self._around_background(thread_id))
            self._running.clear()

    def _begin_initial(self, thread_id: int, stack: ExitStack) -> bool:
        """Notes a load that begins as an initial load, which `end` may lower; False if the initial loads
        are over.
        """
        with self._lock:
            if not self._has_ended:
                self._running[thread_id] = stack
            return not self._has_ended

    def _enter_background_once(self) -> None:
        if self._of_thread.is_initial:
            self._of_thread.is_initial = False
            self._priority.enter_background()
