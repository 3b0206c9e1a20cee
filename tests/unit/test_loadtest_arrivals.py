import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.plan.arrivals import ARRIVALS, constant, payload_numbers, poisson, ramp
from serving.base.clock import NS_PER_SECOND

RATES = st.floats(1, 2_000)
DURATIONS = st.floats(0.1, 5)
SEEDS = st.integers(0, 2**32)


@given(st.sampled_from(sorted(ARRIVALS)), RATES, DURATIONS, SEEDS)
def test_arrivals_ascend_and_repeat_from_seed(
    kind: str, rate_per_second: float, duration_seconds: float, seed: int
):
    offsets_ns = ARRIVALS[kind](rate_per_second, duration_seconds, seed)
    assert offsets_ns.dtype == np.int64
    assert np.all(np.diff(offsets_ns) >= 0)
    assert np.all((offsets_ns >= 0) & (offsets_ns <= duration_seconds * NS_PER_SECOND))
    assert np.array_equal(offsets_ns, ARRIVALS[kind](rate_per_second, duration_seconds, seed))


@given(SEEDS)
def test_poisson_has_rate_and_irregular_gaps(seed: int):
    gaps_ns = np.diff(poisson(1_000, 20, seed))
    # 20,000 gaps: five standard errors of each figure.
    assert np.mean(gaps_ns) == pytest.approx(1e6, rel=0.036)
    assert np.std(gaps_ns) / np.mean(gaps_ns) == pytest.approx(1, abs=0.06)


def test_constant_has_equal_gaps_and_begins_at_once():
    assert constant(4, 1).tolist() == [0, 250_000_000, 500_000_000, 750_000_000]


@given(SEEDS)
def test_ramp_sends_quarter_in_first_half(seed: int):
    offsets_ns = ramp(2_000, 20, seed)
    share = np.mean(offsets_ns < 10 * NS_PER_SECOND)
    assert len(offsets_ns) == pytest.approx(20_000, rel=0.036)
    assert share == pytest.approx(0.25, abs=0.016)


def test_other_seeds_draw_other_arrivals():
    assert not np.array_equal(poisson(100, 10, 1)[:50], poisson(100, 10, 2)[:50])


@given(st.integers(0, 500), st.integers(1, 64), SEEDS)
def test_payload_numbers_name_payloads_that_are_there(
    request_count: int, payload_count: int, seed: int
):
    numbers = payload_numbers(request_count, payload_count, seed)
    assert numbers.dtype == np.int32
    assert len(numbers) == request_count
    assert np.all((numbers >= 0) & (numbers < payload_count))
