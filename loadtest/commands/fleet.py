"""`fleet`: a simulated fleet of servers that fail in every way, and the promises of its coordinator.

`--cost` measures instead the processor time and the messages of a coordinator's process.
"""

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.measure.fleet_cost import run_fleet_cost
from loadtest.measure.fleet_scenario import run_fleet_scenario
from loadtest.measure.fleet_simulation import BrokenPromise
from loadtest.report.report import machine
from loadtest.report.tables import write_json
from serving.base.clock import SystemClock

_SIZES, _COST_SIZES = (10, 1_000, 10_000), (10, 100)

# The columns of the cost: the keys of a row, and shorter heads.
_COST_HEADS = {
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
        help="servers of the fleet; several times for several fleets; default 10, 1000 and 10000, "
        "or 10 and 100 with --cost",
    )
    parser.add_argument(
        "--seeds", type=positive_integer, default=1, help="runs of each size; default 1"
    )
    parser.add_argument("--first-seed", type=int, default=1, metavar="K", help="default 1")
    parser.add_argument(
        "--cost",
        action="store_true",
        help="measure a coordinator's process on members that run no model",
    )
    parser.add_argument(
        "--seconds", type=positive, default=20.0, help="length of the rest of --cost; default 20"
    )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.cost:
        return _show_cost(parsed)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    console, clock = Console(), SystemClock()
    rows, broken = [], 0
    for server_count in parsed.servers or _SIZES:
        for seed in range(parsed.first_seed, parsed.first_seed + parsed.seeds):
            try:
                rows.append(run_fleet_scenario(server_count, seed, clock))
            except BrokenPromise as error:
                broken += 1
                console.print(f"{server_count} servers, seed {seed}: {error}", markup=False)
    for row in rows:
        print_blocked(row, console)
    console.print(fleet_table(rows))
    console.print(f"{len(rows)} runs kept every promise, {broken} did not")
    write_json(parsed.json, {"runs": rows, "broken": broken, "machine": machine()})
    return 1 if broken else 0


def _show_cost(parsed: argparse.Namespace) -> int:
    rows: list[Mapping[str, Any]] = []
    for server_count in parsed.servers or _COST_SIZES:
        with TemporaryDirectory() as directory:
            rows += run_fleet_cost(server_count, parsed.seconds, Path(directory), SystemClock())
    table = Table(*_COST_HEADS.values(), caption="messages and grants are for each server")
    for row in rows:
        table.add_row(*(str(row.get(key, "")) for key in _COST_HEADS))
    Console().print(table)
    write_json(parsed.json, {"runs": rows, "machine": machine()})
    return 1 if any(row["failed_calls"] for row in rows) else 0


def print_blocked(row: Mapping[str, Any], console: Console) -> None:
    """Prints for each blocked version the number of servers that had it, and the wave in which it was
    stopped.
    """
    stopped = ", ".join(
        f"{name}: wave {item['wave']}, {item['servers']} servers"
        for name, item in row["blocked"].items()
    )
    console.print(f"{row['servers']} servers, seed {row['seed']}: {stopped}", highlight=False)


def fleet_table(rows: list[Mapping[str, Any]]) -> Table:
    """A table with a row for each run."""
    table = Table(
        "servers",
        "seed",
        "simulated s",
        "s",
        "decision p50, p99, max ms",
        "state KB",
        "grants",
        "coordinators",
        "swapping, limit",
        "good ones stopped",
    )
    for row in rows:
        times = (row[f"decision_ms_{name}"] for name in ("p50", "p99", "max"))
        table.add_row(
            f"{row['servers']:,}",
            str(row["seed"]),
            f"{row['simulated_seconds']:,}",
            str(row["wall_seconds"]),
            ", ".join(map(str, times)),
            f"{row['state_bytes_max'] / 1e3:.1f}",
            f"{row['grants']:,}",
            str(row["coordinators"]),
            f"{row['swapping_max']}, {row['swapping_limit']}",
            str(row["rollbacks_of_good_versions"]),
        )
    return table


FLEET = Command(
    "a simulated fleet that swaps in waves: its promises under faults, and a coordinator's cost",
    _add_options,
    _run,
)
