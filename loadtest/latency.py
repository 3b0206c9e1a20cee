"""Percentiles that are refused where too few requests stand behind them."""

import math
from collections.abc import Sequence

NS_PER_MS = 1_000_000

# A percentile needs this many requests beyond it: p99.9 of 5,000. With fewer, the one or two slowest
# requests are the percentile, and the next run shows another one.
_REQUEST_COUNT_BEYOND = 5


class TooFewRequests(Exception):
    """A percentile was asked for that the requests do not support; the message says what is missing."""


def percentile_ms(latencies_ns: Sequence[int], per_mille: int) -> float:
    """The latency that `per_mille` of 1,000 requests stay within (999: p99.9), in milliseconds.

    Raises TooFewRequests below 10 requests for p50, 500 for p99, 5,000 for p99.9.
    """
    required_count = math.ceil(_REQUEST_COUNT_BEYOND * 1_000 / (1_000 - per_mille))
    if len(latencies_ns) < required_count:
        missing_count = required_count - len(latencies_ns)
        raise TooFewRequests(f"{missing_count} requests missing of {required_count}")
    rank = math.ceil(len(latencies_ns) * per_mille / 1_000)
    return sorted(latencies_ns)[rank - 1] / NS_PER_MS
