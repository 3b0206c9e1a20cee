"""`turns`: servers compared in short turns, each server started by its own shell command.

All servers run at the same time. In each round each of them gets each load for less than a second, so
that a disturbance of the machine affects all of them.
"""

import argparse
from collections.abc import Sequence

from rich.console import Console

from loadtest.commands.given_servers import (
    add_turns_options,
    prepared_servers,
    server_commands,
)
from loadtest.commands.options import Command, positive, positive_integer
from loadtest.measure.turns import measure_loops
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
    add_turns_options(parser, rounds=9, seconds=0.7)
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


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    loops: list[PlannedLoop] = [*parsed.shapes, *parsed.rates]
    if not loops:
        raise InvalidConfig("--shapes and --rates are both empty")
    rows = [loop.rows for loop in loops]
    with prepared_servers(parsed, rows, clock, console.print) as (servers, loads):
        results = measure_loops(
            servers, loops, loads, parsed.rounds, parsed.seconds, clock, console.print
        )
    report = turns_report(server_commands(parsed.servers), results)
    print_turns(report, console)
    write_json(parsed.json, report)
    return exit_status(report)


TURNS = Command(
    "servers compared in short turns, which share the machine's noise", _add_options, _run
)
