"""The measurement of a canary's rule on machines that pause."""

import numpy as np
import pytest

from loadtest.measure.judged_pauses import (
    VERSIONS,
    Traffic,
    figures_of,
    latencies_of,
    stopped_shares,
)

COUNT = 1_000
PAUSED = Traffic(50, COUNT, pause_period_seconds=4)
QUIET = Traffic(50, 10 * COUNT, pause_period_seconds=1e9)


def test_figures_have_each_request_once() -> None:
    figures = figures_of(np.array([1e-6, 0.001, 0.001, 0.5, 1_000.0]))
    assert figures.request_count == sum(figures.latency_counts) == 5
    assert 1_000_000 <= figures.latency_ns_p50 <= 1_130_000
    assert (figures.latency_counts[0], figures.latency_counts[-1]) == (1, 1)


def test_pause_makes_requests_in_a_row_slow() -> None:
    quiet, paused = (
        latencies_of("good", traffic, np.random.default_rng(1)) for traffic in (QUIET, PAUSED)
    )
    assert quiet.max() < 0.01
    assert 0 < np.count_nonzero(paused > 0.01) < COUNT // 20
    assert paused.max() < 0.1


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_have_the_latencies_of_their_names(version: str) -> None:
    good, latencies = (
        latencies_of(name, QUIET, np.random.default_rng(1)) for name in ("good", version)
    )
    ratio = latencies.mean() / good.mean()
    expected = {"good": 1, "3 times as long": 3, "4 % take 20 ms more": 1.7}
    assert ratio == pytest.approx(expected.get(version, 1.2), rel=0.1)


def test_rule_stops_slow_versions_and_no_good_one() -> None:
    assert stopped_shares("good", PAUSED, runs=20, seed=1)["rule"] == 0
    assert stopped_shares("3 times as long", PAUSED, runs=20, seed=1)["rule"] == 1
