"""Decides what follows the end of a server: which versions are blocked, and when it starts again. Pure.

The server is not started again after a clean exit, a configuration error, or a signal to stop. After any other
end it is started again, however often it ends.
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
"""The signals that the kernel sends for a fault in the server's code, so that a version may be blamed.

No version is blamed for other signals, like SIGKILL, because a person sends them, or the kernel when memory
runs out.
"""


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """The times of restarts.

    A version that crashed the server and has no predecessor is refused for `version_seconds`. The time
    doubles with each further crash, up to `version_seconds_max`.

    If no version is to blame for a crash, the server is started again at once. But from the crash with the
    number `loop_count` within `loop_seconds` on, its start waits for `delay_seconds`, then for twice as long,
    and so on up to `delay_seconds_max`.
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

    `has_begun_loads` is False for a server that ended before its first load began.
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
    """The decision that the supervisor ends, with this status."""

    status: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The decision that the server starts again after `delay_seconds`, with `blocks` as further blocked versions."""

    delay_seconds: float = 0.0
    blocks: Mapping[MarkedVersion, BlockedVersion] = field(default_factory=dict)


@dataclass(frozen=True)
class _CrashRecord:
    """The crashes of one version without a sound time between them.

    `count` is their number, `seconds` the last time for which the version was refused, and `at_ns` the start
    of that time (monotonic).
    """

    count: int
    seconds: float
    at_ns: int


class Restarts:
    """Remembers the crashes of one supervisor, and decides on each. One thread."""

    def __init__(self, clock: Clock, limits: RestartLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or RestartLimits()
        self._records: dict[tuple[str, int], _CrashRecord] = {}
        # The times of the last crashes for which no version was blamed (monotonic).
        self._unexplained_ns: list[int] = []

    def decide(self, death: Death, blocked: Mapping[str, BlockedVersions]) -> Exit | Restart:
        """Decides what follows `death`. `blocked` has the versions that are blocked already, by model."""
        status = 128 + death.signal if death.signal else death.status
        if death.is_stop_requested:
            return Exit(status)
        if not death.signal and death.status in (0, EXIT_USAGE):
            return Exit(status)
        if not death.signal and not death.has_begun_loads:
            # The start of the server has failed, which is no crash. Another start would most likely fail too.
            return Exit(status)
        blocks = self._blocks(death, blocked) if death.signal in CRASH_SIGNALS else {}
        if blocks:
            return Restart(blocks=blocks)
        return Restart(delay_seconds=self.delay_seconds())

    def delay_seconds(self) -> float:
        """Counts a crash for which no version is blocked, and returns the time until the restart."""
        limits, now_ns = self._limits, self._clock.now_ns()
        times = self._unexplained_ns
        # The delay before the last start is added, because the wait itself must not end a loop of crashes.
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
                # The version served as the fallback although an operator had blocked it. The operator's block
                # stays, and only its time changes.
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
        """Counts a crash of a version. Returns the time for which it is refused if it has no predecessor."""
        limits, now_ns = self._limits, self._clock.now_ns()
        key = (suspect.name, suspect.version)
        last = self._records.get(key)
        count = 1
        if last is not None:
            # A version counts as sound if it has run ten times as long as it was refused before.
            sound_seconds = max(limits.loop_seconds, 10 * last.seconds)
            count = last.count + 1 if now_ns - last.at_ns < sound_seconds * NS_PER_SECOND else 1
        seconds = _doubled(limits.version_seconds, count - 1, limits.version_seconds_max)
        self._records[key] = _CrashRecord(count, seconds, now_ns)
        return seconds


def _doubled(seconds: float, times: int, seconds_max: float) -> float:
    # The exponent has a limit, because 2.0 ** 1024 raises OverflowError.
    return min(seconds * 2.0 ** min(times, 60), seconds_max)
