"""Turns instants into windows: the requests that were in flight in each part of a swap. Pure.

All instants are nanoseconds of `Clock.now_ns`. `LogClock` converts the wall time of the server's
log to that clock.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.plan.plan import Outcome
from serving.base.clock import NS_PER_SECOND
from serving.base.errors import Unavailable

Mask = npt.NDArray[np.bool_]

LATE_NS = 2_000_000
"""A request issued this long after it was due marks a stretch in which the generator was late."""

# Replies that a stall delayed are read just after it.
_AFTER_STALL_NS = 1_000_000
# The after-effects of an unload: memory that is given back, cold caches.
_AFTER_UNLOAD_NS = NS_PER_SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Span:
    """The time from `begin_ns` to `end_ns`, both included."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class SwapSpans:
    """One swap: the load of `version`, the unload of its predecessor, and the whole swap."""

    version: int
    load: Span
    unload: Span

    @property
    def swap(self) -> Span:
        """The span from the start of the load to one second after the unload."""
        return Span(self.load.begin_ns, self.unload.end_ns + _AFTER_UNLOAD_NS)


@dataclass(frozen=True)
class LogClock:
    """Converts the timestamps of a server's log to `Clock.now_ns`, to well below a millisecond.

    `offset_ns` is wall time minus monotonic time on the machine of both processes.
    """

    offset_ns: int

    def instant_ns(self, event: Mapping[str, Any]) -> int:
        """The instant at which the event was logged."""
        # Python 3.10 does not parse "Z".
        wall = datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00"))
        return (wall - _EPOCH) // timedelta(microseconds=1) * 1_000 - self.offset_ns


def swaps_of(
    events: Iterable[Mapping[str, Any]], model: str, clock: LogClock
) -> tuple[SwapSpans, ...]:
    """The swaps of `model` in the order of their loads.

    A version's load and the unload of the version before it are one swap, so the first load is not
    a swap. Raises Unavailable if one of a swap's four events is missing.
    """
    instants = {
        (event["event"], event["version"]): clock.instant_ns(event)
        for event in events
        if event.get("model") == model and "version" in event
    }
    versions = [version for event, version in instants if event == "load_started"]

    def span(begin: str, end: str, version: int) -> Span:
        try:
            return Span(instants[begin, version], instants[end, version])
        except KeyError as key:
            raise Unavailable(f"the server's log has no event {key} of {model}") from None

    return tuple(
        SwapSpans(
            new,
            span("load_started", "version_available", new),
            span("unload_started", "version_unloaded", old),
        )
        for old, new in itertools.pairwise(versions)
    )


def times_of_swaps(
    events: Iterable[Mapping[str, Any]], model: str, clock: LogClock
) -> tuple[Span, ...]:
    """The time of each swap, also if a version is loaded a second time.

    A swap begins with a load and ends one second after the next unload. The first load is not a swap.
    """
    begins_and_ends = [
        (event["event"], clock.instant_ns(event))
        for event in events
        if event.get("model") == model and event["event"] in ("load_started", "version_unloaded")
    ][1:]
    spans: list[Span] = []
    begin_ns: int | None = None
    for name, instant_ns in begins_and_ends:
        if name == "load_started":
            begin_ns = instant_ns if begin_ns is None else begin_ns
        elif begin_ns is not None:
            spans.append(Span(begin_ns, instant_ns + _AFTER_UNLOAD_NS))
            begin_ns = None
    return tuple(spans)


def late_stretches(outcome: Outcome) -> tuple[Span, ...]:
    """Finds the spans in which the generator was late by more than LATE_NS. Each lasts from the first late
    due time until the generator had caught up.
    """
    late = np.flatnonzero(outcome.issued_ns - outcome.scheduled_ns > LATE_NS)
    stretches: list[Span] = []
    for begin_ns, end_ns in zip(outcome.scheduled_ns[late], outcome.issued_ns[late], strict=True):
        if stretches and begin_ns <= stretches[-1].end_ns:
            stretches[-1] = Span(stretches[-1].begin_ns, int(end_ns))
        else:
            stretches.append(Span(int(begin_ns), int(end_ns)))
    return tuple(stretches)


def held_up_by_generator(outcome: Outcome, stretches: Sequence[Span]) -> Mask:
    """The requests that were due or answered while the generator was stalled.

    Their latencies depend on the generator as much as on the server. Slow answers that merely
    contain a stretch are not included.
    """
    felt = [Span(stretch.begin_ns, stretch.end_ns + _AFTER_STALL_NS) for stretch in stretches]
    return _is_in(outcome.scheduled_ns, felt) | _is_in(outcome.completed_ns, felt)


def under_way_in(outcome: Outcome, spans: Iterable[Span]) -> Mask:
    """The requests that were due before a span's end and not yet answered at its
    beginning.
    """
    mask = np.zeros(len(outcome.scheduled_ns), bool)
    for span in spans:
        mask |= (outcome.scheduled_ns <= span.end_ns) & (outcome.completed_ns >= span.begin_ns)
    return mask


def windows(outcome: Outcome, swaps: Sequence[SwapSpans], steady_from_ns: int) -> dict[str, Mask]:
    """The requests of each window; `steady` has the requests outside of all swaps."""
    in_swap = under_way_in(outcome, [swap.swap for swap in swaps])
    return {
        "steady": ~in_swap & (outcome.scheduled_ns >= steady_from_ns),
        "load": under_way_in(outcome, [swap.load for swap in swaps]),
        "unload": under_way_in(outcome, [swap.unload for swap in swaps]),
        "swap": in_swap,
        "first_swap": under_way_in(outcome, [swap.swap for swap in swaps[:1]]),
    }


def _is_in(instants_ns: npt.NDArray[np.int64], spans: Iterable[Span]) -> Mask:
    mask = np.zeros(len(instants_ns), bool)
    for span in spans:
        mask |= (instants_ns >= span.begin_ns) & (instants_ns <= span.end_ns)
    return mask
