"""Percentiles, which are refused if there are too few requests."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NS_PER_MS = 1_000_000

# A percentile needs this many requests beyond it: p99.9 needs 5,000. With fewer, the slowest one or
# two requests decide the percentile, and the next run gives a different figure.
_REQUEST_COUNT_BEYOND = 5


class TooFewRequests(Exception):
    """Raised for a percentile that needs more requests; the message has the missing count."""


# The percentiles of every table and JSON file.
_SHOWN_PER_MILLE = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p999_ms": 999}

Latencies = Sequence[int] | npt.NDArray[np.int64]


def percentile_ms(latencies_ns: Latencies, per_mille: int) -> float:
    """The latency within which `per_mille` of 1,000 requests stay (999: p99.9), in milliseconds.

    By nearest rank: the result is one of the latencies and not interpolated.

    Raises TooFewRequests below 10 requests for p50, 500 for p99, 5,000 for p99.9.
    """
    required_count = math.ceil(_REQUEST_COUNT_BEYOND * 1_000 / (1_000 - per_mille))
    if len(latencies_ns) < required_count:
        missing_count = required_count - len(latencies_ns)
        raise TooFewRequests(f"{missing_count} requests missing of {required_count}")
    rank = math.ceil(len(latencies_ns) * per_mille / 1_000)
    return float(np.partition(np.asarray(latencies_ns), rank - 1)[rank - 1]) / NS_PER_MS


def figures(latencies_ns: Latencies) -> dict[str, Any]:
    """Makes `count`, `p50_ms` to `p999_ms` and `max_ms`.

    A percentile with too few requests is None, and `refused` has the reason.
    """
    shown: dict[str, Any] = {"count": len(latencies_ns)}
    refused = {}
    for key, per_mille in _SHOWN_PER_MILLE.items():
        try:
            shown[key] = round(percentile_ms(latencies_ns, per_mille), 3)
        except TooFewRequests as error:
            shown[key] = None
            refused[key] = str(error)
    shown["max_ms"] = round(int(max(latencies_ns)) / NS_PER_MS, 3) if len(latencies_ns) else None
    return shown | ({"refused": refused} if refused else {})


def medians(each: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> dict[str, float | None]:
    """The median of each key's figures; None if any figure was refused."""
    found: dict[str, float | None] = {}
    for key in keys:
        values = [shown[key] for shown in each]
        has_all = values and None not in values
        found[key] = round(statistics.median(values), 3) if has_all else None
    return found


def ratio(over: Mapping[str, Any], under: Mapping[str, Any], key: str) -> float | None:
    """A figure of `over` divided by that figure of `under`; None if either was refused."""
    if over[key] is None or not under[key]:
        return None
    return round(float(over[key]) / float(under[key]), 3)
