"""The seconds of a model's history as the live page's charts take them: columns, and whole seconds only.

Pure: values in, values out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.base.clock import NS_PER_SECOND
from serving.data_plane.request_statistics import HistoryPoint, LatencyFigures

# Where a second came late, the next one is as much shorter, and its few requests over its few
# milliseconds would be a spike that never was: such points are taken together with the next.
SPAN_NS_MIN = NS_PER_SECOND // 2

# Beyond this nothing was recorded in between, and the point is that of its own second.
SPAN_NS_MAX = 2 * NS_PER_SECOND

LATENCY_COLUMNS = ("p50_us", "p99_us", "p999_us")


@dataclass(frozen=True)
class _Span:
    """Points taken together: how long, with how much, and what the last one knows of latency."""

    at_ns: int
    seconds: float
    count: int
    failed_count: int
    latency: LatencyFigures


def points_json(
    history: Sequence[HistoryPoint], since_ns: int, unix_offset_ns: int
) -> tuple[dict[str, list[Any]], int]:
    """The points as columns, and the `since_ns` with which to ask for those that come after them.

    `since_ns`: where the points given before ended; 0: none were. `unix_offset_ns`: what to add to
    a monotonic time to get Unix time. Latencies in µs, None where no request was in their 10 s;
    `window_count` is how many were.
    """
    spans = _spans(history, since_ns)
    columns: dict[str, list[Any]] = {
        "at": [round((span.at_ns + unix_offset_ns) / NS_PER_SECOND, 2) for span in spans],
        "per_second": [round(span.count / span.seconds, 1) for span in spans],
        "failed_per_second": [round(span.failed_count / span.seconds, 2) for span in spans],
        "window_count": [span.latency.count for span in spans],
    }
    latencies = [latency_json(span.latency) for span in spans]
    for name in LATENCY_COLUMNS:
        columns[name] = [latency[name] if latency else None for latency in latencies]
    return columns, spans[-1].at_ns if spans else since_ns


def latency_json(figures: LatencyFigures) -> dict[str, int] | None:
    """Count and quantiles in whole µs; None where there were no requests."""
    if figures.count == 0:
        return None
    return {
        "count": figures.count,
        "p50_us": round(figures.p50_ns / 1_000),
        "p99_us": round(figures.p99_ns / 1_000),
        "p999_us": round(figures.p999_ns / 1_000),
    }


def _spans(history: Sequence[HistoryPoint], since_ns: int) -> list[_Span]:
    """A last one that is too short is left out: it is given with its next, at the next poll."""
    spans = []
    began_ns, count, failed_count = since_ns, 0, 0
    for point in history:
        length_ns = point.at_ns - began_ns
        count += point.count
        failed_count += point.failed_count
        if length_ns < SPAN_NS_MIN:
            continue
        if length_ns > SPAN_NS_MAX:
            length_ns = NS_PER_SECOND
        seconds = length_ns / NS_PER_SECOND
        spans.append(_Span(point.at_ns, seconds, count, failed_count, point.latency))
        began_ns, count, failed_count = point.at_ns, 0, 0
    return spans
