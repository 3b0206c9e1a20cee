import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from loadtest.commands.monitoring import (
    PAGE,
    SCRAPE,
    WITH,
    WITHOUT,
    MonitoredRun,
    VisitedSegment,
    kinds_of,
    monitoring_report,
    print_monitoring,
    visitors_of,
)
from loadtest.plan.plan import Reply
from serving.base.clock import SystemClock
from tests.unit.loadtest_outcomes import one_latency_each, outcome_of, segment_span, segmented_run

SEGMENT_MS = 6_000


def run_of(kinds: Sequence[str], latencies_ms: Sequence[float], **changes: Any) -> MonitoredRun:
    """Returns one request each ms, in consecutive segments with one latency each."""
    segments = [
        VisitedSegment(kind, segment_span(n, SEGMENT_MS), 0.001 * n) for n, kind in enumerate(kinds)
    ]
    run = segmented_run(one_latency_each(SEGMENT_MS, latencies_ms), segments)
    return replace(run, **changes)


FOUR = (WITHOUT, WITH, WITHOUT, WITH, PAGE, SCRAPE)


def test_kinds_alternate_before_single_visitors():
    assert kinds_of(2) == FOUR


def test_visitors_are_those_of_the_kind():
    def count(kind: str) -> int:
        return len(visitors_of(kind, "http://127.0.0.1:1", SystemClock()))

    assert [count(kind) for kind in (WITHOUT, PAGE, SCRAPE, WITH)] == [0, 1, 1, 2]


def test_ratio_compares_requests_beside_and_off_visits():
    report = monitoring_report(run_of(FOUR, [1, 1.5, 1, 1.5, 9, 9]), 300)
    assert report["pooled"][WITHOUT]["count"] == report["pooled"][WITH]["count"] == 2 * SEGMENT_MS
    assert report["ratio_pooled"] == {"p50_ms": 1.5, "p99_ms": 1.5, "p999_ms": 1.5}
    assert report["ratio_of_medians"]["p999_ms"] == 1.5
    assert report["ratio_by_chance"]["p999_ms"] == 1


def test_medians_over_segments_ignore_one_outlier():
    kinds = (WITHOUT, WITH) * 3
    report = monitoring_report(run_of((*kinds, PAGE, SCRAPE), [1, 1, 1, 7, 1, 1, 1, 1]), 300)
    assert report["ratio_of_medians"]["p999_ms"] == 1
    assert report["ratio_pooled"]["p999_ms"] == 7


def test_chance_is_spread_of_quiet_segments():
    report = monitoring_report(run_of(FOUR, [2, 1, 1, 1, 1, 1]), 300)
    assert report["ratio_by_chance"]["p999_ms"] == 2
    report = monitoring_report(run_of(FOUR, [1, 1, 2, 1, 1, 1]), 300)
    assert report["ratio_by_chance"]["p999_ms"] == 2
    one = monitoring_report(run_of((WITHOUT, WITH, PAGE, SCRAPE), [1, 1, 1, 1]), 300)
    assert one["ratio_by_chance"]["p999_ms"] is None


def test_shares_of_a_core_are_by_kind():
    shares = monitoring_report(run_of(FOUR, [1] * 6), 300)["http_core_share"]
    assert shares == {WITHOUT: 0.001, WITH: 0.002, PAGE: 0.004, SCRAPE: 0.005}


def test_table_shows_ratios_goals_and_shares():
    console = Console(file=io.StringIO(), width=240)
    print_monitoring(monitoring_report(run_of(FOUR, [1, 1.5, 1, 1.5, 9, 9]), 300), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "ratio pooled: p50 1.500, p99 1.500, p999 1.500" in text
    assert "page alone 0.40%" in text
    assert "p999 at most 1.05" in text


def test_failed_requests_are_counted():
    kinds = (WITHOUT, WITH, PAGE, SCRAPE)
    run = run_of(kinds, [1] * 4)
    replies = [Reply(0, 0, b""), Reply(0, 14, b"gone")]
    instants = [(1, 1, 2), (6_001, 6_001, 6_002)]
    failed = outcome_of(instants, codes=[0, 14], replies=replies, reply_of=[0, 1])
    report = monitoring_report(replace(run, outcome=failed), rate_per_second=300)
    assert (report["errors"], report["error_messages"]) == (1, ["1 x 14: gone"])
    assert report["pooled"][WITH]["p999_ms"] is None
