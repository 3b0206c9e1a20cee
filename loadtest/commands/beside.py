"""`beside`: how disturbances affect the latency of a steady load over gRPC.

Segments with each disturbance and quiet segments take turns in one run of one server, so that
disturbances of the machine affect both kinds.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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
    positive,
    positive_integer,
)
from loadtest.commands.plain_run import load_of, rate_of
from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.demo_server import demo_server
from loadtest.drive.disturbances import (
    DISTURBANCES,
    ENDLESS,
    ENDLESS_GRPC,
    GROUPS,
    REST,
    Site,
)
from loadtest.drive.rest_load import closed_loop_rate, rows_body
from loadtest.measure.latency import figures, medians, ratio
from loadtest.measure.outcome_figures import answer_figures, generator_figures
from loadtest.measure.process_memory import resident
from loadtest.measure.processor_time import core_waits_ns, spent_ns, thread_times_ns
from loadtest.measure.segments import Segment, SegmentedLoad, SegmentedRun, run_segments, timed
from loadtest.measure.timeline import Span
from loadtest.report.report import machine
from loadtest.report.tables import (
    cores_line,
    exit_status,
    generator_line,
    latency_table,
    number,
    print_answers,
    write_json,
)
from serving.base.clock import Clock, SystemClock, pause
from serving.base.errors import Unavailable
from serving.http.front import HTTP_NICE
from serving.server.model_server import ModelServer

QUIET = "quiet"

# The answer to a page's first poll has the last 15 minutes, and REST's clients connect; what comes
# later is typical.
_SETTLE_SECONDS = 2
# The time after a disturbance until its connections are closed. No segment counts it.
_END_SECONDS = 1
# The time until a crowd is connected.
_CROWD_SECONDS_MAX = 8
_REST_REQUEST_COUNT = 8_000
_BYTES_PER_MB = 1e6
# The begin of the names of the server's request threads.
_REQUEST_THREAD = "request-"
_KEYS = ("p50_ms", "p99_ms", "p999_ms")


@dataclass(frozen=True)
class DisturbedSegment(Segment):
    """`http_core_share` is the share of a core that the server's HTTP threads took, `core_wait_share` the time
    for which its request threads waited for a core, over that of the segment, and `closed_count` the count of
    connections that the server closed.
    """

    http_core_share: float
    core_wait_share: float
    server_bytes: int
    closed_count: int


BesideRun = SegmentedRun[DisturbedSegment]

Latencies = npt.NDArray[np.int64]
"""In ns."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with",
        dest="disturbances",
        action="append",
        required=True,
        choices=(*GROUPS, *DISTURBANCES),
        metavar="NAME",
        help=f"one of {', '.join(DISTURBANCES)}, or a group: {', '.join(GROUPS)}; may be repeated",
    )
    add_preset_option(parser)
    add_load_options(parser, default_rate=300)
    add_models_option(parser)
    parser.add_argument(
        "--rounds", type=positive_integer, default=3, help="segments of each kind; default 3"
    )
    parser.add_argument(
        "--segment-seconds",
        type=positive,
        default=10,
        metavar="S",
        help="seconds of each segment; default 10",
    )


def kinds_of(names: Sequence[str], round_count: int) -> Sequence[str]:
    """The kinds in order: a quiet segment before each disturbance, and one at the end."""
    singles = dict.fromkeys(single for name in names for single in GROUPS.get(name, (name,)))
    each = [kind for name in singles for kind in (QUIET, name)]
    return (*each * round_count, QUIET)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    load = load_of(parsed, MODEL_NAME)
    kinds = kinds_of(parsed.disturbances, parsed.rounds)
    has_slow_model = not {ENDLESS, ENDLESS_GRPC}.isdisjoint(kinds)
    with demo_server(parsed, console.print, has_slow_model=has_slow_model) as server:
        rate_per_second = rate_of(parsed, load, server.target)
        site = _site(parsed, server, load.payloads[0], kinds, clock)
        segmented = SegmentedLoad(
            load=load,
            arrivals=parsed.arrivals,
            rate_per_second=rate_per_second,
            seed=parsed.seed,
            kinds=kinds,
            segment_seconds_max=site.seconds + _CROWD_SECONDS_MAX,
        )
        run = run_segments(
            segmented,
            server,
            lambda kind: _segment(kind, site, server.process_id, parsed.segment_seconds),
            clock=clock,
            say=console.print,
        )
    report = {**beside_report(run, rate_per_second), "rest_rate": round(site.rest_rate, 1)}
    print_beside(report, console)
    write_json(parsed.json, report)
    return exit_status(report)


def _site(
    parsed: argparse.Namespace,
    server: ModelServer,
    message: bytes,
    kinds: Sequence[str],
    clock: Clock,
) -> Site:
    """The site; REST gets half of its highest rate, which is measured here."""
    body = rows_body(parsed.rows, parsed.table_rows, parsed.seed)
    url = f"{server.url}/v1/models/{MODEL_NAME}:predict"
    return Site(
        target=server.target,
        url=server.url,
        message=message,
        rest_body=body,
        rest_rate=closed_loop_rate(url, body, _REST_REQUEST_COUNT) / 2 if REST in kinds else 0,
        seconds=parsed.segment_seconds + 2 * _SETTLE_SECONDS,
        clock=clock,
    )


