import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from structlog.testing import capture_logs

from serving.base.executor import ThreadExecutor


def break_down() -> None:
    raise ValueError("bug")


def test_executor_runs_tasks_in_order_on_named_threads() -> None:
    results: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def put(number: int) -> None:
        results.put((number, threading.current_thread().name))

    executor = ThreadExecutor("loader", 1)
    executor.start()
    for number in range(3):
        executor.submit(partial(put, number))
    assert executor.stop(timeout_seconds=10)
    assert [results.get() for _ in range(3)] == [(n, "loader-0") for n in range(3)]


def test_executor_calls_start_hook_on_each_thread() -> None:
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    executor = ThreadExecutor(
        "loader", 2, on_thread_start=lambda: names.put(threading.current_thread().name)
    )
    executor.start()
    assert executor.stop(timeout_seconds=10)
    assert {names.get(), names.get()} == {"loader-0", "loader-1"}


def test_thread_executor_survives_a_task_that_raises() -> None:
    done = threading.Event()
    executor = ThreadExecutor("loader", 1)
    with capture_logs() as logs:
        executor.submit(break_down)
        executor.submit(done.set)
        executor.start()
        assert executor.stop(timeout_seconds=10)
    assert done.is_set()
    assert [log["event"] for log in logs] == ["task_failed"]


def test_executor_stop_reports_running_task() -> None:
    release = threading.Event()
    executor = ThreadExecutor("loader", 1)
    executor.start()

    def wait() -> None:
        release.wait(10)

    executor.submit(wait)
    assert not executor.stop(timeout_seconds=0)
    release.set()
    assert executor.stop(timeout_seconds=10)


def test_thread_executor_never_started_stops() -> None:
    assert ThreadExecutor("loader", 2).stop(timeout_seconds=10)


def test_executor_hanging_owner_spares_one_thread() -> None:
    release, done = threading.Event(), threading.Event()
    executor = ThreadExecutor("loader", 3)
    executor.start()

    def hang() -> None:
        release.wait(10)

    for _ in range(4):
        executor.submit(hang, owner="a")
    executor.submit(done.set, owner="b")
    is_done = done.wait(10)
    are_hanging = not release.is_set()
    release.set()
    assert executor.stop(timeout_seconds=10)
    assert is_done
    assert are_hanging


def test_executor_owner_leaves_one_thread_free() -> None:
    results: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    executor = ThreadExecutor("loader", 2)
    for number in range(20):
        executor.submit(partial(results.put, ("a", number)), owner="a")
        executor.submit(partial(results.put, ("b", number)), owner="b")
    executor.start()
    assert executor.stop(timeout_seconds=10)
    ran = [results.get() for _ in range(40)]
    for owner in ("a", "b"):
        assert [number for name, number in ran if name == owner] == list(range(20))


def test_executor_of_one_thread_runs_owned_tasks() -> None:
    done = threading.Event()
    executor = ThreadExecutor("loader", 1)
    executor.start()
    executor.submit(done.set, owner="a")
    assert executor.stop(timeout_seconds=10)
    assert done.is_set()


def test_executor_unowned_tasks_take_all_threads() -> None:
    together = threading.Barrier(2)
    executor = ThreadExecutor("loader", 2)
    executor.start()

    def meet() -> None:
        together.wait(10)

    for _ in range(2):
        executor.submit(meet)
    assert executor.stop(timeout_seconds=10)
    assert not together.broken


def test_thread_executor_drops_tasks_after_stop() -> None:
    late: list[str] = []
    executor = ThreadExecutor("loader", 1)
    executor.start()
    assert executor.stop(timeout_seconds=10)
    executor.submit(partial(late.append, "ran"))
    assert executor.stop(timeout_seconds=10)
    assert late == []


def test_executor_hurry_runs_rest_on_new_threads() -> None:
    entered: list[str] = []
    ran: queue.SimpleQueue[str] = queue.SimpleQueue()
    is_running, may_end, meeting = threading.Event(), threading.Event(), threading.Barrier(3)

    @contextmanager
    def around_task() -> Iterator[None]:
        entered.append(threading.current_thread().name)
        yield

    def hang() -> None:
        is_running.set()
        may_end.wait(60)
        ran.put(threading.current_thread().name)

    def meet() -> None:
        ran.put(threading.current_thread().name)
        meeting.wait(60)

    executor = ThreadExecutor("unloader", 1, around_task=around_task)
    executor.start()
    executor.submit(hang)
    assert is_running.wait(60)
    for _ in range(2):
        executor.submit(meet)
    began: queue.SimpleQueue[str] = queue.SimpleQueue()
    executor.hurry(2, on_thread_start=lambda: began.put(threading.current_thread().name))
    # Both run at once, beside the earlier task.
    meeting.wait(60)
    assert {ran.get(), ran.get()} == {began.get(), began.get()} == {"unloader-1", "unloader-2"}
    may_end.set()
    assert executor.stop(timeout_seconds=60)
    assert ran.get() == "unloader-0"
    assert entered == ["unloader-0"]


def test_executor_hurry_ends_old_threads() -> None:
    executor = ThreadExecutor("hurried", 2)
    executor.start()
    old = [thread for thread in threading.enumerate() if thread.name.startswith("hurried-")]
    executor.hurry(1)
    for thread in old:
        thread.join(60)
    assert not any(thread.is_alive() for thread in old)
    ran_on: queue.SimpleQueue[str] = queue.SimpleQueue()
    executor.submit(lambda: ran_on.put(threading.current_thread().name))
    assert ran_on.get(timeout=60) == "hurried-2"
    assert executor.stop(timeout_seconds=60)
