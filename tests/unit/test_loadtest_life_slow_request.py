from loadtest.measure.life_slow_request import ALONE, BESIDE, SwapSegment, kinds_of, report_of
from loadtest.measure.timeline import Span
from tests.unit.loadtest_outcomes import MS, outcome_of, segmented_run


def swap(kind: str, began_ms: int, ended_ms: int, taken_ms: float) -> SwapSegment:
    span = Span(began_ms * MS, ended_ms * MS)
    return SwapSegment(kind, span, drop_to_available_ms=taken_ms, load_ms=100)


def test_kinds_change_their_order_each_round() -> None:
    assert kinds_of(3) == [ALONE, BESIDE, BESIDE, ALONE, ALONE, BESIDE]


def test_figures_compare_slow_and_plain_swaps() -> None:
    requests = [(ms, ms, ms + (1 if ms < 1_000 else 3)) for ms in range(2_000)]
    swaps = [swap(ALONE, 0, 1_000, 200), swap(BESIDE, 1_000, 2_000, 400)]
    report = report_of(segmented_run(outcome_of(requests), swaps))
    assert report["ratio"] == {
        "drop_to_available_ms_median": 2,
        "drop_to_available_less_load_ms_median": 3,
        "p99_ms": 3,
    }
    assert (report["failed_count"], report["wrong_count"]) == (0, 0)


def test_requests_between_swaps_do_not_count() -> None:
    requests = [(ms, ms, ms + 1) for ms in range(3_000)]
    swaps = [swap(ALONE, 0, 600, 200), swap(BESIDE, 2_000, 2_700, 200)]
    outcome = outcome_of(requests, codes=[0] * 2_999 + [14])
    report = report_of(segmented_run(outcome, swaps, wrong_count=2))
    assert report["alone"]["latency"]["count"] == 600
    assert report["beside"]["latency"]["count"] == 700
    assert (report["failed_count"], report["wrong_count"]) == (1, 2)
