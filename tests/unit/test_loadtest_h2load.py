import pytest

from loadtest.measure.h2load import Throughput, framed, median_throughput, parse
from serving.base.errors import Unavailable

REPORT = """
finished in 2.00s, 500.00 req/s, 1.34MB/s
requests: 1000 total, 1000 started, 1000 done, {succeeded} succeeded, {failed} failed, 0 errored, 0 timeout
traffic: 1.34MB (1405000) total, 3.9KB (4000) headers (space savings 95.00%), 1.33MB (1395000) data
"""
# Durations of 1 to 1,000 µs, as h2load's --log-file has them.
LOG = "".join(f"1700000000000000\t200\t{microseconds}\n" for microseconds in range(1, 1001))


def test_parse_log_yields_rate_and_percentiles() -> None:
    throughput = parse(REPORT.format(succeeded=1000, failed=0), LOG)
    assert throughput == Throughput(500.0, p50_ms=0.5, p99_ms=0.99, data_bytes=1_395_000)


def test_parse_report_with_failures_raises_report() -> None:
    with pytest.raises(Unavailable, match="1 failed"):
        parse(REPORT.format(succeeded=999, failed=1), LOG)


def test_parse_output_without_report_raises_output() -> None:
    with pytest.raises(Unavailable, match="cannot connect"):
        parse("cannot connect", "")


def test_framed_message_has_flag_and_length_in_front() -> None:
    assert framed(b"abc") == b"\x00\x00\x00\x00\x03abc"


def test_median_throughput_takes_each_figure_by_itself() -> None:
    runs = [Throughput(1, 30, 2, 8), Throughput(2, 10, 3, 8), Throughput(3, 20, 1, 8)]
    assert median_throughput(runs) == Throughput(2, 20, 2, 8)
