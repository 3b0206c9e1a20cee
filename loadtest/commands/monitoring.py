"""`monitoring`: how a scrape of /metrics and an open page, each once a second, affect gRPC's tail.

Segments with and without them take turns in one run of one server, so that disturbances of the
machine affect both kinds. After them, a segment with each visitor alone shows its processor time:
the time of the server's HTTP threads, which are recognized by their nice value.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from loadtest.commands.options import (
    Command,
    add_load_options,
    add_models_option,
    add_preset_option,
    add_segment_seconds_option,
    positive_integer,
    segmented_of,
)
from loadtest.commands.segmented_command import measure_on_demo_server
from loadtest.drive.http_visitors import PagePolls, Visitor, scrape, visited
from loadtest.measure.latency import figures, medians, ratio
from loadtest.measure.outcome_figures import answer_figures, generator_figures
from loadtest.measure.processor_time import spent_ns, thread_times_ns
from loadtest.measure.segments import Segment, SegmentedRun, run_segments, timed
from loadtest.plan.ctr_load import CtrLoad
from loadtest.report.report import machine
from loadtest.report.tables import (
    cores_line,
    generator_line,
    latency_table,
    number,
    print_answers,
)
from serving.base.clock import Clock, pause
from serving.http.server import HTTP_NICE
from serving.server.model_server import ModelServer

GOAL_RATIO = 1.05
"""The goal: p999 with a scrape every second and an open page, divided by p999 without them."""

GOAL_PAGE_CORE_SHARE = 0.01
"""The goal: the share of a core that the page may take while it is open."""

WITHOUT, WITH, PAGE, SCRAPE = "without", "with both", "page alone", "scrape alone"

# Left out: the answer to a page's first poll has the last 15 minutes; later polls are typical.
_VISITS_SETTLE_SECONDS = 1
_KEYS = ("p50_ms", "p99_ms", "p999_ms")


@dataclass(frozen=True)
class VisitedSegment(Segment):
    """`http_core_share` is the share of a core that the server's HTTP threads took in it."""

    http_core_share: float


MonitoredRun = SegmentedRun[VisitedSegment]


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_preset_option(parser)
    add_load_options(parser, default_rate=300)
    add_models_option(parser)
    parser.add_argument(
        "--segments",
        type=positive_integer,
        default=6,
        help="segments of each of the two kinds, in turn; default 6",
    )
    add_segment_seconds_option(parser, default=20)


def _run(parsed: argparse.Namespace) -> int:
    return measure_on_demo_server(
        parsed, measure=_measured, report_of=monitoring_report, print_report=print_monitoring
    )


def kinds_of(segment_count: int) -> Sequence[str]:
    """Returns the kinds of a run's segments in order: the two kinds in turn, then each visitor
    alone.
    """
    return (*(WITHOUT, WITH) * segment_count, PAGE, SCRAPE)


def _measured(
    parsed: argparse.Namespace,
    load: CtrLoad,
    rate_per_second: float,
    server: ModelServer,
    clock: Clock,
    say: Callable[[str], None],
) -> MonitoredRun:
    segmented = segmented_of(
        parsed, load, rate_per_second, kinds_of(parsed.segments), _VISITS_SETTLE_SECONDS + 1
    )

    def run_segment(kind: str) -> VisitedSegment:
        return _segment(kind, server, parsed.segment_seconds, clock)

    return run_segments(segmented, server, run_segment, clock=clock, say=say)


def _segment(kind: str, server: ModelServer, seconds: float, clock: Clock) -> VisitedSegment:
    """Measures one segment. Raises Unavailable if a visit failed."""
    with visited(visitors_of(kind, server.url, clock)):
        pause(clock, _VISITS_SETTLE_SECONDS)
        http_before = thread_times_ns(server.process_id, HTTP_NICE)
        span = timed(clock, seconds)
        http_ns = spent_ns(http_before, thread_times_ns(server.process_id, HTTP_NICE))
    return VisitedSegment(kind, span, http_ns / (span.end_ns - span.begin_ns))


