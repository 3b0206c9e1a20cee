"""`overload`: the answers in time, and the refusals, of a server that gets more than it can do."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.commands.options import (
    Command,
    add_json_option,
    add_models_option,
    positive,
    positive_integer,
)
from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.drive.generator import Generator
from loadtest.measure.latency import figures
from loadtest.measure.outcome_figures import error_messages, latencies_ns
from loadtest.measure.processor_time import CoreShares, with_core_shares
from loadtest.measure.saturation import closed_loop_rate, saturation_rate
from loadtest.plan.arrivals import poisson
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome
from loadtest.report.report import machine
from loadtest.report.tables import cores_line, number, write_json
from serving.base.clock import NS_PER_SECOND, SystemClock
from serving.base.errors import StatusCode
from serving.server.model_server import ModelServer

SHARES = (0.8, 1.0, 1.6, 2.0)
"""The rates, as shares of the highest rate in closed loop."""

_CAPACITY_REQUEST_COUNT = 3_000


@dataclass(frozen=True)
class RateRun:
    """One rate, between two measurements of the capacity: a machine that slows down meanwhile does
    not count as the server's loss.
    """

    outcome: Outcome
    cores: CoreShares
    capacity: float
    """Requests per second in closed loop: the mean of right before and right after."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_models_option(parser)
    parser.add_argument("--rows", type=positive_integer, default=100, help="rows of a request")
    parser.add_argument(
        "--seconds", type=positive, default=10, metavar="S", help="seconds of each rate; default 10"
    )
    parser.add_argument(
        "--deadline",
        type=positive,
        default=1,
        metavar="S",
        help="deadline of each request in seconds; default 1",
    )
    parser.add_argument("--table-rows", type=positive_integer, default=300_000)
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    with demo_directory(parsed.models) as directory:
        model = prepare_model(directory, parsed.table_rows, console.print)
        load = CtrLoad(MODEL_NAME, rows=parsed.rows, table_rows=parsed.table_rows, seed=1)
        with ModelServer(model_name=MODEL_NAME, base_path=model.base_path) as server:
            server.wait_until_available(MODEL_NAME, 1)
            saturation_rate(server.target, load)  # warms up
            runs = _run_rates(server, load, parsed)
    report = overload_report(runs)
    console.print(_table(report))
    for share, shown in report["rates"].items():
        console.print(f"{share}: {cores_line(shown['cores'])}", highlight=False)
    outcomes = [run.outcome for run in runs.values()]
    for message in error_messages(outcomes):
        console.print(f"  {message}", markup=False)
    wrong_count = sum(load.wrong_count(outcome) for outcome in outcomes)
    console.print(f"wrong answers {wrong_count}")
    write_json(parsed.json, report)
    return 1 if wrong_count else 0


def _run_rates(
    server: ModelServer, load: CtrLoad, parsed: argparse.Namespace
) -> Mapping[float, RateRun]:
    runs = {}
    before = closed_loop_rate(server.target, load, _CAPACITY_REQUEST_COUNT)
    for share in SHARES:
        plan = load.plan(poisson(before * share, parsed.seconds, seed=2), seed=2)
        plan = replace(plan, deadline_ns=round(parsed.deadline * NS_PER_SECOND))
        with Generator(plan, server.target) as generator:
            outcome, cores = with_core_shares(server.process_id, SystemClock(), generator.finish)
        after = closed_loop_rate(server.target, load, _CAPACITY_REQUEST_COUNT)
        runs[share] = RateRun(outcome, cores, (before + after) / 2)
        before = after
    return runs


def overload_report(runs: Mapping[float, RateRun]) -> dict[str, Any]:
    """Returns for each rate the answers in time as a share of the capacity, the latencies of answers
    and refusals, and the use of the cores.
    """
    return {
        "rates": {f"{share:g}": _shown(run) for share, run in runs.items()},
        "machine": machine(),
    }


def _shown(run: RateRun) -> dict[str, Any]:
    outcome = run.outcome
    latency_ns = latencies_ns(outcome)
    is_answered = outcome.codes == StatusCode.OK
    is_refused = outcome.codes == StatusCode.RESOURCE_EXHAUSTED
    seconds = int(np.ptp(outcome.scheduled_ns)) / NS_PER_SECOND
    goodput = float(is_answered.sum()) / seconds
    return {
        "capacity_per_second": round(run.capacity, 1),
        "rate_per_second": round(len(outcome.codes) / seconds, 1),
        "goodput_per_second": round(goodput, 1),
        "goodput_share": round(goodput / run.capacity, 3),
        "answered": figures(latency_ns[is_answered]),
        "refused": figures(latency_ns[is_refused]),
        "failed_count": int((~is_answered & ~is_refused).sum()),
        "cores": asdict(run.cores),
    }


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(
        *("rate", "capacity/s", "answered", "p50, p99 ms", "refused", "p50, p99 ms", "failed"),
        title="rates as shares of the capacity; answers in time, refusals",
    )
    for share, shown in report["rates"].items():
        answered, refused = shown["answered"], shown["refused"]
        table.add_row(
            share,
            f"{shown['capacity_per_second']:,.0f}",
            f"{shown['goodput_share']:.0%}",
            f"{number(answered['p50_ms'])}, {number(answered['p99_ms'])}",
            f"{refused['count']:,}",
            f"{number(refused['p50_ms'])}, {number(refused['p99_ms'])}",
            f"{shown['failed_count']:,}",
        )
    return table


OVERLOAD = Command("the answers of a server that gets more than it can do", _add_options, _run)
