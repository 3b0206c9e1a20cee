"""Variants of the server or of its channel, measured in turn and compared to the first variant.

Each variant has its own server, in several rounds, at 1 and at 100 rows. The figures are its
highest rate, in closed loop, and its latencies at a fixed rate, in open loop.
"""

import argparse
import http.client
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from rich.console import Console

from loadtest.commands.options import add_json_option, add_models_option, positive, positive_integer
from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.generator import ChannelOptions, Generator
from loadtest.measure.latency import figures, ratio
from loadtest.measure.outcome_figures import answer_figures, latencies_ns
from loadtest.measure.saturation import closed_loop_rate
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome
from loadtest.report.report import machine
from loadtest.report.tables import latency_table, number, print_answers
from serving.base.clock import NS_PER_SECOND, Clock, SystemClock, pause
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer

ROWS = (1, 100)

_CLOSED_LOOP_REQUESTS = {1: 20_000, 100: 8_000}
_KEYS = ("requests_per_second", "p50_ms", "p99_ms", "p999_ms")
_READY_SECONDS = 60
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Variant:
    """The flags of `millpond serve`, and the channel's options."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    channel: ChannelOptions = field(default_factory=ChannelOptions)


@dataclass
class Measured:
    """The results of one variant at one number of rows, over all rounds."""

    rates_per_second: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    wrong_count: int = 0

    def latencies_ns(self) -> npt.NDArray[np.int64]:
        """Returns the latencies of all rounds together."""
        return np.concatenate([latencies_ns(outcome) for outcome in self.outcomes])


Results = Mapping[tuple[str, int], Measured]
"""The results by the variant's name and the rows of a request."""


def add_variant_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `measure_variants` and of the report."""
    add_models_option(parser)
    parser.add_argument("--rounds", type=positive_integer, default=3, help="default 3")
    parser.add_argument(
        "--rate",
        type=positive,
        default=300,
        metavar="R",
        help="rate of the open loop; default 300/s",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=10,
        metavar="S",
        help="seconds of each open loop; default 10",
    )
    parser.add_argument("--table-rows", type=positive_integer, default=300_000)
    add_json_option(parser)


def measure_variants(
    parsed: argparse.Namespace,
    model: DemoModel,
    variants: Mapping[str, Variant],
    say: Callable[[str], None],
) -> Results:
    """Measures each variant in turn, `--rounds` times. Raises Unavailable if a server is not
    ready.
    """
    loads = {
        rows: CtrLoad(MODEL_NAME, rows=rows, table_rows=parsed.table_rows, seed=1) for rows in ROWS
    }
    results = {(name, rows): Measured() for name in variants for rows in ROWS}
    for round_number in range(1, parsed.rounds + 1):
        for name, variant in variants.items():
            say(f"round {round_number} of {parsed.rounds}: {name}")
            with _server(model, variant) as server:
                _wait_until_ready(server, SystemClock())
                for rows, load in loads.items():
                    _measure(parsed, server.target, variant, load, rows, results[name, rows])
    return results


def _server(model: DemoModel, variant: Variant) -> ModelServer:
    return ModelServer(model_name=MODEL_NAME, base_path=model.base_path, **variant.flags)


def _wait_until_ready(server: ModelServer, clock: Clock) -> None:
    """Waits by HTTP, which has no TLS. Raises Unavailable at the timeout."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    deadline_ns = clock.now_ns() + _READY_SECONDS * NS_PER_SECOND
    while clock.now_ns() < deadline_ns:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        response.read()
        if response.status == http.client.OK:
            connection.close()
            return
        pause(clock, _POLL_SECONDS)
    raise Unavailable(f"{server.url}/readyz: not ready in {_READY_SECONDS} s")


def _measure(
    parsed: argparse.Namespace,
    target: str,
    variant: Variant,
    load: CtrLoad,
    rows: int,
    into: Measured,
) -> None:
    rate = closed_loop_rate(target, load, _CLOSED_LOOP_REQUESTS[rows], variant.channel)
    into.rates_per_second.append(rate)
    seed = len(into.outcomes)
    offsets_ns = ARRIVALS["poisson"](parsed.rate, parsed.seconds, seed)
    with Generator(load.plan(offsets_ns, seed), target, variant.channel) as generator:
        outcome = generator.finish()
    into.outcomes.append(outcome)
    into.wrong_count += load.wrong_count(outcome)


# --- Figures --------------------------------------------------------------------------------------


def variants_report(measured: Results, rate_per_second: float) -> dict[str, Any]:
    """Returns the JSON: rate and latencies by rows and variant, and their ratios to the first
    variant.
    """
    outcomes = [outcome for one in measured.values() for outcome in one.outcomes]
    return {
        "rate_per_second": rate_per_second,
        **answer_figures(outcomes, sum(one.wrong_count for one in measured.values())),
        "rows": {rows: _of_rows(measured, rows) for rows in ROWS},
        "machine": machine(),
    }


def _of_rows(measured: Results, rows: int) -> dict[str, Any]:
    shown = {name: _shown(one) for (name, of_rows), one in measured.items() if of_rows == rows}
    first = next(iter(shown.values()))
    return {
        name: {**one, **{f"ratio_{key}": ratio(one, first, key) for key in _KEYS}}
        for name, one in shown.items()
    }


def _shown(one: Measured) -> dict[str, Any]:
    rate = round(statistics.median(one.rates_per_second), 1)
    return {**figures(one.latencies_ns()), "requests_per_second": rate}


def print_variants(report: Mapping[str, Any], console: Console) -> None:
    """Prints a table for each number of rows, and the ratios of each variant to the first."""
    for rows, shown in report["rows"].items():
        title = f"{rows} rows, {report['rate_per_second']:g} requests/s"
        console.print(latency_table(title, shown))
        first = next(iter(shown))
        for name, one in shown.items():
            ratios = ", ".join(
                f"{key.removesuffix('_ms')} {number(one[f'ratio_{key}'])}" for key in _KEYS[1:]
            )
            console.print(
                f"{name}: {one['requests_per_second']:,.0f} requests/s at most "
                f"({number(one['ratio_requests_per_second'])} of {first}'s); its latencies over "
                f"{first}'s: {ratios}",
                highlight=False,
            )
    print_answers(report, console)
