"""Intervals of what chance does to a ratio of percentiles: requests are drawn anew by round. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.measure.latency import percentile_ms

Latencies = npt.NDArray[np.int64]
"""In ns."""

_DRAW_COUNT = 1_000
# Draws of fewer rounds look more alike than the rounds themselves are.
_ROUND_COUNT_MIN = 20
# The steps of latencies, which are far below the differences that matter.
_STEP_RATIO = 1.001


@dataclass(frozen=True)
class RatioInterval:
    """A percentile of one kind of request over that of another one.

    Of 100 repetitions of the same rounds, 95 would give a ratio between `low` and `high`, if the rounds are many.
    """

    ratio: float
    low: float
    high: float
    round_count: int

    def verdict(self, goal: float) -> str:
        """Tells whether the ratio is at most `goal`: "met", "missed", or "undecided"."""
        if self.round_count < _ROUND_COUNT_MIN:
            return "undecided"
        if self.high <= goal:
            return "met"
        return "missed" if self.low > goal else "undecided"


def ratio_interval(
    over: Sequence[Latencies], under: Sequence[Latencies], per_mille: int, seed: int
) -> RatioInterval:
    """The interval by a bootstrap over rounds, of which each has requests of both kinds.

    Requests of one round depend on each other, as those behind one stall do, so whole rounds are drawn. Raises
    TooFewRequests as `percentile_ms` does.
    """
    pooled = [percentile_ms(np.concatenate(each), per_mille) for each in (over, under)]
    steps = _steps_of([*over, *under])
    counts = [np.stack([_counted(part, steps) for part in each]) for each in (over, under)]
    draws = np.random.default_rng(seed).multinomial(
        len(over), np.full(len(over), 1 / len(over)), _DRAW_COUNT
    )
    drawn = [_percentiles(draws @ each, steps, per_mille) for each in counts]
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return RatioInterval(pooled[0] / pooled[1], float(low), float(high), len(over))


def _steps_of(parts: Sequence[Latencies]) -> npt.NDArray[np.float64]:
    """The upper ends of the steps into which latencies are sorted."""
    every: Any = np.concatenate(parts)
    low, high = max(1, int(every.min())), max(2, int(every.max()))
    count = int(np.ceil(np.log(high / low) / np.log(_STEP_RATIO))) + 1
    steps: npt.NDArray[np.float64] = low * np.power(
        _STEP_RATIO, np.arange(count + 1, dtype=np.float64)
    )
    return steps


def _counted(part: Latencies, steps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    places = np.minimum(np.searchsorted(steps, part), len(steps) - 1)
    return np.bincount(places, minlength=len(steps)).astype(np.float64)


def _percentiles(
    counts: npt.NDArray[np.float64], steps: npt.NDArray[np.float64], per_mille: int
) -> npt.NDArray[np.float64]:
    """The percentile of each row of counts."""
    below = np.cumsum(counts, axis=1)
    ranks = np.ceil(below[:, -1] * per_mille / 1_000)
    return np.array(
        [steps[np.searchsorted(row, rank)] for row, rank in zip(below, ranks, strict=True)]
    )
