"""`hostile`: how slow, half-sent, idle and never-reading connections, and 2,000 that come at once,
affect other clients' tail.

Segments with each attack and quiet segments take turns in one run of one server, so that
disturbances of the machine affect both kinds.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.hostile_clients import Attack, Crowd, attacks
from loadtest.measure.latency import figures, ratio
from loadtest.measure.outcome_figures import answer_figures, generator_figures
from loadtest.measure.process_memory import resident
from loadtest.measure.segments import Segment, SegmentedRun, run_segments
from loadtest.measure.timeline import Span
from loadtest.plan.ctr_load import CtrLoad
from loadtest.report.report import machine
from loadtest.report.tables import (
    generator_line,
    latency_table,
    number,
    print_answers,
)
from serving.base.clock import Clock, pause
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer

GOAL_RATIO = 1.2
"""The goal: p99 of other clients during an attack, divided by p99 without an attack."""

QUIET = "quiet"
# The time until a crowd is connected, and after an attack until its connections are closed.
_CROWD_SECONDS_MAX = 8
_ATTACK_END_SECONDS = 1
_BYTES_PER_MB = 1e6


@dataclass(frozen=True)
class AttackedSegment(Segment):
    """`reopened_count` is the count of connections that the server closed in it."""

    reopened_count: int
    server_bytes: int


HostileRun = SegmentedRun[AttackedSegment]


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_preset_option(parser)
    add_load_options(parser, default_rate=300)
    add_models_option(parser)
    parser.add_argument(
        "--rounds", type=positive_integer, default=2, help="segments of each attack; default 2"
    )
    add_segment_seconds_option(parser, default=10)
    parser.add_argument(
        "--attack",
        action="append",
        metavar="NAME",
        choices=list(attacks(MODEL_NAME, b"")),
        help="repeatable; default: all of %(choices)s",
    )


def _run(parsed: argparse.Namespace) -> int:
    return measure_on_demo_server(
        parsed, measure=_measured, report_of=hostile_report, print_report=print_hostile
    )


def kinds_of(names: Sequence[str], round_count: int) -> Sequence[str]:
    """Returns the kinds in order: a quiet segment before each attack, and one at the end."""
    each = [kind for name in names for kind in (QUIET, name)]
    return (*each * round_count, QUIET)


def _measured(
    parsed: argparse.Namespace,
    load: CtrLoad,
    rate_per_second: float,
    server: ModelServer,
    clock: Clock,
    say: Callable[[str], None],
) -> HostileRun:
    by_name = attacks(MODEL_NAME, load.payloads[0])
    kinds = kinds_of(parsed.attack or list(by_name), parsed.rounds)
    segmented = segmented_of(parsed, load, rate_per_second, kinds, _CROWD_SECONDS_MAX)

    def run_segment(kind: str) -> AttackedSegment:
        return _segment(kind, by_name.get(kind), server, parsed.segment_seconds, clock)

    return run_segments(segmented, server, run_segment, clock=clock, say=say)


def _segment(
    kind: str, attack: Attack | None, server: ModelServer, seconds: float, clock: Clock
) -> AttackedSegment:
    begin_ns = clock.now_ns()
    reopened_count = 0
    if attack is None:
        pause(clock, seconds)
    else:
        # The span includes the connecting of the crowd, which is a part of the attack.
        with Crowd(attack, server.target, server.url, clock) as crowd:
            pause(clock, seconds)
            reopened_count = crowd.reopened_count
    memory = resident(server.process_id, clock)
    if memory is None:
        raise Unavailable(f"the server ended during '{kind}'")
    span = Span(begin_ns, clock.now_ns())
    # The cost of an attack's end is not counted in any segment.
    pause(clock, _ATTACK_END_SECONDS)
    return AttackedSegment(kind, span, reopened_count, memory.anonymous_bytes)


# --- Figures --------------------------------------------------------------------------------------


def hostile_report(run: HostileRun, rate_per_second: float) -> dict[str, Any]:
    """Returns the JSON: the pooled latencies of each kind of segment, and their ratios to quiet
    ones.
    """
    shown = {kind: figures(run.latencies_ns(kind)) for kind in run.kinds}
    return {
        "rate_per_second": rate_per_second,
        **answer_figures([run.outcome], run.wrong_count),
        "latency": shown,
        "ratio_p99": {
            kind: ratio(of_kind, shown[QUIET], "p99_ms")
            for kind, of_kind in shown.items()
            if kind != QUIET
        },
        "goal_ratio_p99": GOAL_RATIO,
        "reopened": {
            kind: sum(segment.reopened_count for segment in run.of_kind(kind)) for kind in shown
        },
        "server_mb_max": {
            kind: round(
                max(segment.server_bytes for segment in run.of_kind(kind)) / _BYTES_PER_MB, 1
            )
            for kind in shown
        },
        "machine": machine(),
        "generator": generator_figures([run.outcome]),
    }


def print_hostile(report: Mapping[str, Any], console: Console) -> None:
    """Prints the table of all kinds, the ratios, and the server's connections and memory."""
    title = f"{report['rate_per_second']:g} requests/s beside each attack"
    console.print(latency_table(title, report["latency"]))
    for kind, value in report["ratio_p99"].items():
        console.print(
            f"{kind}: p99 {number(value)} times that without (goal {report['goal_ratio_p99']:g}); "
            f"{report['reopened'][kind]} connections closed by the server, "
            f"{report['server_mb_max'][kind]} MB private memory",
            highlight=False,
        )
    console.print(generator_line(report["generator"]))
    print_answers(report, console)


HOSTILE = Command(
    "the effect of slow, half-sent, idle and never-reading connections on other clients",
    _add_options,
    _run,
)
