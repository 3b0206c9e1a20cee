import json

import pytest

from loadtest.drive.rest_load import logged_latencies_ns, rate_of, rows_body
from serving.base.errors import Unavailable

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
