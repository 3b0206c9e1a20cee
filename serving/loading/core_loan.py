"""Lends cores to a process: the server's threads leave them while the others are enough.

Idle priority is not enough to keep a process out of the way of requests. The kernel's scheduler since 6.6 (EEVDF) may
prefer a thread of idle priority to one of the usual priority that was preempted, if that has run for longer than its
share; it looks again at its next tick only. On a machine with an H200 (Linux 6.18, 250 ticks a second) a trace
of `sched_switch` showed request threads that waited up to 6 ms for a compiler of idle priority, 75 times in 2.5 s.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from serving.base.clock import Clock, seconds_since
from serving.base.numa_nodes import NumaNode, numa_nodes

_log = structlog.get_logger(__name__)

_LEND_BELOW = 0.7
_TAKE_BACK_ABOVE = 0.85
"""The use of the other cores up to which cores are lent, and from which they are taken back."""

_CORES_MAX = 4
_CORE_SHARE = 4


def few_cores(nodes: Iterable[NumaNode]) -> Sequence[int]:
    """The cores of a process beside requests: the last ones of each node, a quarter in all, one at least, four at most.

    XLA makes a thread for each core that it may use, and all of them compile. Request threads may stay on a node, so
    no node has to give a larger share of its cores than another one would with one core more.
    """
    shares = [
        (place / len(node.cores), -core, core)
        for node in nodes
        for place, core in enumerate(reversed(node.cores), start=1)
    ]
    count = max(min(len(shares) // _CORE_SHARE, _CORES_MAX), 1)
    return sorted(core for _, _, core in sorted(shares)[:count])


class Threads(Protocol):
    """The threads of this process, by their ids; 0 is the calling thread."""

    def ids(self) -> Iterable[int]:
        """The ids of all threads."""
        ...

    def cores(self, thread_id: int) -> frozenset[int]:
        """The cores that a thread may run on. Raises OSError, as if the thread has ended."""
        ...

    def move(self, thread_id: int, cores: frozenset[int]) -> None:
        """Lets a thread run on these cores only. Raises OSError."""
        ...

    def cpu_seconds(self) -> float:
        """The processor time that all of them have taken."""
        ...


class SystemThreads:
    """The threads of this process."""

    def ids(self) -> Iterable[int]:
        """See `Threads`."""
        return map(int, os.listdir("/proc/self/task"))

    def cores(self, thread_id: int) -> frozenset[int]:
        """See `Threads`."""
        return frozenset(os.sched_getaffinity(thread_id))

    def move(self, thread_id: int, cores: frozenset[int]) -> None:
        """See `Threads`."""
        os.sched_setaffinity(thread_id, cores)

    def cpu_seconds(self) -> float:
        """See `Threads`."""
        times = os.times()
        return times.user + times.system


class CoreLender:
    """Moves the server's threads from the cores that are lent, and back. Any thread."""

    def __init__(
        self,
        threads: Threads,
        clock: Clock,
        nodes: Callable[[Iterable[int]], Iterable[NumaNode]] = numa_nodes,
    ) -> None:
        self._threads = threads
        self._clock = clock
        self._nodes = nodes
        self._changing = threading.Lock()
        self._lent: dict[CoreLoan, frozenset[int]] = {}
        # The own cores of each thread that has left some, and those that it got.
        self._moved: dict[int, tuple[frozenset[int], frozenset[int]]] = {}

    def loan(self) -> "CoreLoan":
        """A loan to a process: of some of the cores that the calling thread has now. It does not lend yet."""
        cores = self._threads.cores(0)
        few = few_cores(self._nodes(cores))
        return CoreLoan(self, self._threads, self._clock, few, rest_count=len(cores) - len(few))

    def lend(self, loan: "CoreLoan", cores: frozenset[int]) -> None:
        """Moves all threads from these cores, also those that have come since the last call. Raises OSError."""
        with self._changing:
            self._lent[loan] = cores
            self._move_all()

    def take_back(self, loan: "CoreLoan") -> None:
        """Lets the threads return, but to cores that are lent to others."""
        with self._changing:
            del self._lent[loan]
            try:
                self._move_all()
            except OSError:
                # The threads are not listed, so at least those come home that are known.
                self._move(list(self._moved), self._homes_by_cores())

    def _move_all(self) -> None:
        """Moves the threads until none is new: one may begin with the cores of one that was not moved yet."""
        homes = self._homes_by_cores()
        seen: set[int] = set()
        while new := set(self._threads.ids()) - seen:
            self._move(new, homes)
            seen |= new
        self._moved = {thread: cores for thread, cores in self._moved.items() if thread in seen}

    def _move(
        self, thread_ids: Iterable[int], homes: Mapping[frozenset[int], frozenset[int]]
    ) -> None:
        lent = frozenset[int]().union(*self._lent.values())
        found = dict(self._places(thread_ids, homes))
        rest = frozenset[int]().union(*homes.values(), *(home for home, _ in found.values())) - lent
        for thread_id, (home, now) in found.items():
            # A thread that is pinned to a lent core goes anywhere else.
            got = home - lent or rest
            self._moved.pop(thread_id, None)
            with suppress(OSError):
                if got != now:
                    self._threads.move(thread_id, got)
                if got != home:
                    self._moved[thread_id] = (home, got)

    def _homes_by_cores(self) -> Mapping[frozenset[int], frozenset[int]]:
        """The own cores of a thread that begins with the cores that moved threads got.

        Pinned threads got the same ones as others, and a thread that an unpinned one starts is not pinned.
        """
        homes: dict[frozenset[int], frozenset[int]] = {}
        for home, got in self._moved.values():
            homes[got] = homes.get(got, frozenset()) | home
        return homes

    def _places(
        self, thread_ids: Iterable[int], homes: Mapping[frozenset[int], frozenset[int]]
    ) -> Iterator[tuple[int, tuple[frozenset[int], frozenset[int]]]]:
        """The cores of each thread without loans, and its cores now."""
        for thread_id in thread_ids:
            with suppress(OSError):
                now = self._threads.cores(thread_id)
                home, got = self._moved.get(thread_id, (homes.get(now, now), now))
                # Something else may have moved it meanwhile.
                yield thread_id, (home if now == got else now, now)


