"""The seconds of a model's history as columns for the charts of the live page. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.base.clock import NS_PER_SECOND
from serving.data_plane.request_statistics import HistoryPoint, LatencyFigures

# If a second ends late, the next second is shorter by the same time. Its few requests in a few
# milliseconds would look like a spike, so such a point is combined with the next point.
SPAN_NS_MIN = NS_PER_SECOND // 2

# If points are farther apart, nothing was recorded between them, and a point covers its own second.
SPAN_NS_MAX = 2 * NS_PER_SECOND

LATENCY_COLUMNS = ("p50_us", "p99_us", "p999_us")


@dataclass(frozen=True)
class _Span:
    """Combined points: their length and counts, and the latency of the last point."""

    at_ns: int
    seconds: float
    count: int
    failed_count: int
    latency: LatencyFigures


def points_json(
    history: Sequence[HistoryPoint], since_ns: int, unix_offset_ns: int
) -> tuple[dict[str, list[Any]], int]:
    """The points as columns, and the `since_ns` for the points that follow them.

    `since_ns` is the end of the points returned before; 0 if there were none. `unix_offset_ns` added to
    a monotonic time gives Unix time. Latencies are in µs of the last 10 s, None without a request;
    `window_count` is the number of requests in these 10 s.
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
    """The count, and the quantiles in whole µs; None if there were no requests."""
    if figures.count == 0:
        return None
    return {
        "count": figures.count,
        "p50_us": round(figures.p50_ns / 1_000),
        "p99_us": round(figures.p99_ns / 1_000),
        "p999_us": round(figures.p999_ns / 1_000),
    }


def _spans(history: Sequence[HistoryPoint], since_ns: int) -> list[_Span]:
    """Combines short points. A short last point is left out until the next poll."""
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
