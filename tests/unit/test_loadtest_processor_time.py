import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from loadtest.measure.processor_time import (
    CoreShares,
    ProcessorTime,
    core_shares,
    core_waits_ns,
    mean_cores,
    spent_ns,
    thread_times_ns,
)
from serving.base.clock import NS_PER_SECOND

# user nice system idle iowait irq softirq steal guest guest_nice
STAT = "cpu  100 10 50 9000 40 2 3 7 100 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
PROCESS_STAT = "42 (a name (with) spaces) S 1 42 42 0 -1 4194304 9 9 9 9 30 12 0 0 20 0 1 0 5"
TICK_NS = NS_PER_SECOND // os.sysconf("SC_CLK_TCK")


def test_processor_time_excludes_idle_and_wait():
    time = ProcessorTime.parse(STAT, [PROCESS_STAT, PROCESS_STAT], 5)
    assert time == ProcessorTime(
        5, busy_ns=165 * TICK_NS, process_ns=84 * TICK_NS, stolen_ns=7 * TICK_NS
    )


def test_processor_time_of_own_process_grows():
    time = ProcessorTime.now([os.getpid()], 5)
    assert time.busy_ns >= time.process_ns > 0


def test_core_shares_divide_time_between_readings():
    before = ProcessorTime(0, busy_ns=1_000, process_ns=100, stolen_ns=0)
    after = ProcessorTime(1_000, busy_ns=2_500, process_ns=1_000, stolen_ns=20)
    shares = core_shares(before, after, generator_ns=100)
    assert shares == CoreShares(server=0.9, generator=0.1, other=0.5, stolen=0.02)


def test_core_shares_of_others_are_never_negative():
    before = ProcessorTime(0, busy_ns=0, process_ns=0, stolen_ns=0)
    after = ProcessorTime(1_000, busy_ns=100, process_ns=101, stolen_ns=0)
    assert core_shares(before, after, generator_ns=10).other == 0


def test_mean_cores_are_those_of_each_column():
    one = CoreShares(server=1, generator=0.2, other=0, stolen=0)
    two = CoreShares(server=0.5, generator=0.2, other=0.1, stolen=0.3)
    assert mean_cores([one, two]) == CoreShares(0.75, 0.2, 0.05, 0.15)


def test_threads_are_split_by_nice_value():
    is_spinning, is_over = threading.Event(), threading.Event()

    def spin() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
        end_ns = time.thread_time_ns() + 3 * TICK_NS
        while time.thread_time_ns() < end_ns:
            pass
        is_spinning.set()
        is_over.wait(30)

    thread = threading.Thread(target=spin)
    thread.start()
    assert is_spinning.wait(30)
    seen = thread_times_ns(os.getpid(), 7)
    is_over.set()
    thread.join()
    assert list(seen) == [str(thread.native_id)]
    assert seen[str(thread.native_id)] >= 2 * TICK_NS
    assert thread_times_ns(os.getpid(), 6) == {}


def test_time_of_a_thread_is_finer_than_a_tick() -> None:
    may_end, has_begun = threading.Event(), threading.Event()

    def wait() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        has_begun.set()
        may_end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    assert has_begun.wait(10)
    (time_ns,) = thread_times_ns(os.getpid(), 5).values()
    may_end.set()
    thread.join()
    assert time_ns > 0
    assert time_ns % TICK_NS


def test_waits_for_a_core_are_of_threads_with_the_name() -> None:
    waits = core_waits_ns(os.getpid(), Path("/proc/self/comm").read_text().strip())
    assert waits[str(os.getpid())] >= 0
    assert core_waits_ns(os.getpid(), "no-such-thread") == {}


def test_a_thread_whose_core_is_busy_waits_for_it() -> None:
    name, cores = Path("/proc/self/comm").read_text().strip(), os.sched_getaffinity(0)
    spin = [sys.executable, "-c", "while True: pass"]
    os.sched_setaffinity(0, {min(cores)})
    with subprocess.Popen(spin) as other:
        before = core_waits_ns(os.getpid(), name)
        while spent_ns(before, core_waits_ns(os.getpid(), name)) < TICK_NS:
            pass
        other.kill()
    os.sched_setaffinity(0, cores)


def test_spent_time_covers_threads_still_alive():
    before = {"1": 100, "2": 5_000}
    assert spent_ns(before, {"1": 130, "3": 7}) == 37
