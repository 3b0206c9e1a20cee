"""Decides which source is polled next, how many polls run at once, and which are stuck.

Pure: time is passed in. A poll reads a disk and normally takes milliseconds. A poll of a dead network
disk may never end, and its thread cannot be interrupted. So a poll has a time limit. Beyond it the
poll is *stuck*: it no longer counts towards the number of polls that may run at once. Another poll
tries its source again later, because the path may have recovered although the thread has not.

Each stuck poll holds a thread. At `stuck_count_max` stuck polls, no source in a directory that has a
stuck poll is tried again until a stuck poll ends. Sources in other directories go on.
"""

import heapq
from dataclasses import dataclass, field

from serving.base.clock import NS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class PollLimits:
    """`first_retry_ns` is the wait after a poll got stuck; it doubles up to `retry_ns_max`."""

    running_count_max: int = 8
    stuck_after_ns: int = 10 * NS_PER_SECOND
    first_retry_ns: int = 10 * NS_PER_SECOND
    retry_ns_max: int = 300 * NS_PER_SECOND
    stuck_count_max: int = 64


@dataclass(eq=False)
class Poll:
    """One poll of one source; compared by identity."""

    key: str
    number: int
    began_ns: int
    is_stuck: bool = False


@dataclass
class _Entry:
    """A source. If `due_ns` is None, it is not due until it is woken."""

    group: str
    due_ns: int | None = None
    polls: list[Poll] = field(default_factory=list)
    # The number of the latest poll that ended. The result of a poll that began earlier is out of date.
    ended_number: int = 0
    retry_ns: int = 0

    @property
    def is_running(self) -> bool:
        return any(not poll.is_stuck for poll in self.polls)

    @property
    def stuck_poll(self) -> Poll | None:
        """The first poll that is stuck, unless a later one has ended."""
        stuck = (poll for poll in self.polls if poll.is_stuck and poll.number > self.ended_number)
        return next(stuck, None)


