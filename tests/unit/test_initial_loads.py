import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from serving.base.executor import ThreadExecutor
from serving.loading.initial_loads import InitialLoads
from serving.loading.load_priority import LoadPriority, lower_thread
from serving.loading.request_cores import RequestCores
from serving.loading.starvation_watch import StarvationWatch
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.servers import FakeGrpcServer
from tests.unit.fakes.threads import FakeScheduler


class FakePriority(LoadPriority):
    """Notes the threads that it would change."""

    def __init__(self, log: list[str], lowered: list[int]) -> None:
        self._log = log
        self._lowered = lowered

    def enter_initial(self) -> None:
        self._log.append("initial")

    def enter_background(self) -> None:
        self._log.append("background")

    def lower(self, thread_id: int) -> None:
        self._lowered.append(thread_id)


class Threads:
    """Initial loads, and a log of their effects on threads."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.lowered: list[int] = []
        self.loads = InitialLoads(
            FakePriority(self.log, self.lowered),
            around_background=self.around_background,
            other_threads=lambda: [12],
        )
        # The threads with a load under way in the background.
        self.in_background: list[int] = []

    @contextmanager
    def around_background(self, thread_id: int) -> Iterator[None]:
        self.in_background.append(thread_id)
        try:
            yield
        finally:
            self.in_background.remove(thread_id)

    def load(self, during: Callable[[], None] = lambda: None) -> None:
        with self.loads.task():
            self.log.append(f"load, in background: {bool(self.in_background)}")
            during()


def on_another_thread(act: Callable[[], None]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_initial_loads_run_at_the_usual_priority() -> None:
    threads = Threads()
    threads.loads.enter_thread()
    threads.load()
    assert threads.log == ["initial", "load, in background: False"]
    assert threads.lowered == []


def test_end_lowers_the_thread_of_a_load_that_runs() -> None:
    threads = Threads()
    threads.loads.enter_thread()
    threads.load(during=threads.loads.end)
    assert threads.lowered == [threading.get_native_id(), 12]


def test_end_puts_a_load_that_runs_in_the_background() -> None:
    threads = Threads()
    threads.loads.enter_thread()

    def during() -> None:
        assert threads.in_background == []
        on_another_thread(threads.loads.end)
        assert threads.in_background == [threading.get_native_id()]

    threads.load(during)
    assert threads.in_background == []


def test_end_leaves_a_load_that_is_over_alone() -> None:
    threads = Threads()
    threads.loads.enter_thread()
    threads.load()
    threads.loads.end()
    assert threads.in_background == []


def test_load_raising_after_end_leaves_background() -> None:
    threads = Threads()
    threads.loads.enter_thread()

    def fail() -> None:
        on_another_thread(threads.loads.end)
        raise KeyError

    with pytest.raises(KeyError):
        threads.load(fail)
    assert threads.in_background == []


def test_load_that_end_lowers_is_watched_and_pinned() -> None:
    scheduler, server, log, lowered = FakeScheduler(), FakeGrpcServer(), list[str](), list[int]()
    priority = FakePriority(log, lowered)
    patience = StarvationWatch(2, priority=priority, scheduler=scheduler, clock=FakeClock())
    cores = RequestCores(lowered.__contains__, core_count=2)
    cores.add_listener(server.pin_request_threads)

    @contextmanager
    def around_background(thread_id: int) -> Iterator[None]:
        with cores.pinned(thread_id), patience.watched(thread_id):
            yield

    loads = InitialLoads(priority, around_background=around_background, other_threads=list)
    loader_id = threading.get_native_id()
    loads.enter_thread()
    with ExitStack() as load:
        load.enter_context(loads.task())
        # A wait before the port opened does not count: the thread had the usual priority.
        scheduler.waited = 100 * 10**9
        on_another_thread(loads.end)
        assert server.pins == [True]
        patience.look()
        assert scheduler.raised == []
        scheduler.waited = 102 * 10**9
        patience.look()
        assert scheduler.raised == [loader_id]
    assert server.pins == [True, False]
    # By the end of the initial loads, and after the starvation watch had raised it.
    assert lowered == [loader_id, loader_id]
    assert log == ["initial"]


def test_loads_after_the_end_enter_the_background_once() -> None:
    threads = Threads()
    threads.loads.enter_thread()
    threads.loads.end()
    threads.load()
    threads.load()
    loaded = "load, in background: True"
    assert threads.log == ["initial", "background", loaded, loaded]


def test_thread_entered_after_end_stays_normal() -> None:
    threads = Threads()
    threads.loads.end()
    threads.loads.enter_thread()
    threads.load()
    threads.loads.end()
    assert threads.log == ["background", "load, in background: True"]
    assert threads.lowered == []


@pytest.mark.parametrize(
    ("priority", "policy", "nice"),
    [
        ("idle", os.SCHED_IDLE, None),
        ("nice", os.SCHED_OTHER, 19),
        ("normal", os.SCHED_OTHER, None),
    ],
)
def test_lower_thread_does_so_for_another_thread(
    priority: str, policy: int, nice: int | None
) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait, args=(60,))
    thread.start()
    thread_id = thread.native_id or 0
    lower_thread(thread_id, priority)
    seen = (os.sched_getscheduler(thread_id), os.getpriority(os.PRIO_PROCESS, thread_id))
    is_over.set()
    thread.join()
    assert seen == (policy, usual if nice is None else nice)


def test_executor_keeps_requested_thread_count() -> None:
    executor = ThreadExecutor("kept", 3)
    executor.start()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("kept-")]
    executor.keep(1)
    for thread in threads:
        if thread.name != "kept-0":
            thread.join(60)
    done = threading.Event()
    executor.submit(done.set)
    assert done.wait(60)
    assert [thread.name for thread in threads if thread.is_alive()] == ["kept-0"]
    assert executor.stop(timeout_seconds=60)


def test_executor_surplus_thread_finishes_task() -> None:
    executor = ThreadExecutor("kept", 2)
    are_running, may_end = threading.Barrier(3), threading.Event()
    ended: list[int] = []

    def task() -> None:
        are_running.wait(60)
        may_end.wait(60)
        ended.append(1)

    executor.submit(task, "a")
    executor.submit(task, "b")
    executor.start()
    are_running.wait(60)
    executor.keep(1)
    may_end.set()
    assert executor.stop(timeout_seconds=60)
    assert ended == [1, 1]
