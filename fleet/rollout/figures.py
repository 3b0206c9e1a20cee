"""The requests of a version as counts that can be added over servers and subtracted over time.

The quantiles of single servers cannot be averaged. But their counts by latency can be added. The quantile of
the sum is the quantile of all requests, to within the width of a bucket.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import lt

EDGES_PER_DOUBLING = 6
"""The buckets into which each doubling of the latency is split.

With 6 a quantile is at most 12 % above the true quantile. That is fine enough, because a judgement asks if
one version is twice as slow as another.
"""

EDGES_NS: tuple[int, ...] = tuple(
    round(100_000 * 2 ** (step / EDGES_PER_DOUBLING)) for step in range(20 * EDGES_PER_DOUBLING + 1)
)
"""The upper ends of the buckets, from 100 µs to 105 s. A last bucket holds longer latencies."""


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """The requests of one version, on one server or on many servers together. A `ServableStatistics`.

    `latency_counts` has the number of requests in each bucket of EDGES_NS. It is empty without requests.
    """

    request_count: int = 0
    failed_count: int = 0
    latency_counts: tuple[int, ...] = ()

    @property
    def latency_ns_p50(self) -> int:
        return self.latency_ns_at(0.5)

    @property
    def latency_ns_p99(self) -> int:
        return self.latency_ns_at(0.99)

    @property
    def latency_ns_p999(self) -> int:
        return self.latency_ns_at(0.999)

    @property
    def counts(self) -> "VersionFigures":
        """The same requests without their latencies, so that sums over a large fleet are cheap."""
        return VersionFigures(self.request_count, self.failed_count)

    def since(self, earlier: "VersionFigures") -> "VersionFigures":
        """The requests since `earlier`, of the same version in the same process."""
        before = earlier.latency_counts or (0,) * len(self.latency_counts)
        return VersionFigures(
            self.request_count - earlier.request_count,
            self.failed_count - earlier.failed_count,
            tuple(after - count for after, count in zip(self.latency_counts, before, strict=True)),
        )

    def is_continued_from(self, earlier: "VersionFigures") -> bool:
        """True if no count is lower than in `earlier`.

        A lower count shows that the server has loaded the version again, or is unloading it and has dropped
        its counts.
        """
        now = (self.request_count, self.failed_count, *self.latency_counts)
        before = (earlier.request_count, earlier.failed_count, *earlier.latency_counts)
        return len(now) >= len(before) and not any(map(lt, now, before))

    def latency_ns_at(self, quantile: float) -> int:
        """The upper end of the bucket that holds the quantile by nearest rank; 0 without requests."""
        cumulative = tuple(accumulate(self.latency_counts))
        if not cumulative or not cumulative[-1]:
            return 0
        bucket = bisect_left(cumulative, max(1, ceil(quantile * cumulative[-1])))
        return EDGES_NS[min(bucket, len(EDGES_NS) - 1)]


NO_REQUESTS = VersionFigures()


def total(figures: Iterable[VersionFigures]) -> VersionFigures:
    """The sum of the figures of several servers."""
    rows = list(figures)
    counts = [row.latency_counts for row in rows if row.latency_counts]
    return VersionFigures(
        sum(row.request_count for row in rows),
        sum(row.failed_count for row in rows),
        tuple(map(sum, zip(*counts, strict=True))),
    )