class PollSchedule:
    """Not thread-safe: `PollerPool` holds a lock. The caller chooses the keys."""

    def __init__(self, limits: PollLimits) -> None:
        self._limits = limits
        self._entries: dict[str, _Entry] = {}
        # The polls under way, including polls of removed sources, and the group of each.
        self._polls: dict[Poll, str] = {}
        self._poll_count = 0
        # A heap of (due_ns, key). An item is skipped if its source's due_ns has changed since.
        self._due: list[tuple[int, str]] = []
        # Sources that are due, but held back while too many polls are stuck.
        self._held: set[str] = set()

    def add(self, key: str, group: str, due_ns: int | None) -> None:
        """Adds a source. `group` is its parent directory, because sources in it may hang together."""
        self._entries[key] = _Entry(group)
        self._set_due(key, due_ns)

    def remove(self, key: str) -> None:
        """Removes a source. Its polls under way go on and hold their threads."""
        self._entries.pop(key, None)
        self._held.discard(key)

    def wake(self, key: str, group: str | None, now_ns: int) -> None:
        """Makes `key` due now: after its poll under way, or at once if that poll is stuck.

        Keeps the group if `group` is None.
        """
        entry = self._entries.get(key)
        if entry is not None:
            entry.group = entry.group if group is None else group
            self._set_due(key, now_ns)

    @property
    def stuck_count(self) -> int:
        """The stuck polls under way, which is the number of threads that they hold."""
        return sum(poll.is_stuck for poll in self._polls)

    @property
    def running_count(self) -> int:
        """The polls under way that are not stuck."""
        return len(self._polls) - self.stuck_count

    def stuck_since_ns(self, key: str) -> int | None:
        """The start of the stuck poll of `key`.

        Returns None if no poll is stuck, or a later poll has ended.
        """
        entry = self._entries.get(key)
        poll = entry.stuck_poll if entry is not None else None
        return None if poll is None else poll.began_ns

    def stuck_keys(self) -> frozenset[str]:
        """The keys of the sources that are stuck."""
        keys = {poll.key for poll in self._polls if poll.is_stuck}
        return frozenset(key for key in keys if self.stuck_since_ns(key) is not None)

    def is_idle(self, key: str) -> bool:
        """True if no poll of `key` is under way, not even a stuck one."""
        return all(poll.key != key for poll in self._polls)

    def take(self, now_ns: int) -> Poll | None:
        """Begins and returns the poll that is most overdue; None if no poll is due or may begin."""
        if self.running_count >= self._limits.running_count_max:
            return None
        due_ns = self._first_due_ns()
        if due_ns is None or due_ns > now_ns:
            return None
        _, key = heapq.heappop(self._due)
        entry = self._entries[key]
        entry.due_ns = None
        self._poll_count += 1
        poll = Poll(key, self._poll_count, now_ns)
        entry.polls.append(poll)
        self._polls[poll] = entry.group
        return poll

    def ended(self, poll: Poll, now_ns: int, delay_seconds: float | None) -> None:
        """Records the end of a poll.

        Its source is due after `delay_seconds`; if that is None, once it is woken.
        """
        del self._polls[poll]
        if poll.is_stuck:
            self._release_held()
        entry = self._entries.get(poll.key)
        if entry is None or poll not in entry.polls:
            return
        entry.polls.remove(poll)
        if poll.number < entry.ended_number:
            return
        entry.ended_number, entry.retry_ns = poll.number, 0
        # A source that was woken meanwhile is due at once. After a stuck poll, `due_ns` is only the retry,
        # which is not needed any more.
        woken_ns = None if poll.is_stuck else entry.due_ns
        delay_ns = None if delay_seconds is None else round(delay_seconds * NS_PER_SECOND)
        self._set_due(
            poll.key, woken_ns if delay_ns is None else _first(woken_ns, now_ns + delay_ns)
        )

    def note_stuck(self, now_ns: int) -> list[Poll]:
        """Marks and returns the polls that have newly exceeded the time limit."""
        stuck = [poll for poll in self._polls if self._is_over(poll, now_ns)]
        for poll in stuck:
            poll.is_stuck = True
            entry = self._entries.get(poll.key)
            if entry is not None and poll in entry.polls:
                doubled_ns = max(self._limits.first_retry_ns, 2 * entry.retry_ns)
                entry.retry_ns = min(doubled_ns, self._limits.retry_ns_max)
                self._set_due(poll.key, _first(entry.due_ns, now_ns + entry.retry_ns))
        return stuck

    def next_due_ns(self) -> int | None:
        """The next instant for `take` or `note_stuck`; None if time alone makes nothing due."""
        instants = [
            poll.began_ns + self._limits.stuck_after_ns for poll in self._polls if not poll.is_stuck
        ]
        due_ns = self._first_due_ns()
        if due_ns is not None and len(instants) < self._limits.running_count_max:
            instants.append(due_ns)
        return min(instants, default=None)

    def _is_over(self, poll: Poll, now_ns: int) -> bool:
        return not poll.is_stuck and now_ns - poll.began_ns >= self._limits.stuck_after_ns

    def _set_due(self, key: str, due_ns: int | None) -> None:
        self._entries[key].due_ns = due_ns
        if due_ns is not None:
            heapq.heappush(self._due, (due_ns, key))

    def _first_due_ns(self) -> int | None:
        """Finds the time when the first source that may be polled is due.

        Drops outdated items from the heap, and moves sources that may not be tried to `_held`.
        """
        while self._due:
            due_ns, key = self._due[0]
            entry = self._entries.get(key)
            if entry is not None and entry.due_ns == due_ns and not entry.is_running:
                if self._may_try(entry):
                    return due_ns
                self._held.add(key)
            # A source with a running poll comes back when that poll has ended or is stuck.
            heapq.heappop(self._due)
        return None

    def _may_try(self, entry: _Entry) -> bool:
        """True if one more thread may be lost, because this poll may get stuck too."""
        if self.stuck_count < self._limits.stuck_count_max:
            return True
        return all(group != entry.group for poll, group in self._polls.items() if poll.is_stuck)

    def _release_held(self) -> None:
        for key in self._held:
            self._set_due(key, self._entries[key].due_ns)
        self._held.clear()


def _first(left_ns: int | None, right_ns: int) -> int:
    return right_ns if left_ns is None else min(left_ns, right_ns)
