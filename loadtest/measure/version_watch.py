"""Watches the versions of a server that reports them only when it is asked.

A swap's windows are as exact as the pause between two looks: a window begins with the last look
before its first event and ends with the first look after its last event.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.measure.timeline import Span, SwapSpans
from serving.base.clock import Clock, seconds_since
from serving.base.errors import Unavailable
from serving.base.periodic_thread import PeriodicThread

LOOK_SECONDS = 0.05
"""The pause between two looks. A look costs a server some tenths of a millisecond."""

AVAILABLE, END = "AVAILABLE", "END"

States = Mapping[int, str]
"""The state of each known version, by the names of tensorflow.serving.ModelVersionStatus."""


@dataclass(frozen=True)
class Look:
    """The states at one instant of `Clock.now_ns`."""

    at_ns: int
    states: States


class VersionWatch:
    """Looks at a server's versions inside `with`, on its own thread.

    `look` returns None if the server gave no answer. `wait_for` and `looks` are for any thread.
    """

    def __init__(
        self, look: Callable[[], States | None], clock: Clock, period_seconds: float = LOOK_SECONDS
    ) -> None:
        self._look = look
        self._clock = clock
        # Guards the looks, and is notified of each.
        self._changed = threading.Condition()
        self._looks: list[Look] = []
        self._thread = PeriodicThread(
            "version-watch",
            self._take,
            wait_seconds=lambda: period_seconds,
            failure_event="version_watch_failed",
            at_start=self._take,
            clock=clock,
        )

    def __enter__(self) -> "VersionWatch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.stop()
        self._thread.join(None)

    def looks(self) -> Sequence[Look]:
        """The looks until now, oldest first."""
        with self._changed:
            return tuple(self._looks)

    def wait_for(self, is_there: Callable[[States], bool], timeout_seconds: float) -> bool:
        """Waits until the last look shows it; returns False at the timeout."""
        start_ns = self._clock.now_ns()
        with self._changed:
            while not (self._looks and is_there(self._looks[-1].states)):
                left_seconds = timeout_seconds - seconds_since(self._clock, start_ns)
                if left_seconds <= 0:
                    return False
                self._clock.wait(self._changed, left_seconds)
        return True

    def _take(self) -> None:
        states = self._look()
        if states is None:
            return
        with self._changed:
            self._looks.append(Look(self._clock.now_ns(), states))
            self._changed.notify_all()


def has_swapped(states: States, old: int) -> bool:
    """True if the version after `old` serves and `old` is gone."""
    return states.get(old + 1) == AVAILABLE and states.get(old) in (None, END)


def has_failed(states: States, version: int) -> bool:
    """True if `version` has ended. Ask only while the version should load."""
    return states.get(version) == END


def spans_of(looks: Sequence[Look], dropped_ns: Mapping[int, int]) -> tuple[SwapSpans, ...]:
    """Finds the swaps to the dropped versions.

    If a version was never seen before it was AVAILABLE, its load counts from its drop. Raises Unavailable
    if the looks do not show a whole swap.
    """
    return tuple(
        SwapSpans(
            version,
            _load_of(looks, version, at_ns),
            _unload_of([look for look in looks if look.at_ns >= at_ns], version - 1),
        )
        for version, at_ns in dropped_ns.items()
    )


def _load_of(looks: Sequence[Look], version: int, dropped_ns: int) -> Span:
    seen = _first(looks, lambda look: version in look.states, f"version {version}")
    serves = _first(
        looks, lambda look: look.states.get(version) == AVAILABLE, f"version {version} AVAILABLE"
    )
    if seen == serves or seen == 0:
        return Span(dropped_ns, looks[serves].at_ns)
    return Span(max(looks[seen - 1].at_ns, dropped_ns), looks[serves].at_ns)


def _unload_of(looks: Sequence[Look], version: int) -> Span:
    gone = _first(looks, lambda look: has_swapped(look.states, version), f"the end of {version}")
    served = [look for look in looks[:gone] if look.states.get(version) == AVAILABLE]
    return Span((served[-1] if served else looks[gone]).at_ns, looks[gone].at_ns)


def _first(looks: Sequence[Look], is_it: Callable[[Look], bool], what: str) -> int:
    """The index of the first look for which it holds. Raises Unavailable if there is none."""
    index = next((index for index, look in enumerate(looks) if is_it(look)), None)
    if index is None:
        raise Unavailable(f"no look at the server's versions showed {what}")
    return index
