"""The costs of a load or an unload for the thread that it runs on."""

import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

ReportFigures = Callable[[Mapping[str, float]], None]


@contextmanager
def thread_costs(task: str, report: ReportFigures) -> Iterator[None]:
    """Reports the costs of the block for the calling thread, even if the block raises.

    The figures are `TASK_cpu_seconds` and `TASK_page_fault_count` (minor and major faults), by the kernel's
    account of the thread. The work of other threads is left out, such as that of TensorFlow's pools for
    large kernels of a warm-up.
    """
    cpu_seconds_before = time.thread_time()
    fault_count_before = page_fault_count(resource.RUSAGE_THREAD)
    try:
        yield
    finally:
        report(
            {
                # More precise than getrusage, which counts a thread's time in kernel ticks.
                f"{task}_cpu_seconds": time.thread_time() - cpu_seconds_before,
                f"{task}_page_fault_count": page_fault_count(resource.RUSAGE_THREAD)
                - fault_count_before,
            }
        )


def page_fault_count(who: int) -> int:
    """The minor and major page faults so far. `who` is RUSAGE_THREAD or RUSAGE_SELF."""
    usage = resource.getrusage(who)
    return usage.ru_minflt + usage.ru_majflt