def _segment(kind: str, site: Site, process_id: int, seconds: float) -> DisturbedSegment:
    """Measures one segment. Raises Unavailable if the server ended or a visit failed."""
    clock, disturbance = site.clock, DISTURBANCES.get(kind)
    waits = core_waits_ns(process_id, _REQUEST_THREAD)
    begin_ns = clock.now_ns()
    with disturbance.start(site) if disturbance else nullcontext() as crowd:
        if disturbance and not disturbance.is_start_measured:
            pause(clock, _SETTLE_SECONDS)
            waits = core_waits_ns(process_id, _REQUEST_THREAD)
            begin_ns = clock.now_ns()
        before = thread_times_ns(process_id, HTTP_NICE)
        span = timed(clock, seconds)
        http_ns = spent_ns(before, thread_times_ns(process_id, HTTP_NICE))
        wait_ns = spent_ns(waits, core_waits_ns(process_id, _REQUEST_THREAD))
        memory = resident(process_id, clock)
    if memory is None:
        raise Unavailable(f"the server ended during '{kind}'")
    pause(clock, _END_SECONDS)
    return DisturbedSegment(
        kind,
        Span(begin_ns, span.end_ns),
        http_core_share=http_ns / (span.end_ns - span.begin_ns),
        core_wait_share=wait_ns / (span.end_ns - begin_ns),
        server_bytes=memory.anonymous_bytes,
        closed_count=crowd.reopened_count if crowd else 0,
    )


# --- Figures --------------------------------------------------------------------------------------


def beside_report(run: BesideRun, rate_per_second: float) -> dict[str, Any]:
    """Makes the JSON: for each kind the latencies of all its segments together, their ratios to quiet
    segments, also as medians of segments, and the cost for the server.
    """
    quiet = run.latencies_by_segment_ns(QUIET)
    return {
        "rate_per_second": rate_per_second,
        **answer_figures([run.outcome], run.wrong_count),
        "latency": {kind: figures(run.latencies_ns(kind)) for kind in run.kinds},
        "kinds": {kind: _of_kind(run, kind, quiet) for kind in run.kinds},
        "ratio_by_chance": _ratio_by_chance(quiet),
        "machine": machine(),
        "generator": generator_figures([run.outcome]),
        "cores_used": vars(run.cores),
    }


def _of_kind(run: BesideRun, kind: str, quiet: Sequence[Latencies]) -> dict[str, Any]:
    segments = run.of_kind(kind)
    each = [figures(part) for part in run.latencies_by_segment_ns(kind)]
    cost = {
        "http_core_share": statistics.median(one.http_core_share for one in segments),
        "core_wait_share": statistics.median(one.core_wait_share for one in segments),
        "server_mb_max": round(max(one.server_bytes for one in segments) / _BYTES_PER_MB, 1),
        "closed_count": sum(one.closed_count for one in segments),
    }
    if kind == QUIET:
        return cost
    key, goal = DISTURBANCES[kind].goal
    medians_of_quiet = medians([figures(part) for part in quiet], _KEYS)
    return {
        **cost,
        "ratio": _ratios(figures(run.latencies_ns(kind)), figures(np.concatenate(quiet))),
        "ratio_of_medians": _ratios(medians(each, _KEYS), medians_of_quiet),
        "goal": {key: goal},
    }


def _ratios(over: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, float | None]:
    return {key: ratio(over, under, key) for key in _KEYS}


def _ratio_by_chance(quiet: Sequence[Latencies]) -> dict[str, float | None]:
    """The ratio that chance alone gives: between two halves of the quiet segments, the larger over the
    smaller.
    """
    if len(quiet) < 2:
        return dict.fromkeys(_KEYS)
    halves = [figures(np.concatenate(quiet[first::2])) for first in (0, 1)]
    ratios = _ratios(halves[0], halves[1])
    return {key: one if not one or one >= 1 else round(1 / one, 3) for key, one in ratios.items()}


def print_beside(report: Mapping[str, Any], console: Console) -> None:
    """Prints the table of all kinds, and for each its ratios, its goal and its cost."""
    title = f"gRPC, {report['rate_per_second']:g} requests/s"
    console.print(latency_table(title, report["latency"]))
    for kind, shown in report["kinds"].items():
        ratios = ""
        if kind != QUIET:
            ((key, goal),) = shown["goal"].items()
            ratios = (
                f"{_text(shown['ratio'])} times quiet (goal: {key.removesuffix('_ms')} {goal:g}), of "
                f"the segments' medians {_text(shown['ratio_of_medians'])}; "
            )
        console.print(
            f"{kind}: {ratios}HTTP threads {shown['http_core_share']:.2%} of a core, "
            f"request threads wait for {shown['core_wait_share']:.2%} of a core, "
            f"{shown['server_mb_max']} MB private memory, {shown['closed_count']} connections closed "
            "by the server",
            highlight=False,
        )
    chance = _text(report["ratio_by_chance"])
    console.print(
        f"half of the quiet segments over the other, by chance: {chance}", highlight=False
    )
    console.print(generator_line(report["generator"]))
    console.print(cores_line(report["cores_used"]))
    print_answers(report, console)


def _text(ratios: Mapping[str, float | None]) -> str:
    return ", ".join(f"{k.removesuffix('_ms')} {number(one, 3)}" for k, one in ratios.items())


BESIDE = Command(
    "a steady load beside a disturbance: hostile clients, visits, REST, endless requests",
    _add_options,
    _run,
)
