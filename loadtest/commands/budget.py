"""`budget`: the processor time of a request, part by part, from a profile of the server.

Each load is put on the server twice: once undisturbed, for the server's processor time per request,
and once under `perf`, for the shares of its parts. The names of our functions need a module that
keeps them: add `-C cmake.define.MILLPOND_KEEP_SYMBOLS=ON -C install.strip=false` to the `pip install`
of the Makefile's `.installed`.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.commands.given_servers import (
    add_servers_options,
    ctr_load,
    running_servers,
    server_commands,
)
from loadtest.commands.options import Command
from loadtest.commands.turns import closed_loops
from loadtest.drive.demo_model import demo_directory, prepare_model
from loadtest.drive.profile import recorded, script_of
from loadtest.drive.shell_server import ShellServer
from loadtest.measure.budget import SCRIPT_FIELDS, budget_us, summed
from loadtest.measure.turns import take_turn, turn_request_count, warm_up
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop
from loadtest.report.report import machine
from loadtest.report.tables import write_json
from serving.base.clock import Clock, SystemClock

_SHAPES = "1:1x1,1:4x16"
_SECONDS = 4
# A part below this share of a request is not printed.
_SHOWN_SHARE = 0.005


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_servers_options(parser)
    parser.add_argument(
        "--shapes",
        type=closed_loops,
        default=_SHAPES,
        metavar="ROWS:CHANNELSxIN_FLIGHT,...",
        help=f"closed loops; default {_SHAPES}",
    )


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    commands = server_commands(parsed.servers)
    budgets: dict[str, dict[str, Any]] = {}
    with demo_directory(parsed.models) as directory, TemporaryDirectory() as profiles:
        base_path = prepare_model(directory, parsed.table_rows, console.print).base_path
        for name, command in commands.items():
            with running_servers({name: command}, base_path, clock) as servers:
                for loop in parsed.shapes:
                    load = ctr_load(parsed, loop.rows)
                    budgets[f"{name} {loop}"] = _budget(
                        servers[name], loop, load, Path(profiles) / "perf.data", clock
                    )
    console.print(budget_table(budgets))
    write_json(parsed.json, {"commands": dict(commands), "loads": budgets, "machine": machine()})
    return 0


def _budget(
    server: ShellServer, loop: ClosedLoop, load: CtrLoad, profile: Path, clock: Clock
) -> dict[str, Any]:
    server.wait_until_ready(load.payloads[0])
    warm_up(server, load, loop.rows, clock)
    count = turn_request_count(server, loop, load, _SECONDS, clock)
    undisturbed = take_turn(server, loop, load, count, 1, clock)
    with recorded(server.process_ids(), profile):
        take_turn(server, loop, load, count, 2, clock)
    request_us = undisturbed.server_ns / count / 1_000
    return {
        "request_us": round(request_us, 1),
        "parts": dict(budget_us(script_of(profile, SCRIPT_FIELDS), request_us)),
    }


def budget_table(budgets: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns the table: a row for each part, a column for each load, and the sums in the end."""
    table = Table("µs of a request", *budgets, title="server's processor time per request")
    columns = [of_load["parts"] for of_load in budgets.values()]
    shown = {
        part: None
        for of_load in budgets.values()
        for part, microseconds in of_load["parts"].items()
        if microseconds >= _SHOWN_SHARE * of_load["request_us"]
    }
    for part in sorted(shown):
        table.add_row(part, *(f"{parts.get(part, 0):.1f}" for parts in columns))
    table.add_section()
    groups = [summed(parts) for parts in columns]
    for group in dict.fromkeys(name for sums in groups for name in sums):
        table.add_row(group, *(f"{sums.get(group, 0):.1f}" for sums in groups))
    table.add_section()
    table.add_row("all", *(f"{of_load['request_us']:.1f}" for of_load in budgets.values()))
    return table


BUDGET = Command(
    "the processor time of a request, part by part, from a profile", _add_options, _run
)
