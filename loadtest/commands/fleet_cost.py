"""`fleet-cost`: the processor time and the messages of a fleet's coordinator, for each server."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.measure.fleet_cost import run_fleet_cost
from loadtest.report.report import machine
from loadtest.report.tables import write_json
from serving.base.clock import SystemClock

_SIZES = (10, 100)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--servers",
        type=positive_integer,
        action="append",
        metavar="N",
        help="servers of the fleet; several times for several fleets; default 10 and 100",
    )
    parser.add_argument(
        "--seconds", type=positive, default=20.0, help="length of the rest; default 20"
    )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    rows = []
    for server_count in parsed.servers or _SIZES:
        with TemporaryDirectory() as directory:
            rows += run_fleet_cost(server_count, parsed.seconds, Path(directory), SystemClock())
    table = Table(*(key.replace("_", " ") for key in rows[0]))
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    write_json(parsed.json, {"runs": rows, "machine": machine()})
    return 1 if any(row["failed_calls"] for row in rows) else 0


FLEET_COST = Command(
    "the coordinator of a fleet: its processor time and messages for each server",
    _add_options,
    _run,
)
