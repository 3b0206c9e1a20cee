"""`bench`: figures of docs/figures.md, measured in one run on this machine.

The figures are the time from start to first answer, requests per second over gRPC compared to the
model alone, and with `--rest` those over REST. The server and its clients share the cores.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.commands.given_servers import PLACEHOLDERS, swapping_command
from loadtest.commands.options import Command, add_json_option
from loadtest.drive.demo_model import MODEL_NAME, DemoModel, demo_directory, prepare_model
from loadtest.measure import h2load
from loadtest.measure.bench_server import BenchServers, bench_servers
from loadtest.measure.rest_rates import RestFigure, rest_figures
from loadtest.report.report import machine
from loadtest.report.tables import latency_table, write_json
from serving.base.clock import SystemClock, seconds_since
from serving.base.errors import InvalidConfig, Unavailable
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS, request_inputs
from serving.commands.ctr_request import predict_request
from serving.server.launcher import DEFAULT_MALLOC_CONF, find_jemalloc

# The count of requests that one run sends, by rows of a request: some seconds each.
_REQUEST_COUNTS = {1: 60_000, 100: 20_000}
_CEILING_REQUEST_COUNTS = {1: 20_000, 100: 5_000}
# Sent before a run to warm the server up.
_COLD_REQUEST_COUNT = 1_000


@dataclass(frozen=True)
class ThroughputFigure:
    """Medians over the repeats, for requests of `rows` rows."""

    rows: int
    over_grpc: h2load.Throughput
    ceiling_per_second: float

    @property
    def ratio(self) -> float:
        """Requests per second over gRPC, divided by those of the model alone on the same cores."""
        return self.over_grpc.requests_per_second / self.ceiling_per_second


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    name, command = parsed.server or ("millpond", None)
    if command and parsed.rest:
        raise InvalidConfig("--rest: a server of --command has gRPC only")
    with demo_directory(parsed.directory) as directory:
        model = prepare_model(directory, parsed.rows, console.print)
        servers = bench_servers(model, command, SystemClock())
        start_seconds = [start_to_first_answer(servers) for _ in range(parsed.repeats)]
        throughput = [throughput_figure(servers, model, r, parsed.repeats) for r in _REQUEST_COUNTS]
        measuring = (parsed.rows, parsed.repeats, SystemClock(), console.print)
        rest = rest_figures(model, *measuring) if parsed.rest else []
    console.print(f"server: {name}", highlight=False)
    _print(console, start_seconds, throughput)
    print_rest(rest, console)
    report = {
        "server": name,
        "command": command,
        "machine": machine(),
        "start_to_first_answer_seconds": start_seconds,
        "throughput": [asdict(figure) | {"ratio": figure.ratio} for figure in throughput],
        "rest": [asdict(figure) | {"ratio": figure.ratio} for figure in rest],
    }
    write_json(parsed.json, report)
    return 0


def start_to_first_answer(servers: BenchServers) -> float:
    """Measures the seconds from the exec of the server to the first answer to a Predict call."""
    clock = SystemClock()
    request = predict_request(MODEL_NAME, request_inputs(0, 1)).SerializeToString()
    started_ns = clock.now_ns()
    with servers() as server:
        server.wait_for_answer(request)
        return seconds_since(clock, started_ns)


def throughput_figure(
    servers: BenchServers, model: DemoModel, rows: int, repeats: int
) -> ThroughputFigure:
    """Measures h2load against a server and the model without a server in turn. Raises
    Unavailable.
    """
    message = predict_request(MODEL_NAME, request_inputs(0, rows)).SerializeToString()
    runs, ceilings = [], []
    for _ in range(repeats):
        with servers() as server:
            server.wait_for_answer(message)
            counts = (_COLD_REQUEST_COUNT, _REQUEST_COUNTS[rows])
            each = [(count, h2load.drive(server.target, message, count)) for count in counts]
            server.check_answered(message, each)
        runs.append(each[-1][1])
        ceilings.append(_ceiling(model, rows))
    return ThroughputFigure(rows, h2load.median_throughput(runs), statistics.median(ceilings))


def _ceiling(model: DemoModel, rows: int) -> float:
    environment = os.environ | {
        "LD_PRELOAD": find_jemalloc(),
        "MALLOC_CONF": DEFAULT_MALLOC_CONF,
    }
    command = [sys.executable, "-m", "loadtest.measure.ceiling", str(model.base_path / "1")]
    command += [f"--rows={rows}", f"--requests={_CEILING_REQUEST_COUNTS[rows]}"]
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=120
    )
    if result.returncode != 0:
        raise Unavailable(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return float(result.stdout)


def _print(
    console: Console, start_seconds: Sequence[float], throughput: Sequence[ThroughputFigure]
) -> None:
    console.print(f"start to first answer: {statistics.median(start_seconds):.2f} s")
    table = Table(
        "rows", "requests/s", "p50 ms", "p99 ms", "model alone/s", "ratio", title="16 in flight"
    )
    for figure in throughput:
        rates = figure.over_grpc
        table.add_row(
            str(figure.rows),
            f"{rates.requests_per_second:,.0f}",
            f"{rates.p50_ms:.2f}",
            f"{rates.p99_ms:.2f}",
            f"{figure.ceiling_per_second:,.0f}",
            f"{figure.ratio:.2f}",
        )
    console.print(table)


def print_rest(rest: Sequence[RestFigure], console: Console) -> None:
    """Prints the rates beside those of FastAPI, and the latencies of REST. Without figures it prints
    nothing.
    """
    if not rest:
        return
    table = Table("rows", "REST/s", "FastAPI + tf.function/s", "ratio", title="16 in flight")
    for figure in rest:
        rates = (figure.requests_per_second, figure.baseline_per_second)
        table.add_row(str(figure.rows), *(f"{rate:,.0f}" for rate in rates), f"{figure.ratio:.1f}")
    console.print(table)
    latencies = {f"{figure.rows} rows": figure.latency for figure in rest}
    console.print(latency_table("REST alone, 300 requests/s", latencies))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command",
        dest="server",
        type=swapping_command,
        metavar="[NAME=]CMD",
        help="the server instead of Millpond: any server of the PredictionService, by a shell command "
        f"with {PLACEHOLDERS}",
    )
    parser.add_argument(
        "--rest",
        action="store_true",
        help="measure REST too, beside FastAPI around a tf.function",
    )
    parser.add_argument("--directory", type=Path, help="keep the exported versions here")
    parser.add_argument("--rows", type=int, default=DEFAULT_TABLE_ROWS, help="rows of each table")
    parser.add_argument("--repeats", type=int, default=5)
    add_json_option(parser)


BENCH = Command("start and requests per second, also over REST beside FastAPI", _add_options, _run)
