"""Executors and thread priorities without threads."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from serving.base.executor import Task
from serving.loading.background_work import BackgroundWork
from serving.loading.load_priority import LoadPriority
from serving.loading.starvation_watch import Helpers, Scheduler, no_helpers
from tests.unit.fakes.data_plane import FakePlane


class FakeScheduler(Scheduler):
    """Tests set `waited`, and `waited_by` of single threads; `refusal` is raised at each attempt to
    raise a priority.
    """

    def __init__(self) -> None:
        self.waited = 0
        self.waited_by: dict[int, int] = {}
        self.ended: set[int] = set()
        self.started_at: dict[int, int] = {}
        self.raised: list[int] = []
        self.refusal: OSError | None = None

    def waited_ns(self, thread_id: int) -> int:
        return self.waited_by.get(thread_id, self.waited)

    def started(self, thread_id: int) -> int:
        return self.started_at.get(thread_id, 1)

    def raise_priority(self, thread_id: int) -> None:
        if thread_id in self.ended:
            raise ProcessLookupError(f"no thread {thread_id}")
        if self.refusal is not None:
            raise self.refusal
        self.raised.append(thread_id)


class FakeBackground(BackgroundWork):
    """Changes no thread, and notes the names of the threads that call it."""

    def __init__(self) -> None:
        super().__init__(LoadPriority(FakePlane(), "idle", is_stock=True), None)
        self.entered: list[str] = []
        self.watched_threads: list[tuple[str, Helpers]] = []
        # Set when watched work has ended.
        self.has_watched = threading.Event()

    def enter(self) -> None:
        self.entered.append(threading.current_thread().name)

    def watched(
        self, thread_id: int | None = None, helpers: Helpers = no_helpers
    ) -> AbstractContextManager[None]:
        del thread_id
        return self._watching(helpers)

    @contextmanager
    def _watching(self, helpers: Helpers) -> Iterator[None]:
        self.watched_threads.append((threading.current_thread().name, helpers))
        yield
        self.has_watched.set()


class ManualExecutor:
    """Runs tasks when a test calls for it, on the caller's thread."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.is_started = False
        self.is_stopped = False

    def start(self) -> None:
        self.is_started = True

    def submit(self, task: Task, owner: str = "") -> None:
        del owner
        self.tasks.append(task)

    def stop(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        self.is_stopped = True
        return True

    def run_one(self) -> None:
        if self.tasks:
            self.tasks.popleft()()

    def run_all(self) -> None:
        while self.tasks:
            self.run_one()
