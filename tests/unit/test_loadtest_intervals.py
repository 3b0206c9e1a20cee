import numpy as np
import pytest

from loadtest.measure.intervals import RatioInterval, ratio_interval
from loadtest.measure.latency import TooFewRequests

ROUNDS = 30


def rounds_of(factor: float, seed: int, count: int = ROUNDS) -> list[np.ndarray]:
    """Latencies of some rounds with a long tail, in ns."""
    random = np.random.default_rng(seed)
    return [(factor * random.lognormal(13, 0.4, 4_000)).astype(np.int64) for _ in range(count)]


def test_intervals_of_equal_kinds_have_the_ratio_one():
    found = [
        ratio_interval(rounds_of(1, 2 * seed), rounds_of(1, 2 * seed + 1), 990, seed)
        for seed in range(8)
    ]
    # One in twenty need not.
    assert sum(interval.low <= 1 <= interval.high for interval in found) >= 7
    assert all(interval.low <= interval.ratio <= interval.high for interval in found)


@pytest.mark.parametrize(("factor", "verdict"), [(0.8, "met"), (1.0, "undecided"), (1.3, "missed")])
def test_verdict_needs_the_whole_interval_on_one_side(factor: float, verdict: str):
    interval = ratio_interval(rounds_of(factor, 1), rounds_of(1, 2), 990, seed=3)
    assert interval.ratio == pytest.approx(factor, rel=0.06)
    assert interval.verdict(1.001) == verdict


def test_rounds_that_differ_widen_the_interval():
    steady = ratio_interval(rounds_of(1, 1), rounds_of(1, 2), 990, seed=3)
    over = rounds_of(1, 1)
    for stalled in over[:3]:
        stalled[:400] = 200_000_000
    stalling = ratio_interval(over, rounds_of(1, 2), 990, seed=3)
    assert stalling.high - stalling.low > 10 * (steady.high - steady.low)


def test_few_rounds_decide_nothing():
    interval = ratio_interval(rounds_of(2, 1, count=5), rounds_of(1, 2, count=5), 990, seed=3)
    assert interval.low > 1.5
    assert interval.verdict(1.02) == "undecided"
    assert RatioInterval(2.0, 1.9, 2.1, 20).verdict(1.02) == "missed"


def test_too_few_requests_have_no_interval():
    few = [part[:100] for part in rounds_of(1, 1)]
    with pytest.raises(TooFewRequests):
        ratio_interval(few, few, 999, seed=3)


def test_interval_is_of_the_pooled_percentile():
    over, under = rounds_of(1.1, 1), rounds_of(1, 2)
    ranks = [int(np.ceil(ROUNDS * 4_000 * 0.99)) - 1] * 2
    exact = [np.sort(np.concatenate(each))[rank] for each, rank in zip((over, under), ranks)]
    assert ratio_interval(over, under, 990, seed=3).ratio == exact[0] / exact[1]
