"""`peers`: Millpond compared with packages of PyPI that serve a `tf.function`: LitServe, BentoML, Ray
Serve and plain FastAPI.

Each gets the same SavedModel, in a virtual environment of its own, with one worker process and
TensorFlow's defaults, as its documentation has it. The servers take turns, one at a time.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.drive.demo_model import prepare_model
from loadtest.drive.peer_environments import PEERS, installed_version, prepare_environment
from loadtest.measure.latency import figures
from loadtest.measure.peer_turns import (
    Contestant,
    PeerMeasured,
    PeerResults,
    millpond_contestants,
    peer_contestants,
    run_peer_rounds,
)
from loadtest.measure.processor_time import mean_cores
from loadtest.plan.loops import ClosedLoop
from loadtest.report.report import machine
from loadtest.report.tables import cores_line, number, write_json
from serving.base.clock import SystemClock
from serving.base.errors import Unavailable

LOOPS = tuple(ClosedLoop(rows, count, count) for rows in (1, 100) for count in (1, 16))
"""A connection for each request in flight, as HTTP/1.1 needs it."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        required=True,
        metavar="DIR",
        help="keep the exported model (1 GB) and the virtual environments (2 GB each) in DIR",
    )
    parser.add_argument(
        "--peer",
        choices=PEERS,
        action="append",
        metavar="NAME",
        help=f"only this peer beside Millpond; may be repeated; default: {', '.join(PEERS)}",
    )
    parser.add_argument("--rounds", type=positive_integer, default=3, help="default 3")
    parser.add_argument(
        "--seconds", type=positive, default=3, metavar="S", help="seconds of each load; default 3"
    )
    parser.add_argument("--table-rows", type=positive_integer, default=300_000)
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    directory = parsed.directory.absolute()
    pythons, missing = environments(parsed.peer or list(PEERS), directory, console.print)
    model = prepare_model(directory, parsed.table_rows, console.print)
    contestants: dict[str, Contestant] = {}
    for name, python in pythons.items():
        contestants |= peer_contestants(name, PEERS[name], python, model.base_path / "1")
    contestants |= millpond_contestants(model.base_path)
    results = run_peer_rounds(
        contestants,
        LOOPS,
        table_rows=parsed.table_rows,
        round_count=parsed.rounds,
        seconds=parsed.seconds,
        clock=SystemClock(),
        say=console.print,
    )
    versions = {name: installed_version(name, python) for name, python in pythons.items()}
    report = peers_report(results, versions, missing)
    print_peers(report, console)
    write_json(parsed.json, report)
    return 1 if report["failures"] or any(report["wrong_answers"].values()) else 0


def environments(
    names: Sequence[str],
    directory: Path,
    say: Callable[[str], None],
    prepare: Callable[[str, Path], Path] = prepare_environment,
) -> tuple[Mapping[str, Path], Mapping[str, str]]:
    """Returns the Python of each peer, and the reason for each that cannot be installed."""
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in names:
        say(f"{name}: its virtual environment is {directory / 'peers' / name}")
        try:
            pythons[name] = prepare(name, directory / "peers")
        except Unavailable as error:
            missing[name] = str(error)
            say(f"not installed: {error}")
    return pythons, missing


def peers_report(
    results: PeerResults, versions: Mapping[str, str], missing: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the JSON: by server and load the median rate of the rounds, and the percentiles of all
    rounds together.
    """
    servers: dict[str, dict[str, Any]] = {}
    for (name, loop), measured in results.measured.items():
        servers.setdefault(name, {})[load_key(loop)] = _shown(measured)
    return {
        "servers": servers,
        "versions": dict(versions),
        "not_installed": dict(missing),
        "failures": results.failures,
        "wrong_answers": results.wrong_counts,
        "cores": asdict(mean_cores(results.cores)) if results.cores else None,
        "machine": machine(),
    }


def _shown(measured: PeerMeasured) -> dict[str, Any]:
    rate = round(statistics.median(measured.rates_per_second), 1)
    return {"requests_per_second": rate, **figures(measured.latencies_ns)}


def print_peers(report: Mapping[str, Any], console: Console) -> None:
    """Prints the table, the versions, and what could not be measured."""
    for rows in dict.fromkeys(loop.rows for loop in LOOPS):
        console.print(peers_table(report["servers"], rows))
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    console.print(f"versions: {versions or 'no peer'}", highlight=False)
    for title in ("not_installed", "failures"):
        for name, reason in report[title].items():
            console.print(f"{title.replace('_', ' ')}: {name}: {reason}", markup=False)
    wrong = {name: count for name, count in report["wrong_answers"].items() if count}
    console.print(f"wrong answers: {wrong or 0}", highlight=False)
    if report["cores"]:
        console.print(f"mean of all turns: {cores_line(report['cores'])}", highlight=False)


def peers_table(servers: Mapping[str, Mapping[str, Mapping[str, Any]]], rows: int) -> Table:
    """Returns the table of the loads with that many rows, with a row for each server."""
    loads = [loop for loop in LOOPS if loop.rows == rows]
    headings = [
        heading
        for loop in loads
        for heading in (f"{loop.in_flight} in flight, requests/s", "p50 ms", "p99 ms")
    ]
    table = Table("server", *headings, title=f"{rows} rows")
    for name, shown in servers.items():
        cells = [cell for loop in loads for cell in _cells(shown.get(load_key(loop)))]
        table.add_row(name, *cells)
    return table


def _cells(shown: Mapping[str, Any] | None) -> Sequence[str]:
    if shown is None:
        return ["-"] * 3
    latencies = (number(shown[key]) for key in ("p50_ms", "p99_ms"))
    return [f"{shown['requests_per_second']:,.0f}", *latencies]


def load_key(loop: ClosedLoop) -> str:
    """Returns the name of a load in the JSON: ROWS:IN_FLIGHT."""
    return f"{loop.rows}:{loop.in_flight}"


PEERS_COMMAND = Command(
    "Millpond compared with LitServe, BentoML, Ray Serve and FastAPI", _add_options, _run
)
