"""The figures of the part `tail` of `gpu`."""

from loadtest.measure.timeline import Span, SwapSpans
from loadtest.report.swap_tail import latencies_over_time, swaps_over_steady
from tests.unit.loadtest_outcomes import MS, outcome_of, slow_in_swap_outcome, swap_run


def test_each_swap_is_held_against_the_steady_time():
    quick = SwapSpans(3, Span(4_000 * MS, 4_100 * MS), Span(4_200 * MS, 4_500 * MS))
    slow = SwapSpans(2, Span(8_000 * MS, 9_000 * MS), Span(9_500 * MS, 10_000 * MS))
    run = swap_run(slow_in_swap_outcome(), spans=[slow, quick])
    first, second = swaps_over_steady(run)
    assert (first["version"], first["at_seconds"], first["ratio_p99"]) == (2, 8, 5)
    assert (second["version"], second["at_seconds"], second["ratio_p99"]) == (3, 4, 1)
    assert first["ratio_p999"] is None  # of too few requests


def test_latencies_over_time_have_a_value_each_tenth():
    requests = [(ms, ms, ms + (9 if ms == 150 else 1)) for ms in range(200)]
    requests += [(450, 450, 452)]
    shown = latencies_over_time(outcome_of(requests))
    assert shown["step_seconds"] == 0.1
    assert shown["count"] == [100, 100, 0, 0, 1]
    assert shown["p50_ms"] == [1, 1, None, None, 2]
    assert shown["p99_ms"] == [1, 1, None, None, 2]
    assert shown["max_ms"] == [1, 9, None, None, 2]
    assert latencies_over_time(outcome_of([]))["count"] == []
