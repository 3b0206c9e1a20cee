"""`turns`: servers compared in short turns, each server started by its own shell command.

All servers run at the same time. In each round each of them gets each load for less than a second, so that
a disturbance of the machine affects all of them. The loads are closed loops, open loops at given rates, and
open loops at shares of what the closed loops reached, which may be above 1.

`--profile` needs a module that keeps the names of its functions: add
`-C cmake.define.MILLPOND_KEEP_SYMBOLS=ON -C install.strip=false` to the `pip install` of the
Makefile's `.installed`.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from loadtest.commands.given_servers import (
    PLACEHOLDERS,
    running_servers,
    server_command,
    server_commands,
    server_flags,
    this_command,
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
from loadtest.drive.generator import ChannelOptions
from loadtest.drive.transports import make_certificate, transports
from loadtest.measure.budget import profiled
from loadtest.measure.shares import (
    LOWEST,
    SHARE_OF,
    measure_shares,
    saturations,
    share_rates,
)
from loadtest.measure.turns import measure_loops, prepare
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop, OpenLoop, PlannedLoop
from loadtest.report.tables import exit_status, write_json
from loadtest.report.turns_report import budget_table, print_turns, turns_report
from serving.base.clock import SystemClock
from serving.base.errors import InvalidConfig

SHAPES = "1:1x1,1:1x16,1:4x16,1:64x64,100:1x1,100:1x16,100:4x16,100:64x64"
"""The default of `--shapes`."""


def closed_loops(text: str) -> Sequence[ClosedLoop]:
    """Reads the loops of ROWS:CHANNELSxIN_FLIGHT,...; none for ''. Raises ArgumentTypeError."""
    return [_closed_loop(item) for item in text.split(",") if item]


def open_loops(text: str) -> Sequence[OpenLoop]:
    """Reads the loops of ROWS:RATE,...; none for ''. Raises ArgumentTypeError."""
    return [_open_loop(item) for item in text.split(",") if item]


def shares(text: str) -> Sequence[float]:
    """Reads the shares of SHARE,...; none for ''. Raises ArgumentTypeError."""
    return [positive(item) for item in text.split(",") if item]


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
    _add_server_options(parser)
    parser.add_argument("--rounds", type=positive_integer, default=9, help="default 9")
    parser.add_argument(
        "--seconds",
        type=turn_seconds,
        default=0.7,
        metavar="S",
        help="seconds of a turn; default 0.7; longer if a p99 needs it, which needs 500 requests, or "
        "at a share if a p999 needs it, whose rounds need 5,000 together",
    )
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
    parser.add_argument(
        "--shares",
        type=shares,
        default="",
        metavar="SHARE,...",
        help="open loops at shares of the saturation, which is the highest rate of the closed loops "
        "with the same rows (0.5: 50 %%; 2: twice what the server can do); default none",
    )
    parser.add_argument(
        "--share-of",
        choices=SHARE_OF,
        default=LOWEST,
        help="the saturation that the shares are of: the lowest of all servers, so that all get the "
        "same rate, or each server's own; default lowest",
    )
    parser.add_argument(
        "--deadline",
        type=positive,
        default=10,
        metavar="S",
        help="deadline of each request in seconds; default 10",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="print also the server's processor time of a request, part by part, by Linux's perf",
    )
    add_json_option(parser)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    for option, parse, metavar, text in (
        (
            *("--command", server_command, "[NAME=]CMD"),
            f"a server: a shell command with {PLACEHOLDERS}; without NAME it is named by its program; "
            "may be repeated, and a comparison is with the first one; default: `this`, this "
            "checkout's own server",
        ),
        (
            *("--flags", server_flags, "NAME=FLAGS"),
            "a server: this checkout's own one with these flags, of which there may be none; may be "
            "repeated and mixed with --command",
        ),
    ):
        parser.add_argument(
            option, dest="servers", type=parse, action="append", metavar=metavar, help=text
        )
    parser.add_argument(
        "--transports",
        action="store_true",
        help="the servers: this checkout's own one over plain gRPC, TLS, gzip, deflate, TLS and gzip",
    )
    add_models_option(parser)
    parser.add_argument("--table-rows", type=positive_integer, default=300_000)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    loops: list[PlannedLoop] = [*parsed.shapes, *parsed.rates]
    _check(parsed, loops)
    loads = {loop.rows: _load(parsed, loop.rows) for loop in loops}
    measuring = (parsed.rounds, parsed.seconds, clock, console.print)
    with ExitStack() as stack:
        commands, channels = _commands(parsed, stack)
        directory = stack.enter_context(demo_directory(parsed.models))
        base_path = prepare_model(directory, parsed.table_rows, console.print).base_path
        servers = stack.enter_context(running_servers(commands, channels, base_path, clock))
        prepare(servers, loads, clock, console.print)
        results = measure_loops(servers, loops, loads, *measuring)
        found = saturations(results) if parsed.shares else {}
        if rates := share_rates(found, parsed.shares, parsed.share_of):
            results = {**results, **measure_shares(servers, rates, loads, *measuring)}
        budgets = profiled(servers, results, loads, clock, console.print) if parsed.profile else {}
    report = {**turns_report(commands, results, found), "budgets": budgets}
    print_turns(report, console)
    if budgets:
        console.print(budget_table(budgets))
    write_json(parsed.json, report)
    return status_of(report, parsed.shares)


def status_of(report: Mapping[str, Any], asked_shares: Sequence[float]) -> int:
    """1 if an answer was wrong, or if a request failed although no server got more than it can do.

    Above that, a server has to refuse.
    """
    if max(asked_shares, default=0) > 1:
        return int(report["wrong_answers"] > 0)
    return exit_status(report)


def _check(parsed: argparse.Namespace, loops: Sequence[PlannedLoop]) -> None:
    """Raises InvalidConfig if options contradict each other."""
    if not loops:
        raise InvalidConfig("--shapes and --rates are both empty")
    if parsed.shares and not parsed.shapes:
        raise InvalidConfig("--shares needs --shapes, which measure the saturation")
    if parsed.transports and parsed.servers:
        raise InvalidConfig("--transports names the servers: leave out --command and --flags")


def _load(parsed: argparse.Namespace, rows: int) -> CtrLoad:
    return CtrLoad(
        MODEL_NAME,
        rows=rows,
        table_rows=parsed.table_rows,
        seed=1,
        deadline_seconds=parsed.deadline,
    )


def _commands(
    parsed: argparse.Namespace, stack: ExitStack
) -> tuple[Mapping[str, str], Mapping[str, ChannelOptions]]:
    """Puts together the commands and the channels of the servers, by name."""
    if not parsed.transports:
        return server_commands(parsed.servers), {}
    secrets = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-tls-")))
    made = transports(make_certificate(secrets))
    commands = {name: f"{this_command()} {flags}".rstrip() for name, (flags, _) in made.items()}
    return commands, {name: channel for name, (_, channel) in made.items()}


TURNS = Command(
    "servers compared in short turns, which share the machine's noise", _add_options, _run
)
