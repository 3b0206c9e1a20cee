import pytest

from fleet.rollout.figures import EDGES_NS, NO_REQUESTS, VersionFigures, total
from tests.fleet.worlds.fleet import requests


def test_edges_double_in_six_steps() -> None:
    assert (EDGES_NS[0], EDGES_NS[6], EDGES_NS[12]) == (100_000, 200_000, 400_000)
    assert EDGES_NS[-1] > 100e9


def test_figures_without_requests_have_no_latency() -> None:
    assert (NO_REQUESTS.latency_ns_p50, NO_REQUESTS.latency_ns_p999) == (0, 0)


def test_quantile_is_close_above_the_latency() -> None:
    p99 = requests(100, latency_ns=3_000_000).latency_ns_p99
    assert 3_000_000 <= p99 <= 3_000_000 * 1.13


def test_total_has_the_quantile_of_all_requests() -> None:
    # One server in ten is slow: its median is not that of the fleet, its p99 is.
    rows = [requests(100, latency_ns=1_000_000)] * 9 + [requests(100, latency_ns=50_000_000)]
    summed = total(rows)
    assert summed.request_count == 1_000
    assert summed.latency_ns_p50 < 2_000_000
    assert summed.latency_ns_p99 >= 50_000_000


def test_total_counts_failures() -> None:
    summed = total([requests(5, failed=1), NO_REQUESTS, requests(7, failed=2)])
    assert (summed.request_count, summed.failed_count) == (12, 3)


def test_total_of_nothing_is_empty() -> None:
    assert total([]) == NO_REQUESTS


def test_since_has_only_the_later_requests() -> None:
    before = requests(10, failed=1, latency_ns=1_000_000)
    after = total([before, requests(5, latency_ns=80_000_000)])
    later = after.since(before)
    assert (later.request_count, later.failed_count) == (5, 0)
    assert later.latency_ns_p50 >= 80_000_000


def test_since_nothing_is_everything() -> None:
    assert requests(3).since(NO_REQUESTS) == requests(3)


def test_latency_above_the_last_edge_is_counted() -> None:
    figures = VersionFigures(1, 0, (0,) * len(EDGES_NS) + (1,))
    assert figures.latency_ns_p50 == EDGES_NS[-1]


@pytest.mark.parametrize("share", [0.5, 0.99, 0.999])
def test_quantile_of_one_request_is_that_request(share: float) -> None:
    assert requests(1).latency_ns_at(share) == requests(1).latency_ns_p50
