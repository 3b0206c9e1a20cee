import os

from loadtest.measure.process_memory import (
    MemoryWatch,
    Resident,
    parse,
    resident,
    resident_of_all,
)
from serving.base.clock import SystemClock

STATUS = """Name:\tmillpond
VmRSS:\t    1000 kB
RssAnon:\t     600 kB
RssFile:\t     300 kB
RssShmem:\t     100 kB
Threads:\t7
"""
# Above the largest process id of Linux.
NO_PROCESS = 2**22 + 1


def test_parse_sums_resident_memory():
    assert parse(STATUS, 5) == Resident(5, total_bytes=1_024_000, anonymous_bytes=716_800)


def test_parse_of_ended_process_is_none():
    assert parse("Name:\tmillpond\nState:\tZ (zombie)\n", 5) is None


def test_resident_needs_live_process():
    here = resident(os.getpid(), SystemClock())
    assert here is not None
    assert here.total_bytes > here.anonymous_bytes > 0
    assert resident(NO_PROCESS, SystemClock()) is None


def test_memory_of_several_processes_is_of_live_ones():
    here = os.getpid()
    both = resident_of_all([here, here, NO_PROCESS], SystemClock())
    one = resident(here, SystemClock())
    assert both is not None
    assert one is not None
    # Between two reads the process itself may take or give back some memory.
    assert 1.8 * one.total_bytes < both.total_bytes < 2.2 * one.total_bytes
    assert resident_of_all([NO_PROCESS], SystemClock()) is None


def test_memory_watch_samples_at_least_its_end():
    with MemoryWatch([os.getpid()], SystemClock(), period_seconds=60) as watch:
        pass
    assert len(watch.samples()) >= 1


def test_memory_watch_of_a_process_that_ends_ends():
    with MemoryWatch([NO_PROCESS], SystemClock(), period_seconds=60) as watch:
        pass
    assert watch.samples() == ()
