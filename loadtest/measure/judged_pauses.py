"""The rule of a canary on machines that pause: how often it stops a good version, and a slow one.

Servers answer with latencies around 1 ms (log-normal, sigma 0.5), at random times. Each server pauses
now and then for 5 to 80 ms, and all requests that come meanwhile wait for its end. One server has the
version that is judged, and four others have the version beside it, as in the first wave of a fleet. A
version that is only slow is judged twice, on other requests each time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fleet.rollout.figures import EDGES_NS, VersionFigures
from serving.core.model_settings import CanarySettings
from serving.manager.canary import judge

Latencies = npt.NDArray[np.float64]

CONTROL_COUNT = 4
_SIGMA = 0.5
_PAUSE_SECONDS = (0.005, 0.08)


def _slow_share(
    share: float, seconds: float
) -> Callable[[Latencies, np.random.Generator], Latencies]:
    return lambda latencies, random: latencies + seconds * (random.random(len(latencies)) < share)


VERSIONS: Mapping[str, Callable[[Latencies, np.random.Generator], Latencies]] = {
    "good": lambda latencies, random: latencies,
    "3 times as long": lambda latencies, random: 3 * latencies,
    "4 % take 20 ms more": _slow_share(0.04, 0.02),
    "0.5 % take 50 ms more": _slow_share(0.005, 0.05),
}


@dataclass(frozen=True)
class Traffic:
    """The requests to each server until a judgement, and the pauses of its machine."""

    requests_per_second: float
    request_count: int
    pause_period_seconds: float


def latencies_of(version: str, traffic: Traffic, random: np.random.Generator) -> Latencies:
    """Draws the latencies of the requests to one server, in seconds, shape [request_count]."""
    duration = traffic.request_count / traffic.requests_per_second
    arrivals = random.uniform(0, duration, traffic.request_count)
    latencies = 1e-3 * np.exp(random.normal(0, _SIGMA, traffic.request_count))
    latencies = VERSIONS[version](latencies, random)
    starts = random.uniform(0, duration, random.poisson(duration / traffic.pause_period_seconds))
    shortest, longest = np.log(_PAUSE_SECONDS)
    ends = starts + np.exp(random.uniform(shortest, longest, len(starts)))
    for start, end in zip(starts, ends, strict=True):
        latencies += np.where((arrivals >= start) & (arrivals < end), end - arrivals, 0)
    return latencies


def figures_of(latencies: Latencies) -> VersionFigures:
    """Makes the figures of requests without failures. `latencies` are in seconds."""
    upto = np.searchsorted(np.sort(latencies * 1e9), EDGES_NS, side="right")
    counts = np.diff(upto, prepend=0, append=len(latencies))
    return VersionFigures(len(latencies), 0, tuple(counts.tolist()))


def stopped_shares(version: str, traffic: Traffic, runs: int, seed: int) -> dict[str, float]:
    """The share of runs in which each rule stops the version.

    `p999 alone` is the earlier rule: p999 of more than twice that of the version beside it.
    """
    random = np.random.default_rng(seed)
    settings = CanarySettings(request_count=traffic.request_count)

    def pair() -> tuple[VersionFigures, VersionFigures]:
        beside = [latencies_of("good", traffic, random) for _ in range(CONTROL_COUNT)]
        new = latencies_of(version, traffic, random)
        return figures_of(new), figures_of(np.concatenate(beside))

    def is_slow(new: VersionFigures, old: VersionFigures) -> bool:
        judgement = judge(settings, new, old)
        return judgement is not None and judgement.is_only_slow

    stopped = {"rule": 0, "p999 alone": 0}
    for _ in range(runs):
        new, old = pair()
        stopped["rule"] += is_slow(new, old) and is_slow(*pair())
        limit_ns = settings.latency_ratio_max * old.latency_ns_p999
        stopped["p999 alone"] += new.latency_ns_p999 > limit_ns
    return {name: count / runs for name, count in stopped.items()}
