import os
from dataclasses import dataclass, field

import pytest

from loadtest.measure.segments import (
    Segment,
    SegmentedLoad,
    SegmentedRun,
    StartLoad,
    run_segments,
    timed,
)
from loadtest.measure.timeline import Span
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome, Plan, Reply
from serving.base.clock import NS_PER_SECOND
from serving.base.errors import Unavailable
from tests.unit.fakes.clocks import FakeClock
from tests.unit.loadtest_outcomes import (
    one_latency_each,
    outcome_of,
    segment_span,
    segmented_run,
)

QUIET, BUSY = "quiet", "busy"
LOAD = CtrLoad("ctr", rows=1, table_rows=10, seed=1)


@dataclass
class FakeLoad:
    """A server and the load on it; notes the moments at which the load begins and ends."""

    clock: FakeClock
    outcome: Outcome = field(default_factory=lambda: outcome_of([]))
    target: str = "here:1"
    process_id: int = field(default_factory=os.getpid)
    started: list[tuple[Plan, str]] = field(default_factory=list)
    moments_ns: list[int] = field(default_factory=list)

    def start(self, plan: Plan, target: str) -> "FakeLoad":
        self.started.append((plan, target))
        return self

    def __enter__(self) -> "FakeLoad":
        self.moments_ns.append(self.clock.now_ns())
        return self

    def stop(self) -> Outcome:
        return self.outcome

    def __exit__(self, *exception: object) -> None:
        self.moments_ns.append(self.clock.now_ns())


def segmented(*kinds: str, seconds_max: float = 5) -> SegmentedLoad:
    return SegmentedLoad(
        load=LOAD,
        arrivals="constant",
        rate_per_second=10,
        seed=1,
        kinds=kinds,
        segment_seconds_max=seconds_max,
    )


def run(load: SegmentedLoad, fake: FakeLoad, printed: list[str]) -> SegmentedRun[Segment]:
    start: StartLoad = fake.start

    def run_segment(kind: str) -> Segment:
        return Segment(kind, timed(fake.clock, 3))

    return run_segments(
        load, fake, run_segment, clock=fake.clock, say=printed.append, start_load=start
    )


def test_segments_run_in_order_under_one_load():
    fake, printed = FakeLoad(FakeClock()), list[str]()
    result = run(segmented(QUIET, BUSY, QUIET), fake, printed)
    assert [segment.kind for segment in result.segments] == [QUIET, BUSY, QUIET]
    assert printed == ["segment 1 of 3: quiet", "segment 2 of 3: busy", "segment 3 of 3: quiet"]
    assert [target for _, target in fake.started] == ["here:1"]


def test_segments_begin_after_load_has_settled():
    fake = FakeLoad(FakeClock())
    result = run(segmented(QUIET, BUSY), fake, [])
    begin_ns, end_ns = fake.moments_ns
    first, last = (segment.span for segment in result.segments)
    assert first == Span(begin_ns + 2 * NS_PER_SECOND, begin_ns + 5 * NS_PER_SECOND)
    assert last == Span(first.end_ns, end_ns)


def test_plan_lasts_for_all_segments():
    plan = segmented(QUIET, BUSY, seconds_max=5).plan()
    # 10 requests a second for 2 s and two segments of 5 s.
    assert len(plan.offsets_ns) == 120


def test_load_ends_when_segment_fails():
    fake = FakeLoad(FakeClock())

    def fails(kind: str) -> Segment:
        raise Unavailable(f"{kind} failed")

    with pytest.raises(Unavailable, match="quiet failed"):
        run_segments(
            segmented(QUIET), fake, fails, clock=fake.clock, say=print, start_load=fake.start
        )
    assert len(fake.moments_ns) == 2


def test_wrong_answers_are_counted():
    outcome = outcome_of([(0, 0, 1), (1, 1, 2)], replies=[Reply(0, 0, b"not a response")])
    assert run(segmented(QUIET), FakeLoad(FakeClock(), outcome), []).wrong_count == 2


def test_latencies_are_pooled_by_kind():
    kinds = (QUIET, BUSY, QUIET)
    segments = [Segment(kind, segment_span(n, 100)) for n, kind in enumerate(kinds)]
    result = segmented_run(one_latency_each(100, [1, 5, 2]), segments)
    assert result.kinds == [QUIET, BUSY]
    assert sorted(set(result.latencies_ns(QUIET) / 1e6)) == [1, 2]
    assert set(result.latencies_ns(BUSY) / 1e6) == {5}
    assert [len(part) for part in result.latencies_by_segment_ns(QUIET)] == [100, 100]


def test_requests_outside_segments_are_left_out():
    result = segmented_run(one_latency_each(100, [1, 5, 2]), [Segment(BUSY, segment_span(1, 100))])
    assert len(result.latencies_ns(BUSY)) == 100
