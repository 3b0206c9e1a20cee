"""The order of looks at sources, how many run at once, and which are stuck. Pure: time is passed in.

A look reads a disk and normally takes milliseconds. A look at a dead network disk may never end,
and its thread cannot be interrupted. So a look has a time limit. Beyond it the look is *stuck*: it
no longer counts among those that may run at once, and its source is tried again later by another
look, because the path may have recovered although the thread has not.

Each stuck look holds a thread. At `stuck_count_max` stuck looks, no source in a directory that has a
stuck look is tried again until a stuck look ends. Sources in other directories go on.
"""

import heapq
from dataclasses import dataclass, field

from serving.base.clock import NS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class PollLimits:
    """`first_retry_ns` is the wait after a look got stuck; it doubles up to `retry_ns_max`."""

    running_count_max: int = 8
    stuck_after_ns: int = 10 * NS_PER_SECOND
    first_retry_ns: int = 10 * NS_PER_SECOND
    retry_ns_max: int = 300 * NS_PER_SECOND
    stuck_count_max: int = 64


@dataclass(eq=False)
class Look:
    """One look at one source; compared by identity."""

    key: str
    number: int
    began_ns: int
    is_stuck: bool = False


@dataclass
class _Entry:
    """A source. If `due_ns` is None, it is not due until it is woken."""

    group: str
    due_ns: int | None = None
    looks: list[Look] = field(default_factory=list)
    # The number of the latest look that ended. Results of looks that began earlier are out of date.
    ended_number: int = 0
    retry_ns: int = 0

    @property
    def is_running(self) -> bool:
        return any(not look.is_stuck for look in self.looks)

    @property
    def stuck_look(self) -> Look | None:
        """The first look that is stuck, unless a later one has ended."""
        stuck = (look for look in self.looks if look.is_stuck and look.number > self.ended_number)
        return next(stuck, None)


