"""The threads that libraries start for loads."""

import _thread
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.loading.library_threads import lowered_library_threads
from serving.loading.load_priority import lower_thread


@contextmanager
def library_thread(priority: str, name: str = "") -> Iterator[int]:
    """A thread that `threading` does not know, as those of native libraries."""
    ids: list[int] = []
    is_ready, is_over, has_ended = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        ids.append(threading.get_native_id())
        lower_thread(ids[0], priority)
        if name:
            Path(f"/proc/self/task/{ids[0]}/comm").write_text(name)
        is_ready.set()
        is_over.wait()
        has_ended.set()

    _thread.start_new_thread(run, ())
    is_ready.wait()
    try:
        yield ids[0]
    finally:
        is_over.set()
        has_ended.wait()


@pytest.mark.parametrize("priority", ["idle", "nice"])
def test_lowered_threads_of_libraries_are_found(priority: str) -> None:
    with library_thread(priority) as thread_id:
        assert thread_id in lowered_library_threads()


def test_usual_threads_of_libraries_are_left_alone() -> None:
    with library_thread("normal") as thread_id:
        assert thread_id not in lowered_library_threads()


@pytest.mark.parametrize("name", ["slab-keeper", "request-3"])
def test_lowered_threads_of_millpond_are_left_alone(name: str) -> None:
    with library_thread("idle", name) as thread_id:
        assert thread_id not in lowered_library_threads()


def test_lowered_threads_of_python_are_left_alone() -> None:
    is_lowered, is_over = threading.Event(), threading.Event()

    def run() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        is_lowered.set()
        is_over.wait()

    thread = threading.Thread(target=run)
    thread.start()
    is_lowered.wait()
    found = lowered_library_threads()
    is_over.set()
    thread.join()
    assert thread.native_id not in found
