"""Fakes of processes that a server starts."""

import threading
from collections.abc import Callable

from serving.base.clock import Clock, SystemClock
from serving.loading.core_loan import CoreLender
from serving.loading.program_runs import ProgramRuns, Spawn
from tests.unit.fakes.cores import FakeThreads, one_node

FEW_CORES = [0]
"""The cores of a process of `program_runs`."""


def program_runs(spawn: Spawn, seconds_max: float = 30, clock: Clock | None = None) -> ProgramRuns:
    """Runs of processes that `spawn` starts, beside a server that has one core, and lends none."""
    clock = clock or SystemClock()
    cores = CoreLender(FakeThreads(FEW_CORES), clock, one_node)
    return ProgramRuns(seconds_max, cores, clock, spawn)


class FakeChild:
    """A process that ends when a test says so, or when it is killed."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.waited = threading.Event()
        self.status = 0

    def end(self, status: int) -> None:
        self.status = status
        self._ended.set()

    def wait(self, timeout_seconds: float) -> int | None:
        self.waited.set()
        return self.status if self._ended.wait(timeout_seconds) else None

    def kill(self) -> None:
        if not self._ended.is_set():
            self.end(-9)

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()


class Immortal(FakeChild):
    """A process that a driver holds after it was killed."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._on_wait = on_wait
        self.waits: list[float] = []

    def wait(self, timeout_seconds: float) -> int | None:
        self.waits.append(timeout_seconds)
        self._on_wait()
        return self.status if self.is_ended else None

    def kill(self) -> None:
        """Does nothing yet."""
