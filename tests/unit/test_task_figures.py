"""The cost of a task for its thread."""

import mmap
import threading

import pytest

from serving.manager.task_figures import thread_costs

PAGE_COUNT = 1_000


def touch_pages() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, PAGE_COUNT * mmap.PAGESIZE, flags=flags) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        for offset in range(0, len(pages), mmap.PAGESIZE):
            pages[offset] = 1


def test_thread_costs_count_touched_pages() -> None:
    figures: dict[str, float] = {}
    with thread_costs("load", figures.update):
        touch_pages()
    assert figures["load_page_fault_count"] >= PAGE_COUNT
    assert figures["load_cpu_seconds"] > 0


def test_thread_costs_leave_out_those_of_other_threads() -> None:
    figures: dict[str, float] = {}
    with thread_costs("load", figures.update):
        other = threading.Thread(target=touch_pages)
        other.start()
        other.join()
    assert figures["load_page_fault_count"] < PAGE_COUNT


def test_thread_costs_of_failing_task_are_reported() -> None:
    figures: dict[str, float] = {}
    with pytest.raises(ValueError, match="broken"), thread_costs("unload", figures.update):
        raise ValueError("broken")
    assert set(figures) == {"unload_cpu_seconds", "unload_page_fault_count"}