def visitors_of(kind: str, url: str, clock: Clock) -> Sequence[Visitor]:
    """Returns the visitors of a segment of that kind."""
    page = Visitor("page", url, PagePolls(), clock)
    prometheus = Visitor("prometheus", url, scrape, clock)
    return {WITHOUT: (), WITH: (page, prometheus), PAGE: (page,), SCRAPE: (prometheus,)}[kind]


# --- Figures --------------------------------------------------------------------------------------


def monitoring_report(run: MonitoredRun, rate_per_second: float) -> dict[str, Any]:
    """Returns the JSON: each kind's requests pooled, medians over segments, ratios, shares of a
    core.
    """
    latencies = {kind: run.latencies_by_segment_ns(kind) for kind in (WITHOUT, WITH)}
    pooled = {kind: figures(np.concatenate(parts)) for kind, parts in latencies.items()}
    each = {kind: [figures(part) for part in parts] for kind, parts in latencies.items()}
    of_segments = {kind: medians(shown, _KEYS) for kind, shown in each.items()}
    return {
        "rate_per_second": rate_per_second,
        **answer_figures([run.outcome], run.wrong_count),
        "pooled": pooled,
        "medians_of_segments": of_segments,
        "segments": each,
        "ratio_pooled": _ratios(pooled),
        "ratio_of_medians": _ratios(of_segments),
        "ratio_by_chance": _ratio_by_chance(latencies[WITHOUT]),
        "goal_ratio_p999": GOAL_RATIO,
        "http_core_share": {
            kind: _share(run.of_kind(kind)) for kind in (WITHOUT, PAGE, SCRAPE, WITH)
        },
        "goal_page_core_share": GOAL_PAGE_CORE_SHARE,
        "machine": machine(),
        "generator": generator_figures([run.outcome]),
        "cores_used": vars(run.cores),
    }


def _ratios(by_kind: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    return {key: ratio(by_kind[WITH], by_kind[WITHOUT], key) for key in _KEYS}


def _ratio_by_chance(quiet: Sequence[npt.NDArray[np.int64]]) -> dict[str, float | None]:
    """Returns the ratio between two halves of the quiet segments, the larger over the smaller: the
    ratio that chance alone gives.
    """
    if len(quiet) < 2:
        return dict.fromkeys(_KEYS)
    halves = [figures(np.concatenate(quiet[first::2])) for first in (0, 1)]
    ratios: dict[str, float | None] = {}
    for key in _KEYS:
        one = ratio(halves[0], halves[1], key)
        ratios[key] = one if not one or one >= 1 else round(1 / one, 3)
    return ratios


def _share(segments: Sequence[VisitedSegment]) -> float:
    shares = [segment.http_core_share for segment in segments]
    return round(statistics.median(shares), 5)


# --- What people read -----------------------------------------------------------------------------


def print_monitoring(report: Mapping[str, Any], console: Console) -> None:
    """Prints the table of both kinds, their ratios, and HTTP's share of a core."""
    title = (
        f"{report['rate_per_second']:g} requests/s, with and without /metrics and page each second"
    )
    console.print(latency_table(title, report["pooled"]))
    for name, key in (
        ("pooled", "ratio_pooled"),
        ("of the segments' medians", "ratio_of_medians"),
        ("of half of the quiet segments over the other, by chance", "ratio_by_chance"),
    ):
        shown = ", ".join(f"{k.removesuffix('_ms')} {number(report[key][k], 3)}" for k in _KEYS)
        console.print(f"ratio {name}: {shown}", highlight=False)
    shares = report["http_core_share"]
    console.print(
        f"goals: p999 at most {report['goal_ratio_p999']:g}, page below "
        f"{report['goal_page_core_share']:.0%} of a core; share of a core of the HTTP threads: "
        + ", ".join(f"{kind} {shares[kind]:.2%}" for kind in shares),
        highlight=False,
    )
    console.print(generator_line(report["generator"]))
    console.print(cores_line(report["cores_used"]))
    print_answers(report, console)


MONITORING = Command(
    "the effect of scrapes of /metrics and an open page on the tail of gRPC", _add_options, _run
)
