"""`bench`: figures of docs/figures.md, measured in one run on this machine.

The figures are the time from start to first answer, requests per second over gRPC compared to the
model alone, and requests lost over many swaps. The server and its clients share the cores.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from loadtest.commands.given_servers import add_command_option
from loadtest.commands.options import Command
from loadtest.drive.checked_sender import checked_sender
from loadtest.drive.demo_model import MODEL_NAME, DemoModel, demo_directory, prepare_model
from loadtest.drive.traffic import Traffic
from loadtest.measure import h2load
from loadtest.measure.bench_server import BenchServers, bench_servers
from loadtest.measure.latency import TooFewRequests, percentile_ms
from loadtest.measure.process_memory import resident_mb
from serving.base.clock import SystemClock, seconds_since
from serving.base.errors import Unavailable
from serving.client.stubs import PredictionServiceStub
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS, request_inputs
from serving.commands.ctr_request import predict_request
from serving.server.launcher import DEFAULT_MALLOC_CONF, find_jemalloc

# The count of requests that one run sends, by rows of a request: some seconds each.
_REQUEST_COUNTS = {1: 60_000, 100: 20_000}
_CEILING_REQUEST_COUNTS = {1: 20_000, 100: 5_000}
# Sent before a run to warm the server up.
_COLD_REQUEST_COUNT = 1_000
_SWAP_TIMEOUT_SECONDS = 120
_SWAP_RATE_PER_SECOND = 200


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


@dataclass(frozen=True)
class SwapFigure:
    """The figures that clients measured over `swap_count` swaps."""

    swap_count: int
    request_count: int
    failed_count: int
    wrong_count: int
    p999_ms: float | None
    resident_mb_after_5: float
    resident_mb_at_end: float


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    name, command = parsed.command or ("millpond", None)
    with demo_directory(parsed.directory) as directory:
        model = prepare_model(directory, parsed.rows, console.print)
        servers = bench_servers(model, command, SystemClock())
        start_seconds = [start_to_first_answer(servers) for _ in range(parsed.repeats)]
        throughput = [throughput_figure(servers, model, r, parsed.repeats) for r in _REQUEST_COUNTS]
        swaps = swap_figure(servers, model, parsed.rows, parsed.swaps)
    console.print(f"server: {name}", highlight=False)
    _print(console, start_seconds, throughput, swaps)
    if parsed.json:
        report = {"server": name, "command": command, **_as_json(start_seconds, throughput, swaps)}
        parsed.json.write_text(json.dumps(report, indent=2))
    return 1 if swaps.failed_count or swaps.wrong_count else 0


def start_to_first_answer(servers: BenchServers) -> float:
    """Returns the seconds from the exec of the server to the first answer to a Predict call."""
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


def swap_figure(
    servers: BenchServers, model: DemoModel, table_rows: int, swap_count: int
) -> SwapFigure:
    """Swaps versions 1 and 2 in turn under load, `swap_count` times. Raises Unavailable."""
    clock, resident_mbs = SystemClock(), list[float]()
    request = predict_request(MODEL_NAME, request_inputs(0, 1)).SerializeToString()
    with servers() as server, grpc.insecure_channel(server.target) as channel:
        server.wait_for_answer(request)
        traffic = Traffic(
            checked_sender(PredictionServiceStub(channel), 10, table_rows),
            rate_per_second=_SWAP_RATE_PER_SECOND,
            thread_count=8,
            clock=clock,
        )
        with traffic:
            for swap in range(swap_count):
                _swap(model, traffic, to_version=2 if swap % 2 == 0 else 1)
                resident_mbs.append(resident_mb(server.process_ids(), clock))
            if swap_count % 2:
                _swap(model, traffic, to_version=1)
    outcomes = traffic.outcomes()
    return SwapFigure(
        swap_count=swap_count,
        request_count=len(outcomes),
        failed_count=sum(outcome.answer is None for outcome in outcomes),
        wrong_count=sum(o.answer is not None and not o.answer.is_right for o in outcomes),
        p999_ms=_p999_ms([outcome.latency_ns for outcome in outcomes]),
        resident_mb_after_5=resident_mbs[min(4, len(resident_mbs) - 1)],
        resident_mb_at_end=resident_mbs[-1],
    )


def _swap(model: DemoModel, traffic: Traffic, *, to_version: int) -> None:
    if to_version == 2:
        model.drop(2)
    else:
        model.remove(2)
    traffic.wait_for_answer_from(to_version, _SWAP_TIMEOUT_SECONDS)


def _ceiling(model: DemoModel, rows: int) -> float:
    environment = os.environ | {
        "LD_PRELOAD": find_jemalloc(),
        "MALLOC_CONF": DEFAULT_MALLOC_CONF,
    }
    command = [sys.executable, "-m", "loadtest.commands.ceiling", str(model.base_path / "1")]
    command += [f"--rows={rows}", f"--requests={_CEILING_REQUEST_COUNTS[rows]}"]
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=120
    )
    if result.returncode != 0:
        raise Unavailable(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return float(result.stdout)


def _p999_ms(latencies_ns: Sequence[int]) -> float | None:
    try:
        return percentile_ms(latencies_ns, 999)
    except TooFewRequests:
        return None


def _print(
    console: Console,
    start_seconds: Sequence[float],
    throughput: Sequence[ThroughputFigure],
    swaps: SwapFigure,
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
    p999 = "refused, too few requests" if swaps.p999_ms is None else f"{swaps.p999_ms:.1f} ms"
    console.print(
        f"{swaps.swap_count} swaps under load: {swaps.failed_count} of {swaps.request_count} "
        f"requests failed, {swaps.wrong_count} wrong, p999 {p999}; resident "
        f"{swaps.resident_mb_after_5:,.0f} MB after 5, {swaps.resident_mb_at_end:,.0f} MB at the end"
    )


def _as_json(
    start_seconds: Sequence[float], throughput: Sequence[ThroughputFigure], swaps: SwapFigure
) -> dict[str, Any]:
    return {
        "machine": {"node": platform.platform(), "cores": os.cpu_count()},
        "start_to_first_answer_seconds": list(start_seconds),
        "throughput": [asdict(figure) | {"ratio": figure.ratio} for figure in throughput],
        "swaps": asdict(swaps),
    }


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_command_option(parser)
    parser.add_argument("--directory", type=Path, help="keep the exported versions here")
    parser.add_argument("--rows", type=int, default=DEFAULT_TABLE_ROWS, help="rows of each table")
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")


BENCH = Command(
    "start, requests per second and swaps: figures of docs/figures.md", _add_options, _run
)
