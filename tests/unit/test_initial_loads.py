import os
import threading
from collections.abc import Callable

import pytest

from serving.executor import ThreadExecutor
from serving.initial_loads import InitialLoads, lower_thread


class Threads:
    """Initial loads, and what they did to which thread."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.lowered: list[int] = []
        self.loads = InitialLoads(
            enter_initial=lambda: self.log.append("initial"),
            enter_background=lambda: self.log.append("background"),
            lower=self.lowered.append,
            other_threads=lambda: [12],
        )

    def load(self, during: Callable[[], None] = lambda: None) -> None:
        with self.loads.task() as is_background:
            self.log.append(f"load, is_background={is_background}")
            during()


def test_initial_loads_run_at_the_usual_priority() -> None:
    threads = Threads()
    threads.loads.enter_thread()
    threads.load()
    assert threads.log == ["initial", "load, is_background=False"]
    assert threads.lowered == []


def test_end_lowers_the_thread_of_a_load_that_runs() -> None:
    threads = Threads()
    threads.loads.enter_thread()
    threads.load(during=threads.loads.end)
    assert threads.lowered == [threading.get_native_id(), 12]


def test_loads_after_the_end_enter_the_background_once() -> None:
    threads = Threads()
    threads.loads.enter_thread()
    threads.loads.end()
    threads.load()
    threads.load()
    loaded = "load, is_background=True"
    assert threads.log == ["initial", "background", loaded, loaded]


def test_thread_that_begins_after_the_end_is_no_initial_one() -> None:
    threads = Threads()
    threads.loads.end()
    threads.loads.enter_thread()
    threads.load()
    threads.loads.end()
    assert threads.log == ["background", "load, is_background=True"]
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


def test_executor_keeps_as_many_threads_as_it_is_told() -> None:
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


def test_executor_thread_that_is_not_kept_ends_its_task() -> None:
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
