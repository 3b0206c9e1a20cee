import json

import pytest

from loadtest.commands.rest import BASELINE, BESIDE, MILLPOND, QUIET, rest_report
from loadtest.drive.rest_load import logged_latencies_ns, rate_of, rows_body
from loadtest.measure.segments import Segment
from serving.base.errors import Unavailable
from tests.unit.loadtest_outcomes import MS, outcome_of, segment_span, segmented_run

REPORT = (
    "finished in 2.00s, 500.00 req/s, 1.3MB/s\n"
    "requests: 1000 total, 1000 started, 1000 done, 999 succeeded, {failed} failed, 0 errored, 0 timeout"
)


def test_rows_body_has_each_row_as_an_object():
    rows = json.loads(rows_body(3, table_rows=10, seed=1))["instances"]
    assert [len(row["dense"]) for row in rows] == [13] * 3
    assert all(0 <= number < 10 for row in rows for number in row["sparse"])


def test_rate_of_a_report_without_failures_is_its_rate():
    assert rate_of(REPORT.format(failed=0)) == 500


def test_rate_of_a_report_with_failures_raises():
    with pytest.raises(Unavailable, match="1 failed"):
        rate_of(REPORT.format(failed=1))


def test_logged_latencies_are_the_third_column_in_ns():
    assert logged_latencies_ns("17\t200\t250\n18\t200\t1000\n") == [250_000, 1_000_000]


def test_report_has_round_medians_and_tail_per_kind():
    rates = {
        (MILLPOND, 1): [1_000.0, 3_000.0, 2_000.0],
        (BASELINE, 1): [500.0, 400.0, 9_000.0],
    }
    # A quiet second, a second beside REST with twice the latency, and a second that counts as
    # neither.
    requests = [(ms, ms, ms + (2 if 1_000 <= ms < 2_000 else 1)) for ms in range(3_000)]
    segments = [Segment(QUIET, segment_span(0, 1_000)), Segment(BESIDE, segment_span(1, 1_000))]
    alone = {1: [MS] * 600}
    report = rest_report(
        rates, alone, segmented_run(outcome_of(requests), segments), rest_rate=1_000
    )
    assert (report["rest_alone"][1]["p99_ms"], report["rest_alone"][1]["p999_ms"]) == (1, None)
    assert report["rows"][1] == {MILLPOND: 2_000, BASELINE: 500, "ratio": 4}
    assert report["grpc"][QUIET]["count"] == report["grpc"][BESIDE]["count"] == 1_000
    assert report["grpc_ratio"]["p50_ms"] == 2
    assert report["errors"] == 0