class PollSchedule:
    """Not thread-safe: `PollerPool` holds a lock. The caller chooses the keys."""

    def __init__(self, limits: PollLimits) -> None:
        self._limits = limits
        self._entries: dict[str, _Entry] = {}
        # The looks under way, including looks at removed sources, and the group of each.
        self._looks: dict[Look, str] = {}
        self._look_count = 0
        # A heap of (due_ns, key). An item is skipped if its source's due_ns has changed since.
        self._due: list[tuple[int, str]] = []
        # Sources that are due, but held back while too many looks are stuck.
        self._held: set[str] = set()

    def add(self, key: str, group: str, due_ns: int | None) -> None:
        """Adds a source. `group` is its parent directory: sources in it may hang together."""
        self._entries[key] = _Entry(group)
        self._set_due(key, due_ns)

    def remove(self, key: str) -> None:
        """Removes a source. Its looks under way go on and hold their threads."""
        self._entries.pop(key, None)
        self._held.discard(key)

    def wake(self, key: str, group: str, now_ns: int) -> None:
        """Makes `key` due now: after its look under way, or at once if that is stuck."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.group = group
            self._set_due(key, now_ns)

    @property
    def stuck_count(self) -> int:
        """The stuck looks under way, which is the number of threads that they hold."""
        return sum(look.is_stuck for look in self._looks)

    @property
    def running_count(self) -> int:
        """The looks under way that are not stuck."""
        return len(self._looks) - self.stuck_count

    def stuck_since_ns(self, key: str) -> int | None:
        """Returns the start of the stuck look at `key`; None if no look is stuck or one has ended since."""
        entry = self._entries.get(key)
        look = entry.stuck_look if entry is not None else None
        return None if look is None else look.began_ns

    def stuck_keys(self) -> frozenset[str]:
        """Returns the keys of the sources that are stuck."""
        keys = {look.key for look in self._looks if look.is_stuck}
        return frozenset(key for key in keys if self.stuck_since_ns(key) is not None)

    def is_idle(self, key: str) -> bool:
        """Returns True if no look at `key` is under way, not even a stuck one."""
        return all(look.key != key for look in self._looks)

    def take(self, now_ns: int) -> Look | None:
        """Begins and returns the look that is most overdue; None if no look is due or may begin."""
        if self.running_count >= self._limits.running_count_max:
            return None
        due_ns = self._first_due_ns()
        if due_ns is None or due_ns > now_ns:
            return None
        _, key = heapq.heappop(self._due)
        entry = self._entries[key]
        entry.due_ns = None
        self._look_count += 1
        look = Look(key, self._look_count, now_ns)
        entry.looks.append(look)
        self._looks[look] = entry.group
        return look

    def ended(self, look: Look, now_ns: int, delay_seconds: float | None) -> None:
        """Records the end of a look. Its source is due after `delay_seconds`; None: when woken."""
        del self._looks[look]
        if look.is_stuck:
            self._release_held()
        entry = self._entries.get(look.key)
        if entry is None or look not in entry.looks:
            return
        entry.looks.remove(look)
        if look.number < entry.ended_number:
            return
        entry.ended_number, entry.retry_ns = look.number, 0
        # A source that was woken meanwhile is due at once. After a stuck look `due_ns` is the retry,
        # and is not needed any more.
        woken_ns = None if look.is_stuck else entry.due_ns
        delay_ns = None if delay_seconds is None else round(delay_seconds * NS_PER_SECOND)
        self._set_due(
            look.key, woken_ns if delay_ns is None else _first(woken_ns, now_ns + delay_ns)
        )

    def note_stuck(self, now_ns: int) -> list[Look]:
        """Marks and returns the looks that have newly exceeded the time limit."""
        stuck = [look for look in self._looks if self._is_over(look, now_ns)]
        for look in stuck:
            look.is_stuck = True
            entry = self._entries.get(look.key)
            if entry is not None and look in entry.looks:
                doubled_ns = max(self._limits.first_retry_ns, 2 * entry.retry_ns)
                entry.retry_ns = min(doubled_ns, self._limits.retry_ns_max)
                self._set_due(look.key, _first(entry.due_ns, now_ns + entry.retry_ns))
        return stuck

    def next_due_ns(self) -> int | None:
        """Returns the next instant for `take` or `note_stuck`; None if time alone makes nothing due."""
        instants = [
            look.began_ns + self._limits.stuck_after_ns for look in self._looks if not look.is_stuck
        ]
        due_ns = self._first_due_ns()
        if due_ns is not None and len(instants) < self._limits.running_count_max:
            instants.append(due_ns)
        return min(instants, default=None)

    def _is_over(self, look: Look, now_ns: int) -> bool:
        return not look.is_stuck and now_ns - look.began_ns >= self._limits.stuck_after_ns

    def _set_due(self, key: str, due_ns: int | None) -> None:
        self._entries[key].due_ns = due_ns
        if due_ns is not None:
            heapq.heappush(self._due, (due_ns, key))

    def _first_due_ns(self) -> int | None:
        """Returns when the first source that may be looked at is due.

        Drops outdated items from the heap, and moves sources that may not be tried to `_held`.
        """
        while self._due:
            due_ns, key = self._due[0]
            entry = self._entries.get(key)
            if entry is not None and entry.due_ns == due_ns and not entry.is_running:
                if self._may_try(entry):
                    return due_ns
                self._held.add(key)
            # A source with a running look comes back when that look has ended or is stuck.
            heapq.heappop(self._due)
        return None

    def _may_try(self, entry: _Entry) -> bool:
        """Returns True if one more thread may be lost, in case this look gets stuck too."""
        if self.stuck_count < self._limits.stuck_count_max:
            return True
        return all(group != entry.group for look, group in self._looks.items() if look.is_stuck)

    def _release_held(self) -> None:
        for key in self._held:
            self._set_due(key, self._entries[key].due_ns)
        self._held.clear()


def _first(left_ns: int | None, right_ns: int) -> int:
    return right_ns if left_ns is None else min(left_ns, right_ns)
