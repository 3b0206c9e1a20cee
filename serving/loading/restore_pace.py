"""The pace of restores: unlimited, a fixed rate, or as fast as live requests allow.

A restore moves gigabytes through the memory bandwidth that it shares with requests. The guard slows
it while recent requests are slower than before the load. It uses additive increase and multiplicative
decrease, as congestion control does (Jacobson 1988).
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
"""The data plane's value for an unlimited pace."""

GUARD_PERIOD_SECONDS = 0.1
"""The period of the guard: a fraction of the second over which it takes p99."""

_SLOWEST_BYTES_PER_SECOND = 16_000_000  # restores 500 MB in about half a minute
_FASTEST_BYTES_PER_SECOND = 4_096_000_000  # more than a core can restore: in effect unlimited
_STEP_BYTES_PER_SECOND = 128_000_000

_log = structlog.get_logger(__name__)


class RestorePace(Protocol):
    """Decides how fast a load may restore."""

    def applied_to(self, load: PacedLoad) -> AbstractContextManager[None]:
        """Paces the load while the context is entered."""
        ...

    def stop(self) -> None:
        """Ends its thread, if it has one. Call it when no restore runs any more."""
        ...


class FixedPace:
    """Restores at a fixed `bytes_per_second`; 0 is UNLIMITED."""

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
    """The guard's settings.

    `factor` is the allowed ratio of p99 during and before the load. `bytes_per_second_max` is the
    fastest pace; 0: no limit.
    """

    factor: float
    bytes_per_second_max: int = UNLIMITED


def next_bytes_per_second(
    current: int, *, p99_ns: int, baseline_ns: int, settings: GuardSettings
) -> int:
    """Returns the next pace, given p99 of the last second and before the load. Pure.

    The pace is halved while p99 is above `factor` times the baseline, else it is raised by one step. If
    either period had no requests (0), the pace is the fastest.
    """
    fastest = settings.bytes_per_second_max or _FASTEST_BYTES_PER_SECOND
    if p99_ns == 0 or baseline_ns == 0:
        return fastest
    if p99_ns > settings.factor * baseline_ns:
        return min(fastest, max(_SLOWEST_BYTES_PER_SECOND, current // 2))
    return min(fastest, current + _STEP_BYTES_PER_SECOND)


class GuardedPace:
    """Restores as fast as live requests allow (`--swap_p99_guard`).

    The baseline is p99 of all answers of the live versions at the start of the restore. The thread
    `swap-guard` checks while a restore runs, and sleeps otherwise. The constructor starts it, because
    a thread inherits the priority of its maker, and a loader thread's is the lowest.
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
    """The state of one guarded restore."""

    baseline_ns: int
    bytes_per_second: int
