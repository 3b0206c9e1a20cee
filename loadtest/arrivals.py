"""When each request is due, drawn from a seed before the run.

All offsets are int64 nanoseconds after the start, ascending. The same arguments give the same
offsets on every machine, so that two servers can be given the very same load.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.base.clock import NS_PER_SECOND

Offsets = npt.NDArray[np.int64]

Arrivals = Callable[[float, float, int], Offsets]
"""From requests per second, seconds and seed to when each request is due."""


def poisson(rate_per_second: float, duration_seconds: float, seed: int) -> Offsets:
    """Independent users: the gaps are exponential, so that requests also come in clusters."""
    return _as_ns(_unit_rate_arrivals(rate_per_second * duration_seconds, seed) / rate_per_second)


def constant(rate_per_second: float, duration_seconds: float, seed: int = 0) -> Offsets:
    """One request every 1/rate seconds, the first at once. `seed` changes nothing."""
    del seed
    return _as_ns(np.arange(int(rate_per_second * duration_seconds)) / rate_per_second)


def ramp(rate_per_second: float, duration_seconds: float, seed: int) -> Offsets:
    """Independent users whose rate rises evenly from 0 to `rate_per_second` at the end."""
    # By time t of T, rate·t²/2T requests are expected: a stream of rate 1 whose time is stretched so.
    expected_count = rate_per_second * duration_seconds / 2
    arrivals = _unit_rate_arrivals(expected_count, seed)
    return _as_ns(np.sqrt(arrivals / expected_count) * duration_seconds)


ARRIVALS: Mapping[str, Arrivals] = {"poisson": poisson, "constant": constant, "ramp": ramp}
"""By the name that `--arrivals` takes."""


def payload_numbers(request_count: int, payload_count: int, seed: int) -> npt.NDArray[np.int32]:
    """For each request one of `payload_count` payloads, drawn evenly."""
    # Another stream than that of the arrivals, which are drawn from the same seed.
    generator = np.random.default_rng([seed, 1])
    return generator.integers(0, payload_count, request_count, np.int32)


def _unit_rate_arrivals(end: float, seed: int) -> npt.NDArray[Any]:
    """A Poisson stream of rate 1 from 0 to `end`, as float64."""
    generator = np.random.default_rng(seed)
    # Given how many there are, the arrivals of a Poisson stream are evenly distributed.
    return np.sort(generator.uniform(0, end, generator.poisson(end)))


def _as_ns(seconds: npt.NDArray[Any]) -> Offsets:
    return (seconds * NS_PER_SECOND).astype(np.int64)
