"""Fakes of the threads of a process, and of their cores."""

import errno
from collections.abc import Callable, Iterable

from serving.base.numa_nodes import NumaNode


def one_node(cores: Iterable[int]) -> list[NumaNode]:
    return [NumaNode(0, tuple(sorted(cores)))]


class FakeThreads:
    """Threads by their cores. A thread in `gone` ends before it is moved."""

    def __init__(self, *cores: Iterable[int]) -> None:
        self.by_id = {number: frozenset(some) for number, some in enumerate(cores)}
        self.gone: set[int] = set()
        self.seconds = 0.0
        self.before_move: Callable[[], object] = lambda: None
        self.is_listed = True

    def ids(self) -> Iterable[int]:
        if not self.is_listed:
            raise OSError(errno.EMFILE, "Too many open files")
        return list(self.by_id)

    def cores(self, thread_id: int) -> frozenset[int]:
        return self.by_id[thread_id]

    def move(self, thread_id: int, cores: frozenset[int]) -> None:
        assert cores
        self.before_move()
        if thread_id in self.gone:
            raise ProcessLookupError
        self.by_id[thread_id] = cores

    def cpu_seconds(self) -> float:
        return self.seconds
