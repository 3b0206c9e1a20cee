"""`rest`: REST's highest rate compared to FastAPI with a `tf.function`, and its effect on gRPC's
tail.

Both servers run at the same time and get load in turn, in several rounds, so that disturbances of
the machine affect both. Then gRPC gets a fixed rate, while segments with REST at half of its
maximum and segments without REST take turns.
"""

import argparse
import http.client
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import (
    Command,
    add_load_options,
    add_models_option,
    add_preset_option,
    add_segment_seconds_option,
    positive_integer,
    segmented_of,
)
from loadtest.commands.plain_run import load_of
from loadtest.commands.plain_run import rate_of as grpc_rate_of
from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.demo_server import demo_server_and_export
from loadtest.drive.rest_load import closed_loop_rate, rows_body, steady_load
from loadtest.drive.shell_server import free_port
from loadtest.measure.latency import figures, ratio
from loadtest.measure.outcome_figures import answer_figures, generator_figures
from loadtest.measure.segments import Segment, SegmentedRun, run_segments, timed
from loadtest.report.report import machine
from loadtest.report.tables import (
    exit_status,
    generator_line,
    latency_table,
    number,
    print_answers,
    write_json,
)
from serving.base.clock import NS_PER_SECOND, Clock, SystemClock, pause
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer

GOAL_RATE_RATIO = 3.0
"""The goal: requests per second divided by the baseline's."""

GOAL_P999_RATIO = 1.1
"""The goal: gRPC's p999 while REST runs at half of its maximum, divided by p999 without REST."""

MILLPOND, BASELINE = "millpond", "fastapi"
QUIET, BESIDE = "quiet", "beside REST"
ROWS = (1, 100)

_REQUEST_COUNT = {(MILLPOND, 1): 20_000, (MILLPOND, 100): 8_000}
_BASELINE_REQUEST_COUNT = {1: 4_000, 100: 1_000}
_SETTLE_SECONDS = 2
# 6,000 requests: a p999 needs 5,000.
_ALONE_RATE, _ALONE_SECONDS = 300, 20
_READY_SECONDS = 120
_POLL_SECONDS = 0.2
_KEYS = ("p50_ms", "p99_ms", "p999_ms")

Rates = dict[tuple[str, int], list[float]]
"""The requests per second of each round, by server and rows."""


Alone = dict[int, list[int]]
"""REST's latencies in ns at a fixed rate, by rows."""


Tail = SegmentedRun[Segment]
"""The requests of gRPC, in segments with and without REST."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_preset_option(parser)
    add_load_options(parser, default_rate=300)
    add_models_option(parser)
    parser.add_argument("--rounds", type=positive_integer, default=3, help="default 3")
    parser.add_argument(
        "--segments",
        type=positive_integer,
        default=6,
        help="segments of each kind, in turn; default 6",
    )
    add_segment_seconds_option(parser, default=20)


def _run(parsed: argparse.Namespace) -> int:
    clock, console = SystemClock(), Console()
    with demo_server_and_export(parsed, console.print) as (server, export):
        with baseline_server(str(export), clock) as baseline_url:
            rates = _measured_rates(parsed, server, baseline_url, console.print)
        alone = _measured_latencies(parsed, server, clock, console.print)
        rest_rate = statistics.median(rates[MILLPOND, parsed.rows]) / 2
        tail = _measured_tail(parsed, server, rest_rate, clock, console.print)
    report = rest_report(rates, alone, tail, rest_rate)
    print_rest(report, console)
    write_json(parsed.json, report)
    return exit_status(report)


@contextmanager
def baseline_server(export: str, clock: Clock) -> Iterator[str]:
    """Yields the URL of its Predict. Raises Unavailable if it does not listen in time."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtest.drive.rest_baseline", export, str(port)]
    )
    try:
        _wait_until_listening(port, clock)
        yield f"http://127.0.0.1:{port}/predict"
    finally:
        process.terminate()
        process.wait()


def _wait_until_listening(port: int, clock: Clock) -> None:
    deadline_ns = clock.now_ns() + _READY_SECONDS * NS_PER_SECOND
    while clock.now_ns() < deadline_ns:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/openapi.json")
            connection.getresponse().read()
        except OSError:
            pause(clock, _POLL_SECONDS)
        else:
            return
        finally:
            connection.close()
    raise Unavailable(f"the FastAPI server does not listen after {_READY_SECONDS} s; see above")


def _measured_rates(
    parsed: argparse.Namespace, server: ModelServer, baseline_url: str, say: Callable[[str], None]
) -> Rates:
    urls = {MILLPOND: f"{server.url}/v1/models/{MODEL_NAME}:predict", BASELINE: baseline_url}
    bodies = {
        rows: rows_body(rows, parsed.table_rows, parsed.seed) for rows in {*ROWS, parsed.rows}
    }
    rates: Rates = {(name, rows): [] for name in urls for rows in bodies}
    for round_number in range(1, parsed.rounds + 1):
        for name, rows in rates:
            say(f"round {round_number} of {parsed.rounds}: {name}, {rows} rows")
            rates[name, rows].append(closed_loop_rate(urls[name], bodies[rows], _count(name, rows)))
    return rates


