from loadtest.measure.life_slow_request import ObservedSwap, report_of
from tests.unit.loadtest_outcomes import MS, outcome_of


def swap(began_ms: int, ended_ms: int, taken_ms: float, *, is_beside: bool) -> ObservedSwap:
    return ObservedSwap(
        is_beside_slow_request=is_beside,
        drop_to_available_ms=taken_ms,
        load_ms=100,
        began_ns=began_ms * MS,
        ended_ns=ended_ms * MS,
    )


def test_figures_compare_slow_and_plain_swaps() -> None:
    requests = [(ms, ms, ms + (1 if ms < 1_000 else 3)) for ms in range(2_000)]
    observed = [
        swap(0, 1_000, 200, is_beside=False),
        swap(1_000, 2_000, 400, is_beside=True),
    ]
    report = report_of(observed, outcome_of(requests), wrong_count=0)
    assert report["ratio"] == {
        "drop_to_available_ms_median": 2,
        "drop_to_available_less_load_ms_median": 3,
        "p99_ms": 3,
    }
    assert (report["failed_count"], report["wrong_count"]) == (0, 0)


def test_requests_between_swaps_do_not_count() -> None:
    requests = [(ms, ms, ms + 1) for ms in range(3_000)]
    observed = [swap(0, 600, 200, is_beside=False), swap(2_000, 2_700, 200, is_beside=True)]
    outcome = outcome_of(requests, codes=[0] * 2_999 + [14])
    report = report_of(observed, outcome, wrong_count=2)
    assert report["alone"]["latency"]["count"] == 600
    assert report["beside"]["latency"]["count"] == 700
    assert (report["failed_count"], report["wrong_count"]) == (1, 2)
