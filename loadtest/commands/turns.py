"""`turns`: servers compared in short turns, each server started by its own shell command.

All servers run at the same time. In each round each of them gets each load for less than a second, so
that a disturbance of the machine affects all of them.
"""

import argparse
from collections.abc import Sequence

from rich.console import Console

from loadtest.commands.given_servers import (
    add_servers_options,
    running_servers,
    server_commands,
)
from loadtest.commands.options import (
    Command,
    add_json_option,
    add_models_option,
    positive,
    positive_integer,
    turn_seconds,
)
from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.measure.turns import measure_loops, prepare
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop, OpenLoop, PlannedLoop
from loadtest.report.tables import exit_status, write_json
from loadtest.report.turns_report import print_turns, turns_report
from serving.base.clock import SystemClock
from serving.base.errors import InvalidConfig

SHAPES = "1:1x1,1:1x16,1:4x16,1:64x64,100:1x1,100:1x16,100:4x16,100:64x64"
"""The default of `--shapes`."""


def closed_loops(text: str) -> Sequence[ClosedLoop]:
    """Returns the loops of ROWS:CHANNELSxIN_FLIGHT,...; none for ''. Raises ArgumentTypeError."""
    return [_closed_loop(item) for item in text.split(",") if item]


def open_loops(text: str) -> Sequence[OpenLoop]:
    """Returns the loops of ROWS:RATE,...; none for ''. Raises ArgumentTypeError."""
    return [_open_loop(item) for item in text.split(",") if item]


def _closed_loop(text: str) -> ClosedLoop:
    rows, _, clients = text.partition(":")
    channels, _, in_flight = clients.partition("x")
    try:
        return ClosedLoop(*(positive_integer(word) for word in (rows, channels, in_flight)))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not ROWS:CHANNELSxIN_FLIGHT: {error}"
        ) from None


def _open_loop(text: str) -> OpenLoop:
    rows, _, rate = text.partition(":")
    try:
        return OpenLoop(positive_integer(rows), positive(rate))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWS:RATE: {error}") from None


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_servers_options(parser)
    parser.add_argument(
        "--shapes",
        type=closed_loops,
        default=SHAPES,
        metavar="ROWS:CHANNELSxIN_FLIGHT,...",
        help=f"closed loops; default {SHAPES}",
    )
    parser.add_argument(
        "--rates",
        type=open_loops,
        default="",
        metavar="ROWS:RATE,...",
        help="open loops; default none",
    )
    parser.add_argument("--rounds", type=positive_integer, default=9, help="default 9")
    parser.add_argument(
        "--seconds",
        type=turn_seconds,
        default=0.7,
        metavar="S",
        help="seconds of each turn; default 0.7; longer if a p99 needs it, which needs 500 requests",
    )
    add_models_option(parser)
    parser.add_argument("--table-rows", type=positive_integer, default=300_000)
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    commands = server_commands(parsed.servers)
    loops: list[PlannedLoop] = [*parsed.shapes, *parsed.rates]
    if not loops:
        raise InvalidConfig("--shapes and --rates are both empty")
    loads = {
        loop.rows: CtrLoad(MODEL_NAME, rows=loop.rows, table_rows=parsed.table_rows, seed=1)
        for loop in loops
    }
    with demo_directory(parsed.models) as directory:
        base_path = prepare_model(directory, parsed.table_rows, console.print).base_path
        with running_servers(commands, base_path, clock) as servers:
            prepare(servers, loads, clock, console.print)
            results = measure_loops(
                servers, loops, loads, parsed.rounds, parsed.seconds, clock, console.print
            )
    report = turns_report(commands, results)
    print_turns(report, console)
    write_json(parsed.json, report)
    return exit_status(report)


TURNS = Command(
    "servers compared in short turns, which share the machine's noise", _add_options, _run
)
