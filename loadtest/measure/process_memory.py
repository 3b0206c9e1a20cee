"""The resident memory of a process, over time."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.base.clock import Clock
from serving.base.periodic_thread import PeriodicThread

SOURCE = "RssAnon + RssFile + RssShmem of /proc/PID/status"

# Not from smaps_rollup, which walks the page tables while the server waits for their lock.
_FIELDS = ("RssAnon", "RssFile", "RssShmem")
_KB_BYTES = 1024


@dataclass(frozen=True)
class Resident:
    """Resident bytes at one instant; `anonymous_bytes` excludes the page cache of files."""

    at_ns: int
    total_bytes: int
    anonymous_bytes: int


def resident(process_id: int, clock: Clock) -> Resident | None:
    """Reads the resident memory now; None if the process has ended."""
    try:
        text = Path(f"/proc/{process_id}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return parse(text, clock.now_ns())


def resident_of_all(process_ids: Iterable[int], clock: Clock) -> Resident | None:
    """Adds up the resident memory of the processes that live; None if all have ended.

    Memory that they share counts once for each.
    """
    each = [one for number in process_ids if (one := resident(number, clock)) is not None]
    if not each:
        return None
    return Resident(
        each[-1].at_ns,
        sum(one.total_bytes for one in each),
        sum(one.anonymous_bytes for one in each),
    )


def parse(status: str, at_ns: int) -> Resident | None:
    """Parses the text of /proc/PID/status; returns None if the process has released its memory."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if any(field not in fields for field in _FIELDS):
        return None
    anonymous, file, shared = (int(fields[field].split()[0]) * _KB_BYTES for field in _FIELDS)
    return Resident(at_ns, anonymous + file + shared, anonymous + shared)


class MemoryWatch:
    """Samples the memory of processes inside `with`, on its own thread: 20 times a second, 50 µs
    each.
    """

    def __init__(
        self, process_ids: Sequence[int], clock: Clock, period_seconds: float = 0.05
    ) -> None:
        self._process_ids = process_ids
        self._clock = clock
        self._period_seconds = period_seconds
        self._lock = threading.Lock()
        self._samples: list[Resident] = []
        self._thread = PeriodicThread(
            "memory-watch",
            self._take,
            wait_seconds=lambda: self._period_seconds,
            failure_event="memory_watch_failed",
            at_start=self._take,
            at_end=self._take,
            clock=clock,
        )

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.stop()
        self._thread.join(None)

    def samples(self) -> Sequence[Resident]:
        """The samples until now, oldest first."""
        with self._lock:
            return tuple(self._samples)

    def watch_closely(self) -> None:
        """Samples ten times as often from now on, for a process that is about to end."""
        self._period_seconds /= 10
        self._thread.wake()

    def _take(self) -> None:
        sample = resident_of_all(self._process_ids, self._clock)
        if sample is None:
            self._thread.stop()
            return
        with self._lock:
            self._samples.append(sample)
