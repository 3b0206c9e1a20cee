"""Arrivals: the time at which each request is due, drawn from a seed before the run.

All offsets are int64 nanoseconds after the start, ascending. The same arguments give the same
offsets on every machine, so that two servers can get exactly the same load.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.base.clock import NS_PER_SECOND

Offsets = npt.NDArray[np.int64]

Arrivals = Callable[[float, float, int], Offsets]
"""Draws the times at which requests are due, from requests per second, seconds and a seed."""


def poisson(rate_per_second: float, duration_seconds: float, seed: int) -> Offsets:
    """Draws the arrivals of independent users.

    The gaps are exponentially distributed, so some requests come in clusters.
    """
    return _as_ns(_unit_rate_arrivals(rate_per_second * duration_seconds, seed) / rate_per_second)


def constant(rate_per_second: float, duration_seconds: float, seed: int = 0) -> Offsets:
    """One request every 1/rate seconds, the first at once. `seed` is not used."""
    del seed
    return _as_ns(np.arange(int(rate_per_second * duration_seconds)) / rate_per_second)


def ramp(rate_per_second: float, duration_seconds: float, seed: int) -> Offsets:
    """Draws arrivals of independent users, at a rate that rises linearly from 0 to `rate_per_second`."""
    # The expected number of requests until time t is rate·t²/(2·T), with T the duration. Its inverse
    # maps the arrivals of a Poisson stream of rate 1 to times.
    expected_count = rate_per_second * duration_seconds / 2
    arrivals = _unit_rate_arrivals(expected_count, seed)
    return _as_ns(np.sqrt(arrivals / expected_count) * duration_seconds)


ARRIVALS: Mapping[str, Arrivals] = {"poisson": poisson, "constant": constant, "ramp": ramp}
"""The functions by the names that `--arrivals` takes."""


def payload_numbers(request_count: int, payload_count: int, seed: int) -> npt.NDArray[np.int32]:
    """Draws one of `payload_count` payloads for each request, uniformly."""
    # The arrivals use `seed` alone, and payloads must not depend on the arrivals.
    generator = np.random.default_rng([seed, 1])
    return generator.integers(0, payload_count, request_count, np.int32)


def _unit_rate_arrivals(end: float, seed: int) -> npt.NDArray[Any]:
    """The times of a Poisson stream of rate 1 from 0 to `end`, as float64."""
    generator = np.random.default_rng(seed)
    # For a given count, the arrivals of a Poisson stream are uniformly distributed.
    return np.sort(generator.uniform(0, end, generator.poisson(end)))


def _as_ns(seconds: npt.NDArray[Any]) -> Offsets:
    return (seconds * NS_PER_SECOND).astype(np.int64)
