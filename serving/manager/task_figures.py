"""What a load or an unload costs the thread that it runs on."""

import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

ReportFigures = Callable[[Mapping[str, float]], None]


@contextmanager
def thread_costs(task: str, tell: ReportFigures) -> Iterator[None]:
    """Tells, at the end however it ends, what happened on the calling thread within it.

    `TASK_cpu_seconds` and `TASK_page_fault_count` (minor and major ones), by the kernel's account
    of the thread. What other threads do for the task, as TensorFlow's pools for a warm-up's large
    kernels, is not in it.
    """
    cpu_seconds_before = time.thread_time()
    fault_count_before = page_fault_count(resource.RUSAGE_THREAD)
    try:
        yield
    finally:
        tell(
            {
                # Not of getrusage, which counts a thread's time by the kernel's ticks.
                f"{task}_cpu_seconds": time.thread_time() - cpu_seconds_before,
                f"{task}_page_fault_count": page_fault_count(resource.RUSAGE_THREAD)
                - fault_count_before,
            }
        )


def page_fault_count(who: int) -> int:
    """Minor and major page faults so far, of the calling thread or the process: RUSAGE_THREAD, RUSAGE_SELF."""
    usage = resource.getrusage(who)
    return usage.ru_minflt + usage.ru_majflt