class CoreLoan:
    """The loan of a process's `cores`. Thread: one at a time.

    A loan is a courtesy: if the system refuses it, the process shares its cores with the server.
    """

    def __init__(
        self,
        lender: CoreLender,
        threads: Threads,
        clock: Clock,
        cores: Sequence[int],
        *,
        rest_count: int,
    ) -> None:
        self._lender = lender
        self._threads = threads
        self._clock = clock
        self.cores = cores
        self._rest_count = rest_count
        self._is_lent = False
        self._begin_turn()

    def look(self) -> None:
        """Lends the cores or takes them back, by the processor time of the server since the last look."""
        taken_seconds = self._threads.cpu_seconds() - self._cpu_seconds
        passed_seconds = seconds_since(self._clock, self._at_ns)
        if not self._rest_count or passed_seconds <= 0:
            return
        self._begin_turn()
        use = taken_seconds / passed_seconds / self._rest_count
        if use > _TAKE_BACK_ABOVE:
            self.close()
        elif self._is_lent or use < _LEND_BELOW:
            self._lend()

    def close(self) -> None:
        """Takes the cores back, if they are lent."""
        if not self._is_lent:
            return
        self._is_lent = False
        self._lender.take_back(self)
        _log.info("cores_taken_back", cores=self.cores)

    def _lend(self) -> None:
        self._is_lent, is_first = True, not self._is_lent
        try:
            self._lender.lend(self, frozenset(self.cores))
        except OSError as error:
            if is_first:
                _log.warning("cores_not_lent", cores=self.cores, reason=str(error))
        else:
            if is_first:
                _log.info("cores_lent", cores=self.cores)

    def _begin_turn(self) -> None:
        self._cpu_seconds, self._at_ns = self._threads.cpu_seconds(), self._clock.now_ns()
