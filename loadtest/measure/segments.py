"""Runs a load in segments of several kinds, and pools the requests by kind.

The segments take turns in one run of one server, so that a disturbance of the machine affects all
kinds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from loadtest.drive.generator import Generator
from loadtest.measure.outcome_figures import latencies_within_ns
from loadtest.measure.processor_time import CoreShares, with_core_shares
from loadtest.measure.timeline import Span
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.ctr_load import ContentOf, CtrLoad, as_exported
from loadtest.plan.plan import Outcome, Plan
from serving.base.clock import Clock, pause

# Left out after the first request, because connections, caches and the processor's clock are not steady
# yet.
_SETTLE_SECONDS = 2


@dataclass(frozen=True)
class Segment:
    """A part of a run. The requests that were due in `span` belong to it."""

    kind: str
    span: Span


SegmentT = TypeVar("SegmentT", bound=Segment)


@dataclass(frozen=True, kw_only=True)
class SegmentedLoad:
    """The load of a run, and the kinds of its segments in order.

    `segment_seconds_max` is the longest time of a segment with its begin and end. The requests are
    drawn for that time, and the generator is stopped after the last segment.
    """

    load: CtrLoad
    arrivals: str
    rate_per_second: float
    seed: int
    kinds: Sequence[str]
    segment_seconds_max: float
    content_of: ContentOf = as_exported
    kept_reply_bytes_max: int = Plan.kept_reply_bytes_max

    def plan(self) -> Plan:
        """Plans the requests of the whole run."""
        seconds = _SETTLE_SECONDS + len(self.kinds) * self.segment_seconds_max
        offsets_ns = ARRIVALS[self.arrivals](self.rate_per_second, seconds, self.seed)
        plan = self.load.plan(offsets_ns, self.seed)
        return replace(plan, kept_reply_bytes_max=self.kept_reply_bytes_max)


@dataclass(frozen=True, kw_only=True)
class SegmentedRun(Generic[SegmentT]):
    """The requests of a run, its segments, and the use of the cores from begin to end."""

    outcome: Outcome
    segments: Sequence[SegmentT]
    cores: CoreShares
    wrong_count: int

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds in the order of their first segments."""
        return list(dict.fromkeys(segment.kind for segment in self.segments))

    def of_kind(self, kind: str) -> Sequence[SegmentT]:
        return [segment for segment in self.segments if segment.kind == kind]

    def latencies_ns(self, kind: str) -> npt.NDArray[np.int64]:
        """The latencies of all segments of `kind` together."""
        return latencies_within_ns(self.outcome, [each.span for each in self.of_kind(kind)])

    def latencies_by_segment_ns(self, kind: str) -> Sequence[npt.NDArray[np.int64]]:
        """The latencies of each segment of `kind`."""
        return [latencies_within_ns(self.outcome, [each.span]) for each in self.of_kind(kind)]


class LoadedServer(Protocol):
    """The server that gets the load, like a started `ModelServer`."""

    @property
    def target(self) -> str: ...

    @property
    def process_id(self) -> int: ...


class RunningLoad(Protocol):
    """A load that has begun, like a `Generator` inside `with`."""

    def stop(self) -> Outcome:
        """Stops it and returns its requests."""


StartLoad = Callable[[Plan, str], AbstractContextManager[RunningLoad]]


def run_segments(
    segmented: SegmentedLoad,
    server: LoadedServer,
    run_segment: Callable[[str], SegmentT],
    *,
    clock: Clock,
    say: Callable[[str], None],
    start_load: StartLoad = Generator,
) -> SegmentedRun[SegmentT]:
    """Puts the load on `server` and calls `run_segment` for each kind in order, under that load.

    Stops the load if `run_segment` raises. Raises Unavailable.
    """
    segments: list[SegmentT] = []

    def run() -> Outcome:
        with start_load(segmented.plan(), server.target) as load:
            pause(clock, _SETTLE_SECONDS)
            segments.extend(run_segment(kind) for kind in _announced(segmented.kinds, say))
            return load.stop()

    outcome, cores = with_core_shares(server.process_id, clock, run)
    return SegmentedRun(
        outcome=outcome,
        segments=segments,
        cores=cores,
        wrong_count=segmented.load.wrong_count(outcome, segmented.content_of),
    )


def timed(clock: Clock, seconds: float) -> Span:
    """Waits for `seconds`, and returns the span of the wait."""
    begin_ns = clock.now_ns()
    pause(clock, seconds)
    return Span(begin_ns, clock.now_ns())


def _announced(kinds: Sequence[str], say: Callable[[str], None]) -> Iterator[str]:
    for position, kind in enumerate(kinds, 1):
        say(f"segment {position} of {len(kinds)}: {kind}")
        yield kind
