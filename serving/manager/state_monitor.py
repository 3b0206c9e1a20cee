"""StateMonitor: the status of every version, to read or to wait for."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.core.servable import AVAILABLE, END, HEALTHY, ServableId, ServableStatus

ENDED_COUNT_MAX = 32
"""The number of ended versions that are kept of each model, the latest to end.

People look for yesterday's failure, but with a new version every minute the status must not grow without
limit. Failed versions whose files are watched do not count.
"""

UNLOADED_SECONDS_MAX = 3_600.0
"""The time for which an unloaded version is remembered, and a failed one that is gone from the disk:
the person who removed it may not be the one who looks for the reason of the failure."""

FAILED_SECONDS_MAX = 86_400.0
"""The time for which a failed version is remembered whose files are still on disk, but not watched
any more because another version is aspired. A failed version whose files are watched stays."""


@dataclass(frozen=True)
class _Seen:
    """The last report of a source on the versions of a model."""

    on_disk: frozenset[int]
    watched: frozenset[int]


# Versions in ascending order, by model.
Statuses = Mapping[str, tuple[ServableStatus, ...]]
Listener = Callable[[ServableStatus], None]
_log = structlog.get_logger(__name__)


class StateMonitor:
    """The last status of every version. Any thread may read or wait; one thread records.

    Listeners run on the recording thread (the manager's control thread) in the order of the changes,
    outside the lock, and must return at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        # The versions of each model, in the order of their last changes.
        self._by_version: dict[str, dict[int, ServableStatus]] = {}
        self._statuses: dict[str, tuple[ServableStatus, ...]] = {}
        # The statuses that all listeners have seen.
        self._told: dict[str, tuple[ServableStatus, ...]] = {}
        self._seen: dict[str, _Seen] = {}
        self._listeners: list[Listener] = []
        self._stage_listeners: list[Listener] = []
        self._forget_listeners: list[Callable[[str], None]] = []
        self._has_ended_waits = False

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` with each status whose state is new, from now on."""
        self._listeners.append(listener)

    def add_stage_listener(self, listener: Listener) -> None:
        """Calls `listener` with each status, also if only its stage is new, from now on."""
        self._stage_listeners.append(listener)

    def add_forget_listener(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with the name of each model of which `statuses` forgets an ended version.

        It is called on the thread that reads. Call this before the first status.
        """
        self._forget_listeners.append(listener)

    def record(self, status: ServableStatus) -> None:
        """Stores the status of one version, calls the listeners, and then wakes the waiting threads.

        So whoever was told of a change by `wait_until` finds it in all that listeners keep up to date.
        """
        with self._changed:
            versions = self._by_version.setdefault(status.id.name, {})
            before = versions.pop(status.id.version, None)
            versions[status.id.version] = status
            self._forget_ended(status.id.name)
            self._update(status.id.name)
        is_state_new = before is None or before.state is not status.state
        listeners = self._listeners if is_state_new else []
        self._call([*self._stage_listeners, *listeners], status)
        with self._changed:
            self._tell(status.id.name)
            self._changed.notify_all()

    def versions_seen(self, name: str, on_disk: frozenset[int], watched: frozenset[int]) -> None:
        """Replaces the versions of a model that are on disk, and those whose files its source watches.

        Both are empty for a model without a source. They decide how long a failure is remembered.
        """
        with self._changed:
            self._seen[name] = _Seen(on_disk, watched)

    def status(self, servable_id: ServableId) -> ServableStatus | None:
        """The status of one version; None if it was never recorded, or is forgotten."""
        with self._changed:
            return self._by_version.get(servable_id.name, {}).get(servable_id.version)

    def statuses(self) -> Statuses:
        """The status of every remembered version by model, as an immutable value.

        A model without a remembered version is not in it.
        """
        with self._changed:
            forgetful = [name for name in list(self._by_version) if self._forget_ended(name)]
            for name in forgetful:
                self._update(name)
                self._tell(name)
            statuses = MappingProxyType(dict(self._statuses))
        for name in forgetful:
            for listener in self._forget_listeners:
                listener(name)
        return statuses

    def versions(self, name: str) -> tuple[ServableStatus, ...]:
        """The status of every version of one model, in ascending order."""
        with self._changed:
            return self._statuses.get(name, ())

    def failed_versions(self, name: str) -> frozenset[int]:
        """The versions of a model whose last life has ended with an error."""
        with self._changed:
            ended = [item for item in self._statuses.get(name, ()) if item.state is END]
        return frozenset(item.id.version for item in ended if item.health != HEALTHY)

    def lost_versions(self, name: str) -> dict[int, int]:
        """The versions whose load failed because their directory was gone.

        The values are the `found_at_ns` of the files that were to be loaded.
        """
        ended = [item for item in self.versions(name) if item.state is END]
        return {item.id.version: item.found_at_ns for item in ended if item.health.are_files_gone}

    def available_versions(self, name: str) -> frozenset[int]:
        """The versions of a model that are AVAILABLE."""
        return frozenset(item.id.version for item in self.versions(name) if item.state is AVAILABLE)

    def wait_until(
        self, predicate: Callable[[Statuses], bool], timeout_seconds: float | None = None
    ) -> bool:
        """Waits until `predicate` holds for what listeners have seen. Returns False at the timeout or after
        `end_waits`.

        `timeout_seconds` of None waits without limit.
        """
        start_ns = self._clock.now_ns()
        with self._changed:
            while not predicate(MappingProxyType(self._told)):
                if self._has_ended_waits:
                    return False
                remaining_seconds = None
                if timeout_seconds is not None:
                    waited_seconds = (self._clock.now_ns() - start_ns) / NS_PER_SECOND
                    remaining_seconds = timeout_seconds - waited_seconds
                    if remaining_seconds <= 0:
                        return False
                self._clock.wait(self._changed, remaining_seconds)
        return True

    def end_waits(self) -> None:
        """Ends all waits, present and future, because the server stops."""
        with self._changed:
            self._has_ended_waits = True
            self._changed.notify_all()

    def _update(self, name: str) -> None:
        versions = self._by_version[name]
        if versions:
            self._statuses[name] = _ascending(versions)
        else:
            del self._by_version[name]
            self._statuses.pop(name, None)

    def _tell(self, name: str) -> None:
        versions = self._statuses.get(name)
        if versions is None:
            self._told.pop(name, None)
        else:
            self._told[name] = versions

    def _forget_ended(self, name: str) -> bool:
        """Forgets ended versions that are due; returns True if there was one."""
        versions, seen = self._by_version[name], self._seen.get(name)
        count_before = len(versions)
        ended = [item for item in versions.values() if item.state is END]
        past = [item for item in ended if not _is_watched(item, seen)]
        now_ns = self._clock.now_ns()
        for status in past[:-ENDED_COUNT_MAX]:
            del versions[status.id.version]
        for status in past[-ENDED_COUNT_MAX:]:
            seconds = _remembered_seconds(status, seen)
            if now_ns - status.state_changed_ns > seconds * NS_PER_SECOND:
                del versions[status.id.version]
        return len(versions) < count_before

    def _call(self, listeners: Sequence[Listener], status: ServableStatus) -> None:
        for listener in listeners:
            try:
                listener(status)
            except Exception:  # noqa: BLE001 (a bug in one listener must not stop the others)
                _log.exception("listener_failed", model=status.id.name, version=status.id.version)


def _is_watched(status: ServableStatus, seen: _Seen | None) -> bool:
    """True if the version has failed and its files are watched, so that it must not be forgotten."""
    return status.health != HEALTHY and seen is not None and status.id.version in seen.watched


def _remembered_seconds(status: ServableStatus, seen: _Seen | None) -> float:
    """The time for which an ended version that is not watched is remembered.

    A failure is remembered without limit until a source has reported the versions on disk.
    """
    if status.health == HEALTHY:
        return UNLOADED_SECONDS_MAX
    if seen is None:
        return inf
    return FAILED_SECONDS_MAX if status.id.version in seen.on_disk else UNLOADED_SECONDS_MAX


def _ascending(versions: Mapping[int, ServableStatus]) -> tuple[ServableStatus, ...]:
    return tuple(versions[version] for version in sorted(versions))
