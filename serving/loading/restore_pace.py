"""How fast restores read: as fast as they can, or as the operator says, or as live requests allow.

A restore moves gigabytes through the memory that requests share with it. The guard slows it while
the requests of the last moments are slower than they were before the load: additive increase,
multiplicative decrease, as congestion control does it (Jacobson 1988).
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from serving.base.clock import Clock
from serving.base.periodic_thread import Watch
from serving.data_plane.loads import LatencyWindow, PacedLoad

UNLIMITED = 0
"""As the data plane has it."""

GUARD_PERIOD_SECONDS = 0.1
"""How often the guard looks: a few times in the second that it judges by."""

_SLOWEST_BYTES_PER_SECOND = 16_000_000  # a 500 MB version still comes within half a minute
_FASTEST_BYTES_PER_SECOND = 4_096_000_000  # above what a core restores: as good as unlimited
_STEP_BYTES_PER_SECOND = 128_000_000

_log = structlog.get_logger(__name__)


class RestorePace(Protocol):
    """Decides how fast a load may restore."""

    def applied_to(self, load: PacedLoad) -> AbstractContextManager[None]:
        """Within it the load restores at this pace."""
        ...

    def stop(self) -> None:
        """Ends its thread, if it has one. No restore runs any more."""
        ...


class FixedPace:
    """`bytes_per_second` all the time; UNLIMITED is 0."""

    def __init__(self, bytes_per_second: int = UNLIMITED) -> None:
        self._bytes_per_second = bytes_per_second

    @contextmanager
    def applied_to(self, load: PacedLoad) -> Iterator[None]:
        """See `RestorePace`."""
        load.set_restore_bytes_per_second(self._bytes_per_second)
        yield

    def stop(self) -> None:
        """See `RestorePace`."""


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """`factor`: how much slower than before the load p99 may get. `bytes_per_second_max` 0: no limit."""

    factor: float
    bytes_per_second_max: int = UNLIMITED


def next_bytes_per_second(
    current: int, *, p99_ns: int, baseline_ns: int, settings: GuardSettings
) -> int:
    """Bytes per second from now on, given p99 of the last second and before the load. Pure.

    Halved while p99 is above `factor` times the baseline, else raised step by step. Without requests
    in either (0) there is nobody to guard.
    """
    fastest = settings.bytes_per_second_max or _FASTEST_BYTES_PER_SECOND
    if p99_ns == 0 or baseline_ns == 0:
        return fastest
    if p99_ns > settings.factor * baseline_ns:
        return min(fastest, max(_SLOWEST_BYTES_PER_SECOND, current // 2))
    return min(fastest, current + _STEP_BYTES_PER_SECOND)


class GuardedPace:
    """Restores as fast as live requests allow (`--swap_p99_guard`).

    The baseline is p99 of what the live versions have answered when the restore begins. A thread
    `swap-guard` looks while a restore runs, and sleeps otherwise. It is made by whoever makes this,
    as a thread inherits the priority of its maker, and a loader's is the lowest.
    """

    def __init__(self, settings: GuardSettings, *, window: LatencyWindow, clock: Clock) -> None:
        self._settings = settings
        self._window = window
        self._watch: Watch[PacedLoad, _Guarded] = Watch(
            "swap-guard", self._look, period_seconds=GUARD_PERIOD_SECONDS, clock=clock
        )
        self._watch.start()

    @contextmanager
    def applied_to(self, load: PacedLoad) -> Iterator[None]:
        """See `RestorePace`."""
        guarded = _Guarded(
            baseline_ns=self._window.p99_ns_since_start(),
            bytes_per_second=self._settings.bytes_per_second_max or _FASTEST_BYTES_PER_SECOND,
        )
        load.set_restore_bytes_per_second(guarded.bytes_per_second)
        with self._watch.watching(load, guarded):
            yield

    def stop(self) -> None:
        """See `RestorePace`."""
        self._watch.stop()

    def _look(self, loads: Mapping[PacedLoad, "_Guarded"]) -> None:
        p99_ns = self._window.p99_ns_of_last_second()
        for load, guarded in loads.items():
            chosen = next_bytes_per_second(
                guarded.bytes_per_second,
                p99_ns=p99_ns,
                baseline_ns=guarded.baseline_ns,
                settings=self._settings,
            )
            if chosen < guarded.bytes_per_second:
                _log.info("restore_slowed", bytes_per_second=chosen)
            guarded.bytes_per_second = chosen
            load.set_restore_bytes_per_second(chosen)


@dataclass
class _Guarded:
    """One restore under guard."""

    baseline_ns: int
    bytes_per_second: int
