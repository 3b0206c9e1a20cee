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

# The columns of the table: the keys of a row, and shorter heads.
_HEADS = {
    "phase": "phase",
    "servers": "servers",
    "seconds": "s",
    "core_share": "cores",
    "processor_ms_per_report": "ms/report",
    "messages_per_server": "messages",
    "messages_per_server_per_second": "a second",
    "grants_per_server": "grants",
    "failed_calls": "failed",
}


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
    table = Table(*_HEADS.values(), caption="messages and grants are for each server")
    for row in rows:
        table.add_row(*(str(row.get(key, "")) for key in _HEADS))
    Console().print(table)
    write_json(parsed.json, {"runs": rows, "machine": machine()})
    return 1 if any(row["failed_calls"] for row in rows) else 0


FLEET_COST = Command(
    "the coordinator of a fleet: its processor time and messages for each server",
    _add_options,
    _run,
)
