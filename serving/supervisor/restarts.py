"""Decides what follows the end of a server: which versions are blocked, and when it starts again. Pure.

The server ends for good on a clean exit, on a configuration error, and after a signal that asked it
to stop. Otherwise it starts again, for ever.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.closed_pipe import EXIT_USAGE
from serving.core.blocked_versions import (
    CRASH_WAIT_SECONDS_MAX,
    BlockedBy,
    BlockedVersion,
    BlockedVersions,
)
from serving.supervisor.crash_page import MarkedVersion

CRASH_SIGNALS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGTRAP,
    }
)
"""The signals of a fault in the server's code.

Other signals, like SIGKILL, are no version's fault, because a person sends them, or the kernel that looks
for memory.
"""


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """The times of restarts.

    A version that crashed and has no predecessor is refused for `version_seconds`. The time doubles
    with each further crash, up to `version_seconds_max`.

    A crash without a version to blame restarts the server at once. From the crash number `loop_count`
    within `loop_seconds` on, the restart waits 1 s, 2 s and so on, up to `delay_seconds_max`.
    """

    version_seconds: float = 1.0
    version_seconds_max: float = CRASH_WAIT_SECONDS_MAX
    loop_count: int = 3
    loop_seconds: float = 60.0
    delay_seconds: float = 1.0
    delay_seconds_max: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a server: by `signal`, or with `status` if `signal` is 0.

    `has_begun_loads` is False for a server that did not get as far as its first load.
    """

    signal: int = 0
    status: int = 0
    suspects: tuple[MarkedVersion, ...] = ()
    has_begun_loads: bool = True
    is_stop_requested: bool = False

    @property
    def cause(self) -> str:
        if not self.signal:
            return f"it ended with status {self.status}"
        try:
            return f"it died by {signal.Signals(self.signal).name}"
        except ValueError:
            return f"it died by signal {self.signal}"


@dataclass(frozen=True)
class Exit:
    """The supervisor ends with this status."""

    status: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The server starts again after `delay_seconds`, with `blocks` added to its blocked versions."""

    delay_seconds: float = 0.0
    blocks: Mapping[MarkedVersion, BlockedVersion] = field(default_factory=dict)


@dataclass(frozen=True)
class _CrashRecord:
    """The crashes of a version in a row: their count, the last back-off and its start (monotonic)."""

    count: int
    seconds: float
    at_ns: int


class Restarts:
    """Remembers the crashes of one supervisor, and decides on each. One thread."""

    def __init__(self, clock: Clock, limits: RestartLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or RestartLimits()
        self._records: dict[tuple[str, int], _CrashRecord] = {}
        # The times of crashes in a row that no version is blamed for (monotonic).
        self._unexplained_ns: list[int] = []

    def decide(self, death: Death, blocked: Mapping[str, BlockedVersions]) -> Exit | Restart:
        """Decides what follows `death`. `blocked` are the versions that are blocked already."""
        status = 128 + death.signal if death.signal else death.status
        if death.is_stop_requested:
            return Exit(status)
        if not death.signal and death.status in (0, EXIT_USAGE):
            return Exit(status)
        if not death.signal and not death.has_begun_loads:
            # This is a start that failed, and not a crash. Another start would most likely fail too.
            return Exit(status)
        blocks = self._blocks(death, blocked) if death.signal in CRASH_SIGNALS else {}
        if blocks:
            return Restart(blocks=blocks)
        return Restart(delay_seconds=self.delay_seconds())

    def delay_seconds(self) -> float:
        """Counts a crash without a blocked version, and returns the time until the restart."""
        limits, now_ns = self._limits, self._clock.now_ns()
        times = self._unexplained_ns
        # A back-off is a part of the loop, so it must not end the loop.
        loop_ns = (limits.loop_seconds + self._delay_after(len(times))) * NS_PER_SECOND
        if times and now_ns - times[-1] > loop_ns:
            times.clear()
        times.append(now_ns)
        return self._delay_after(len(times))

    def _delay_after(self, crash_count: int) -> float:
        excess = crash_count - self._limits.loop_count
        if excess < 0:
            return 0.0
        return _doubled(self._limits.delay_seconds, excess, self._limits.delay_seconds_max)

    def _blocks(
        self, death: Death, blocked: Mapping[str, BlockedVersions]
    ) -> dict[MarkedVersion, BlockedVersion]:
        wall_ns = self._clock.wall_ns()
        blocks = {}
        for suspect in death.suspects:
            before = blocked.get(suspect.name, {}).get(suspect.version)
            doing = "loaded" if suspect.is_loading else "ran"
            not_before_ns = wall_ns + round(self._back_off_seconds(suspect) * NS_PER_SECOND)
            if before is not None and before.needs_operator:
                # An operator's block stays an operator's block: its version served as the fallback.
                blocks[suspect] = replace(before, not_before_wall_ns=not_before_ns)
                continue
            blocks[suspect] = BlockedVersion(
                by=BlockedBy.CRASH,
                reason=f"the server died while it {doing} this version: {death.cause}",
                since_wall_ns=wall_ns,
                not_before_wall_ns=not_before_ns,
            )
        return blocks

    def _back_off_seconds(self, suspect: MarkedVersion) -> float:
        """Counts a crash of a version, and returns the time for which it is refused if it has no
        predecessor.
        """
        limits, now_ns = self._limits, self._clock.now_ns()
        key = (suspect.name, suspect.version)
        last = self._records.get(key)
        count = 1
        if last is not None:
            # A version counts as sound after it has lived ten times as long as it was refused.
            sound_seconds = max(limits.loop_seconds, 10 * last.seconds)
            count = last.count + 1 if now_ns - last.at_ns < sound_seconds * NS_PER_SECOND else 1
        seconds = _doubled(limits.version_seconds, count - 1, limits.version_seconds_max)
        self._records[key] = _CrashRecord(count, seconds, now_ns)
        return seconds


def _doubled(seconds: float, times: int, seconds_max: float) -> float:
    # The exponent is bounded too, because 2.0 ** 1024 is an error.
    return min(seconds * 2.0 ** min(times, 60), seconds_max)
