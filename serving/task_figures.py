"""What a load or an unload costs the thread that it runs on."""

import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

TellFigures = Callable[[Mapping[str, float]], None]


@contextmanager
def thread_costs(task: str, tell: TellFigures) -> Iterator[None]:
    """Tells, at the end however it ends, what happened on the calling thread within it.

    `TASK_cpu_seconds` and `TASK_page_fault_count` (minor and major ones), by the kernel's account
    of the thread. What other threads do for the task, as TensorFlow's pools for a warm-up's large
    kernels, is not in it.
    """
    cpu_seconds_before, fault_count_before = time.thread_time(), _fault_count()
    try:
        yield
    finally:
        tell(
            {
                # Not of getrusage, which counts a thread's time by the kernel's ticks.
                f"{task}_cpu_seconds": time.thread_time() - cpu_seconds_before,
                f"{task}_page_fault_count": _fault_count() - fault_count_before,
            }
        )


def _fault_count() -> int:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_minflt + usage.ru_majflt
