"""`fleet-ray`: a fleet on a Ray cluster of this machine, under load through HAProxy.

Versions come in waves, good ones and bad ones, and a node, the coordinator and a server die. No request may
fail: if an attempt is in flight on a part that is killed, its client tries again.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.drive.fleet_model import GOOD, MODEL_NAME, FleetModel
from loadtest.drive.ray_cluster import ray_fleet
from loadtest.measure.ray_scenarios import (
    SERVER_SETTINGS,
    Scenarios,
    check_reports,
    fleet_tables,
    lone_server,
    ratios,
    run_scenarios,
)
from loadtest.measure.retried_load import RetriedLoad
from loadtest.report.report import machine
from loadtest.report.tables import number, write_json
from serving.base.clock import SystemClock


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--servers", type=positive_integer, default=5, metavar="N", help="servers; default 5"
    )
    parser.add_argument(
        "--nodes", type=positive_integer, default=3, metavar="N", help="nodes; default 3"
    )
    parser.add_argument(
        "--rate", type=positive, default=250.0, help="requests per second in all; default 250"
    )
    parser.add_argument(
        "--steady-seconds",
        type=positive,
        default=26.0,
        help="the time without a change, and of one server's swaps; default 26",
    )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    start_ns = clock.now_ns()
    # The name is short, because Ray's sockets lie in the directory.
    with TemporaryDirectory(prefix="mp-ray-") as text:
        directory = Path(text)
        model = FleetModel(directory / "model")
        model.drop(GOOD, 1)
        settings = directory / "settings.toml"
        settings.write_text(SERVER_SETTINGS)

        def tables(address: str) -> str:
            return fleet_tables(address, model, settings, servers=parsed.servers)

        with ray_fleet(directory, parsed.nodes, tables) as (cluster, fleet):
            fleet.wait_for(
                lambda: len(fleet.serving(MODEL_NAME)) == parsed.servers, "the servers", 240
            )
            with RetriedLoad(fleet.target, parsed.rate, clock) as load:
                scenarios = Scenarios(cluster, fleet, model, load, clock, console.print)
                run_scenarios(scenarios, parsed.steady_seconds)
        lone = lone_server(
            model, directory, parsed.rate, parsed.steady_seconds, clock, console.print
        )
    seconds = round((clock.now_ns() - start_ns) / 1e9)
    report = {
        "servers": parsed.servers,
        "nodes": parsed.nodes,
        "rate_per_second": parsed.rate,
        "scenarios": scenarios.reports,
        "one server": lone,
        "p999_ratio": ratios(scenarios.reports, lone),
        "seconds": seconds,
        "machine": machine(),
    }
    print_report(report, console)
    write_json(parsed.json, report)
    check_reports(scenarios.reports)
    return 0


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """Prints a row for each scenario, the reasons why bad versions were stopped, and the ratios of p999."""
    console.print(scenario_table(report))
    for name, row in report["scenarios"].items():
        if "reason" in row:
            console.print(f"{name}: stopped by {row['verdict']}: {row['reason']}", markup=False)
    fleet, one = (number(report["p999_ratio"][key], 2) for key in ("fleet", "one server"))
    console.print(
        f"p999 in waves over steady: {fleet}; of one server that swaps three times: {one}; "
        f"{report['seconds']} s in all",
        highlight=False,
    )


def scenario_table(report: Mapping[str, Any]) -> Table:
    """Makes the table. A percentile with too few requests is left out."""
    table = Table("", "s", "requests", "failed", "tried again", "wrong", "p50 ms", "p99", "p999")
    lone = {f"one server, {name}": row for name, row in report["one server"].items()}
    for name, row in {**report["scenarios"], **lone}.items():
        retried = ", ".join(f"{count} {code}" for code, count in row["failed_attempts"].items())
        table.add_row(
            name,
            str(row["seconds"]),
            f"{row['requests']:,}",
            str(row["failed"]),
            retried or "0",
            str(row["wrong"]),
            *(number(row[key], 1) for key in ("p50_ms", "p99_ms", "p999_ms")),
        )
    return table


FLEET_RAY = Command(
    "a fleet on a Ray cluster of this machine, with deaths and bad versions, behind HAProxy",
    _add_options,
    _run,
)