def _count(name: str, rows: int) -> int:
    """Returns the count of requests for a run of some seconds."""
    if name == MILLPOND:
        return _REQUEST_COUNT.get((name, rows), 8_000)
    return _BASELINE_REQUEST_COUNT.get(rows, 1_000)


def _measured_latencies(
    parsed: argparse.Namespace, server: ModelServer, clock: Clock, say: Callable[[str], None]
) -> Alone:
    """Measures REST at the fixed rate of gRPC's load, without other load."""
    url = f"{server.url}/v1/models/{MODEL_NAME}:predict"
    alone: Alone = {}
    for rows in ROWS:
        say(f"REST at {parsed.rate or _ALONE_RATE:g}/s, {rows} rows")
        body = rows_body(rows, parsed.table_rows, parsed.seed)
        with steady_load(url, body, parsed.rate or _ALONE_RATE, _ALONE_SECONDS, clock) as load:
            pass
        alone[rows] = load.latencies_ns
    return alone


def _measured_tail(
    parsed: argparse.Namespace,
    server: ModelServer,
    rest_rate: float,
    clock: Clock,
    say: Callable[[str], None],
) -> Tail:
    load = load_of(parsed, MODEL_NAME)
    segmented = segmented_of(
        parsed,
        load,
        grpc_rate_of(parsed, load, server.target),
        (QUIET, BESIDE) * parsed.segments,
        3 * _SETTLE_SECONDS,
    )
    url = f"{server.url}/v1/models/{MODEL_NAME}:predict"
    body = rows_body(parsed.rows, parsed.table_rows, parsed.seed)

    def run_segment(kind: str) -> Segment:
        rest_seconds = parsed.segment_seconds + 2 * _SETTLE_SECONDS
        with ExitStack() as stack:
            if kind == BESIDE:
                stack.enter_context(steady_load(url, body, rest_rate, rest_seconds, clock))
            pause(clock, _SETTLE_SECONDS)
            return Segment(kind, timed(clock, parsed.segment_seconds))

    return run_segments(segmented, server, run_segment, clock=clock, say=say)


# --- Figures --------------------------------------------------------------------------------------


def rest_report(rates: Rates, alone: Alone, tail: Tail, rest_rate: float) -> dict[str, Any]:
    """Returns the JSON: rates and their ratio by rows, and gRPC's latencies of both kinds."""
    latencies = {kind: figures(tail.latencies_ns(kind)) for kind in (QUIET, BESIDE)}
    medians = {key: round(statistics.median(each), 1) for key, each in rates.items()}
    return {
        "rows": {
            rows: {
                MILLPOND: medians[MILLPOND, rows],
                BASELINE: medians[BASELINE, rows],
                "ratio": round(medians[MILLPOND, rows] / medians[BASELINE, rows], 2),
            }
            for rows in sorted({rows for _, rows in rates})
        },
        "goal_rate_ratio": GOAL_RATE_RATIO,
        "rest_alone": {rows: figures(latencies) for rows, latencies in alone.items()},
        "rest_requests_per_second": round(rest_rate, 1),
        "grpc": latencies,
        "grpc_ratio": {key: ratio(latencies[BESIDE], latencies[QUIET], key) for key in _KEYS},
        "goal_p999_ratio": GOAL_P999_RATIO,
        **answer_figures([tail.outcome], tail.wrong_count),
        "generator": generator_figures([tail.outcome]),
        "machine": machine(),
    }


def print_rest(report: Mapping[str, Any], console: Console) -> None:
    """Prints the table of rates, and gRPC's latencies with and without REST."""
    table = Table("rows", "Millpond REST/s", "FastAPI + tf.function/s", "ratio")
    for rows, one in report["rows"].items():
        table.add_row(
            str(rows), f"{one[MILLPOND]:,.0f}", f"{one[BASELINE]:,.0f}", f"{one['ratio']:.1f}"
        )
    console.print(table)
    console.print(f"goal: {report['goal_rate_ratio']:g} and more", highlight=False)
    of_rows = {f"{rows} rows": shown for rows, shown in report["rest_alone"].items()}
    console.print(latency_table("REST alone, at the rate of gRPC's load", of_rows))
    title = f"gRPC, quiet and beside {report['rest_requests_per_second']:,.0f} REST requests/s"
    console.print(latency_table(title, report["grpc"]))
    ratios = ", ".join(
        f"{key.removesuffix('_ms')} {number(report['grpc_ratio'][key], 3)}" for key in _KEYS
    )
    console.print(f"ratio: {ratios}; goal: p999 at most {report['goal_p999_ratio']:g}")
    console.print(generator_line(report["generator"]))
    print_answers(report, console)


REST = Command("REST compared to FastAPI, and its effect on the tail of gRPC", _add_options, _run)
