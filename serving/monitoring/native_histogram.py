"""Native histograms of Prometheus: exponential buckets, of which only filled ones are sent. Pure."""

from collections.abc import Sequence

from prometheus_client.samples import BucketSpan, NativeHistogram

SCHEMA = 3
"""Each power of two has 2^3 buckets, so a bucket is 9 % wide. The recorded buckets are 1.6 % wide: each
lies in one bucket here, or an edge cuts it, an error of at most its width."""

_FIRST_INDEX = -160  # Ends at 0.95 µs: shorter times count as zero.
_LAST_INDEX = 56  # Ends at 128 s, as the recorded histogram does.

# Bucket i ends at 2^(i / 2^SCHEMA) seconds, and begins where i - 1 ends.
_EDGES_SECONDS = tuple(2 ** (i / 2**SCHEMA) for i in range(_FIRST_INDEX, _LAST_INDEX + 1))
EDGES_NS = tuple(round(edge * 1e9) for edge in _EDGES_SECONDS)
"""The edges to count at. The first edge ends the zero bucket."""


def native_histogram(
    cumulative_counts: Sequence[int], *, count: int, sum_seconds: float
) -> NativeHistogram:
    """The histogram of requests, given the counts of at most each of EDGES_NS.

    Longer requests are in the bucket after the last edge.
    """
    zero_count = cumulative_counts[0]
    ends = [*cumulative_counts[1:], count]
    begins = cumulative_counts
    in_bucket = [end - begin for begin, end in zip(begins, ends, strict=True)]
    spans, deltas = _spans(in_bucket)
    return NativeHistogram(
        count_value=count,
        sum_value=sum_seconds,
        schema=SCHEMA,
        zero_threshold=_EDGES_SECONDS[0],
        zero_count=zero_count,
        pos_spans=spans or None,
        pos_deltas=deltas or None,
    )


def _spans(in_bucket: Sequence[int]) -> tuple[list[BucketSpan], list[int]]:
    """The runs of filled buckets, and the difference of each count to the count before.

    A run is (buckets skipped before it, length); the first run counts from index 0.
    """
    spans: list[BucketSpan] = []
    deltas: list[int] = []
    last_index, last_count = -1, 0
    for index, held in enumerate(in_bucket, _FIRST_INDEX + 1):
        if held == 0:
            continue
        if spans and index == last_index + 1:
            spans[-1] = BucketSpan(spans[-1].offset, spans[-1].length + 1)
        else:
            skipped = index - last_index - 1 if spans else index
            spans.append(BucketSpan(skipped, 1))
        deltas.append(held - last_count)
        last_index, last_count = index, held
    return spans, deltas
