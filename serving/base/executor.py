"""Executors: the threads that run loads and unloads, so that the control thread waits for none."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import structlog

Task = Callable[[], None]
AroundTask = Callable[[], AbstractContextManager[None]]
"""Makes the context that is entered for one task."""
_log = structlog.get_logger(__name__)


class Executor(Protocol):
    """Runs tasks on threads of its own. Tasks of one owner begin in the order of their submission."""

    def start(self) -> None:
        """Starts the threads."""
        ...

    def submit(self, task: Task, owner: str = "") -> None:
        """Queues `task` and returns at once. Any thread. After `stop` the task is dropped.

        If the executor has more than one thread, tasks of one `owner` never take all of them. The
        owner "" has no such limit.
        """
        ...

    def stop(self, timeout_seconds: float) -> bool:
        """Finishes the submitted tasks and ends the threads; returns False if a thread still runs."""
        ...


class ThreadExecutor:
    """`thread_count` threads called `NAME-0`, `NAME-1`, … that share one queue.

    Tasks of one owner never take all threads, so that other owners' tasks still run if they hang. The
    threads are daemons: a load that hangs in the data plane must not keep the process from ending.
    `on_thread_start` runs first on each thread, for instance to set its priority. `around_task` is entered
    for each task.
    """

    def __init__(
        self,
        name: str,
        thread_count: int,
        *,
        on_thread_start: Task | None = None,
        around_task: AroundTask = nullcontext,
    ) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, Task]] = deque()
        self._running_counts: Counter[str] = Counter()
        # The indices of the threads that take tasks. Any other thread ends after its task.
        self._taking = range(0)
        self._is_stopping = False
        self._name = name
        self._threads: list[threading.Thread] = []
        self._add_threads(thread_count, on_thread_start, around_task)

    def start(self) -> None:
        """See `Executor`."""
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task, owner: str = "") -> None:
        """See `Executor`."""
        with self._changed:
            if not self._is_stopping:
                self._waiting.append((owner, task))
                self._changed.notify_all()

    def keep(self, thread_count: int) -> None:
        """Ends all threads but the first `thread_count`, each after the task that it runs."""
        with self._changed:
            self._taking = self._taking[:thread_count]
            self._changed.notify_all()

    def hurry(self, thread_count: int, *, on_thread_start: Task | None = None) -> None:
        """Starts `thread_count` new threads for the remaining tasks.

        The old threads end after the tasks that they run.

        The new threads have the calling thread's priority: a process without privileges cannot raise
        a thread's priority again after lowering it. `around_task` is not entered on the new threads.
        Call this between `start` and `stop`.
        """
        with self._changed:
            added = self._add_threads(thread_count, on_thread_start, nullcontext)
            self._changed.notify_all()
        for thread in added:
            thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """See `Executor`. Waits up to `timeout_seconds` for each thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        started = [thread for thread in self._threads if thread.ident is not None]
        for thread in started:
            thread.join(timeout_seconds)
        return not any(thread.is_alive() for thread in started)

    def _add_threads(
        self,
        thread_count: int,
        on_thread_start: Task | None,
        around_task: AroundTask,
    ) -> list[threading.Thread]:
        """Makes the threads that take tasks from now on. Called under the lock or by the constructor."""
        first = len(self._threads)
        self._taking = range(first, first + thread_count)
        added = [
            threading.Thread(
                target=self._run,
                args=(index, on_thread_start, around_task),
                name=f"{self._name}-{index}",
                daemon=True,
            )
            for index in self._taking
        ]
        self._threads += added
        return added

    def _run(
        self,
        index: int,
        on_thread_start: Task | None,
        around_task: AroundTask,
    ) -> None:
        if on_thread_start is not None:
            on_thread_start()
        while (taken := self._take(index)) is not None:
            owner, task = taken
            try:
                with around_task():
                    task()
            except Exception:  # noqa: BLE001 (a bug; the next task must run)
                _log.exception("task_failed")
            with self._changed:
                self._running_counts[owner] -= 1
                self._changed.notify_all()

    def _take(self, thread_index: int) -> tuple[str, Task] | None:
        """Waits for and returns a task that may run now; returns None if the thread must end."""
        with self._changed:
            while thread_index not in self._taking or (index := self._index_of_next()) is None:
                # The tasks that still wait belong to owners with running threads, which will take them.
                if self._is_stopping or thread_index not in self._taking:
                    return None
                self._changed.wait()
            taken = self._waiting[index]
            del self._waiting[index]
            self._running_counts[taken[0]] += 1
            return taken

    def _index_of_next(self) -> int | None:
        """The index of the first task whose owner may take another thread, or None."""
        owner_count_max = max(len(self._taking) - 1, 1)
        for index, (owner, _) in enumerate(self._waiting):
            if not owner or self._running_counts[owner] < owner_count_max:
                return index
        return None
