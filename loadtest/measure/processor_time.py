"""The use of the cores during a run.

A tail that is measured beside a compiler does not describe the server.
"""

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from loadtest.plan.plan import Outcome
from serving.base.clock import NS_PER_SECOND, Clock

_NS_PER_TICK = NS_PER_SECOND // os.sysconf("SC_CLK_TCK")
# Indexes in the first line of /proc/stat: user, nice, system, irq, softirq.
_BUSY_FIELDS = (0, 1, 2, 5, 6)
_STOLEN_FIELD = 7
# Indexes in /proc/PID/stat after the name, which may hold spaces: utime and stime.
_PROCESS_FIELDS = (11, 12)
_NICE_FIELD = 16


@dataclass(frozen=True)
class ProcessorTime:
    """Processor time until one instant: of all processes, of the server's, and stolen by other
    machines.
    """

    at_ns: int
    busy_ns: int
    process_ns: int
    stolen_ns: int

    @classmethod
    def now(cls, process_ids: Iterable[int], at_ns: int) -> "ProcessorTime":
        """Reads the times now. Raises OSError if one of the processes has ended."""
        stat = Path("/proc/stat").read_text()
        process_stats = [Path(f"/proc/{number}/stat").read_text() for number in process_ids]
        return cls.parse(stat, process_stats, at_ns)

    @classmethod
    def parse(cls, stat: str, process_stats: Iterable[str], at_ns: int) -> "ProcessorTime":
        """Parses the text of /proc/stat and that of /proc/PID/stat of each of the server's
        processes.
        """
        of_all = [int(word) for word in stat.splitlines()[0].split()[1:]]
        return cls(
            at_ns,
            busy_ns=sum(of_all[field] for field in _BUSY_FIELDS) * _NS_PER_TICK,
            process_ns=sum(_process_ticks(text) for text in process_stats) * _NS_PER_TICK,
            stolen_ns=of_all[_STOLEN_FIELD] * _NS_PER_TICK,
        )


def _fields(process_stat: str) -> Sequence[str]:
    return process_stat.rpartition(")")[2].split()


def _process_ticks(process_stat: str) -> int:
    fields = _fields(process_stat)
    return sum(int(fields[field]) for field in _PROCESS_FIELDS)


@dataclass(frozen=True)
class CoreShares:
    """The cores in use on average; 0.5 is half of one core.

    `other` is the use by other programs than server and generator.
    """

    server: float
    generator: float
    other: float
    stolen: float


def core_shares(before: ProcessorTime, after: ProcessorTime, generator_ns: int) -> CoreShares:
    """The use of the cores between two instants; the process is the server."""
    took_ns = max(after.at_ns - before.at_ns, 1)
    server_ns = after.process_ns - before.process_ns
    # The kernel counts whole ticks, so a small difference can be below 0.
    other_ns = max(after.busy_ns - before.busy_ns - server_ns - generator_ns, 0)
    stolen_ns = after.stolen_ns - before.stolen_ns
    shares = (part_ns / took_ns for part_ns in (server_ns, generator_ns, other_ns, stolen_ns))
    return CoreShares(*(round(share, 3) for share in shares))


def with_processor_time(
    process_ids: Sequence[int], clock: Clock, run: Callable[[], Outcome]
) -> tuple[Outcome, ProcessorTime, ProcessorTime]:
    """Calls `run`. Returns its result, and the processor time at its begin and at its end.

    The processes are the server's. Raises OSError if one of them has ended.
    """
    before = ProcessorTime.now(process_ids, clock.now_ns())
    outcome = run()
    return outcome, before, ProcessorTime.now(process_ids, clock.now_ns())


def with_core_shares(
    process_id: int, clock: Clock, run: Callable[[], Outcome]
) -> tuple[Outcome, CoreShares]:
    """Calls `run`. Returns its result, and the use of the cores from its begin to its end.

    The process is the server. Raises OSError if it has ended.
    """
    outcome, before, after = with_processor_time([process_id], clock, run)
    return outcome, core_shares(before, after, outcome.cpu_ns)


def thread_times_ns(process_id: int, nice: int) -> Mapping[str, int]:
    """The processor time of the process's threads with that nice value, by thread id.

    Threads that have ended are not included. The kernel's ticks of 10 ms would be too coarse: a page's
    polls take less in some seconds (`schedstat`: Documentation/scheduler/sched-stats.rst of Linux).
    """
    times_ns = {}
    for stat in Path(f"/proc/{process_id}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            text = stat.read_text()
            if int(_fields(text)[_NICE_FIELD]) == nice:
                times_ns[stat.parent.name] = int((stat.parent / "schedstat").read_text().split()[0])
    return times_ns


def core_waits_ns(process_id: int, name: str) -> Mapping[str, int]:
    """The time for which the process's threads that have a name with this begin were ready to run and had no
    core, by thread id (`schedstat`).
    """
    waits_ns = {}
    for comm in Path(f"/proc/{process_id}/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if comm.read_text().startswith(name):
                waits_ns[comm.parent.name] = int((comm.parent / "schedstat").read_text().split()[1])
    return waits_ns


def spent_ns(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """The time spent between two readings. The time of threads that ended in between is lost."""
    return sum(time_ns - before.get(thread, 0) for thread, time_ns in after.items())


def worst_cores(runs: Iterable[CoreShares]) -> CoreShares:
    """The shares of the run that was disturbed most."""
    return max(runs, key=lambda cores: cores.other + cores.stolen)


def mean_cores(runs: Sequence[CoreShares]) -> CoreShares:
    """The mean shares of runs that took about the same time."""
    columns = zip(*(astuple(cores) for cores in runs), strict=True)
    return CoreShares(*(round(statistics.mean(column), 3) for column in columns))
