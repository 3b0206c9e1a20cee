"""`hostile`: how slow, half-sent, idle and never-reading connections affect other clients' tail.

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
    positive,
    positive_integer,
)
from loadtest.commands.plain_run import load_of, rate_of
from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.demo_server import demo_server
from loadtest.drive.generator import Generator
from loadtest.drive.hostile_clients import Attack, Crowd, attacks
from loadtest.measure.latency import figures, ratio
from loadtest.measure.outcome_figures import error_messages, generator_figures, latencies_within_ns
from loadtest.measure.process_memory import resident
from loadtest.measure.timeline import Span
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome
from loadtest.report.report import machine
from loadtest.report.tables import generator_line, latency_table, number, write_json
from serving.base.clock import Clock, SystemClock, pause
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer

GOAL_RATIO = 1.2
"""The goal: p99 of other clients during an attack, divided by p99 without an attack."""

QUIET = "quiet"
_SETTLE_SECONDS = 2
_BYTES_PER_MB = 1e6


@dataclass(frozen=True)
class Segment:
    """A part of the run. `reopened_count` is the count of connections that the server closed in
    it.
    """

    kind: str
    span: Span
    reopened_count: int
    server_bytes: int


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_preset_option(parser)
    add_load_options(parser, default_rate=300)
    add_models_option(parser)
    parser.add_argument(
        "--rounds", type=positive_integer, default=2, help="segments of each attack; default 2"
    )
    parser.add_argument(
        "--segment-seconds",
        type=positive,
        default=10,
        metavar="S",
        help="seconds of each segment; default 10",
    )


def _run(parsed: argparse.Namespace) -> int:
    clock, console = SystemClock(), Console()
    load = load_of(parsed, MODEL_NAME)
    with demo_server(parsed, console.print) as server:
        rate_per_second = rate_of(parsed, load, server.target)
        outcome, segments = _measured(parsed, load, rate_per_second, server, clock, console.print)
    wrong_count = int(load.wrong(outcome, content_of=lambda version: version).sum())
    report = hostile_report(outcome, segments, wrong_count, rate_per_second)
    print_hostile(report, console)
    write_json(parsed.json, report)
    return 1 if report["errors"] or report["wrong_answers"] else 0


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
) -> tuple[Outcome, Sequence[Segment]]:
    by_name = attacks(MODEL_NAME, load.payloads[0])
    kinds = kinds_of(list(by_name), parsed.rounds)
    # Drawn for longer than the segments take; the generator is stopped at the end.
    seconds = _SETTLE_SECONDS + len(kinds) * (parsed.segment_seconds + 4 * _SETTLE_SECONDS)
    offsets_ns = ARRIVALS[parsed.arrivals](rate_per_second, seconds, parsed.seed)
    with Generator(load.plan(offsets_ns, parsed.seed), server.target) as generator:
        pause(clock, _SETTLE_SECONDS)
        segments = []
        for position, kind in enumerate(kinds, 1):
            say(f"segment {position} of {len(kinds)}: {kind}")
            segments.append(_segment(kind, by_name.get(kind), server, parsed, clock))
        return generator.stop(), segments


def _segment(
    kind: str, attack: Attack | None, server: ModelServer, parsed: argparse.Namespace, clock: Clock
) -> Segment:
    begin_ns = clock.now_ns()
    reopened_count = 0
    if attack is None:
        pause(clock, parsed.segment_seconds)
    else:
        # The span includes the connecting of the crowd, which is a part of the attack.
        with Crowd(attack, server.target, server.url, clock) as crowd:
            pause(clock, parsed.segment_seconds)
            reopened_count = crowd.reopened_count
    memory = resident(server.process_id, clock)
    if memory is None:
        raise Unavailable(f"the server ended during '{kind}'")
    span = Span(begin_ns, clock.now_ns())
    segment = Segment(kind, span, reopened_count, memory.anonymous_bytes)
    # The cost of an attack's end is not counted in any segment.
    pause(clock, _SETTLE_SECONDS / 2)
    return segment


# --- Figures --------------------------------------------------------------------------------------


def hostile_report(
    outcome: Outcome, segments: Sequence[Segment], wrong_count: int, rate_per_second: float
) -> dict[str, Any]:
    """Returns the JSON: the pooled latencies of each kind of segment, and their ratios to quiet
    ones.
    """
    shown = {
        kind: figures(latencies_within_ns(outcome, [s.span for s in segments if s.kind == kind]))
        for kind in _kinds(segments)
    }
    return {
        "rate_per_second": rate_per_second,
        "errors": int((outcome.codes != 0).sum()),
        "wrong_answers": wrong_count,
        "error_messages": error_messages([outcome]),
        "latency": shown,
        "ratio_p99": {
            kind: ratio(of_kind, shown[QUIET], "p99_ms")
            for kind, of_kind in shown.items()
            if kind != QUIET
        },
        "goal_ratio_p99": GOAL_RATIO,
        "reopened": {kind: _sum_reopened(segments, kind) for kind in shown},
        "server_mb_max": {
            kind: round(max(_bytes(segments, kind)) / _BYTES_PER_MB, 1) for kind in shown
        },
        "machine": machine(),
        "generator": generator_figures([outcome]),
    }


def _kinds(segments: Sequence[Segment]) -> Sequence[str]:
    return list(dict.fromkeys(segment.kind for segment in segments))


def _sum_reopened(segments: Sequence[Segment], kind: str) -> int:
    return sum(segment.reopened_count for segment in segments if segment.kind == kind)


def _bytes(segments: Sequence[Segment], kind: str) -> list[int]:
    return [segment.server_bytes for segment in segments if segment.kind == kind]


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
    console.print(f"errors {report['errors']}, wrong answers {report['wrong_answers']}")
    for message in report["error_messages"]:
        console.print(f"  {message}", markup=False)


HOSTILE = Command(
    "the effect of slow, half-sent, idle and never-reading connections on other clients",
    _add_options,
    _run,
)
