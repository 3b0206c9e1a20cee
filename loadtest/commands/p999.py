"""`p999`: the server's p999 at /metrics beside its open-loop clients' p999, of the same requests.

A client's latency begins when its request is due, and the server's when a request thread has read the
request. So they differ by the wire, the client's own time, and the wait in the socket while all request
threads are busy. The first two are measured separately, against a server that does nothing. At a moderate
load the wait is close to zero.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import (
    Command,
    add_load_options,
    add_models_option,
    add_preset_option,
    positive_integer,
    share,
)
from loadtest.commands.plain_run import NULL_REPLY, load_of
from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.demo_server import demo_server
from loadtest.drive.generator import Generator, null_server
from loadtest.measure.latency import figures, medians
from loadtest.measure.outcome_figures import error_messages, generator_figures, latencies_ns
from loadtest.measure.processor_time import CoreShares, with_core_shares, worst_cores
from loadtest.measure.saturation import saturation_rate
from loadtest.measure.server_pages import Metrics, ServerPages
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome, Plan
from loadtest.report.report import machine
from loadtest.report.tables import cores_line, generator_line, number, write_json
from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.base.errors import InvalidConfig, StatusCode
from serving.monitoring.request_metrics import WINDOW_SECONDS
from serving.server.model_server import ModelServer

STATED_ERROR_RATIO = 0.008
"""The stated relative error of the server's quantiles (native/metrics/latency_histogram.h)."""

RUN_SECONDS = 7
"""Short enough that a run, the second in which it ends and the scrape fit in the quantiles'
window, also if a slow machine takes two seconds more."""

_TRIES = 3
"""The most times that a run is measured until it fits in the window, before its quantiles are left out."""

# The second of the last request must have ended before the request is in the window.
_SECOND_ENDS_SECONDS = 1.1
_QUANTILES = {"p50_ms": "0.5", "p99_ms": "0.99", "p999_ms": "0.999"}
_REQUESTS = "serving_requests_total"
_LATENCY = "serving_request_latency_seconds"
_QUANTILE_GAUGE = "serving_request_latency_quantile_seconds"
_PREDICT = {"model": MODEL_NAME, "method": "Predict"}
# A refused request reaches no version, so it has series of its own.
_ANSWERED = {**_PREDICT, "version": "1"}


@dataclass(frozen=True)
class Measured:
    """One run: the clients' outcome, and the server's page before and after it.

    `is_in_window` is True if the quantiles of the page after it cover exactly this run's requests.
    """

    outcome: Outcome
    before: Metrics
    after: Metrics
    is_in_window: bool
    cores: CoreShares


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_preset_option(parser)
    add_load_options(parser, default_rate=800)
    add_models_option(parser)
    parser.add_argument(
        "--runs",
        type=positive_integer,
        default=5,
        help="runs of 7 s at each load; default 5; medians",
    )
    parser.add_argument(
        "--high-load",
        type=share,
        default=0.8,
        metavar="SHARE",
        help="the second load, as a share of the server's highest rate; default 0.8",
    )


def _run(parsed: argparse.Namespace) -> int:
    clock, console = SystemClock(), Console()
    load = load_of(parsed, MODEL_NAME)
    with demo_server(parsed, console.print) as server:
        loads = [
            _at_rate(parsed, load, rate_per_second, server, clock, console.print)
            for rate_per_second in _rates(parsed, load, server.target)
        ]
    report = {"preset": parsed.preset, "rows": parsed.rows, "machine": machine(), "loads": loads}
    for one in loads:
        print_load(one, console)
    write_json(parsed.json, report)
    return 0 if all(one["is_exact"] and not one["errors"] for one in loads) else 1


def _rates(parsed: argparse.Namespace, load: CtrLoad, target: str) -> Iterator[float]:
    saturated = saturation_rate(target, load)
    yield parsed.rate if parsed.saturation is None else round(saturated * parsed.saturation, 1)
    yield round(saturated * parsed.high_load, 1)


def _at_rate(
    parsed: argparse.Namespace,
    load: CtrLoad,
    rate_per_second: float,
    server: ModelServer,
    clock: Clock,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measures the runs at one rate, each followed by a run against a server that does nothing."""
    runs, null_outcomes = [], []
    for seed in range(parsed.seed, parsed.seed + parsed.runs):
        say(f"{rate_per_second:,g} requests/s, run {seed - parsed.seed + 1} of {parsed.runs}")
        plan = plan_of(parsed.arrivals, load, rate_per_second, seed)
        tries = (_measured(plan, server, clock) for _ in range(_TRIES))
        runs.append(first_in_window(tries))
        with null_server(NULL_REPLY) as target, Generator(plan, target) as generator:
            null_outcomes.append(generator.finish())
    return load_report(rate_per_second, runs, null_outcomes)


def plan_of(arrivals: str, load: CtrLoad, rate_per_second: float, seed: int) -> Plan:
    """Plans RUN_SECONDS. Raises InvalidConfig if they have too few requests for a p999."""
    offsets_ns = ARRIVALS[arrivals](rate_per_second, RUN_SECONDS, seed)
    refused = figures(offsets_ns).get("refused", {})
    if "p999_ms" in refused:
        raise InvalidConfig(
            f"{rate_per_second:g} requests/s for {RUN_SECONDS} s are too few for a p999 "
            f"({refused['p999_ms']}); give --rate=800 or more, and --rows=10 to a slow machine"
        )
    return load.plan(offsets_ns, seed)


def first_in_window(tries: Iterator[Measured]) -> Measured:
    """The first run that the quantiles' window covers; the last one if it covers none."""
    run = next(tries)
    while not run.is_in_window and (other := next(tries, None)):
        run = other
    return run


def _measured(plan: Plan, server: ModelServer, clock: Clock) -> Measured:
    """Sends the plan's requests after a pause of three seconds. Raises Unavailable."""
    pages = ServerPages(server.url)
    # Earlier requests then leave the window before the run ends.
    pause(clock, WINDOW_SECONDS - RUN_SECONDS)
    before = pages.metrics()

    def run() -> Outcome:
        with Generator(plan, server.target) as generator:
            return generator.finish()

    outcome, cores = with_core_shares(server.process_id, clock, run)
    pause(clock, _SECOND_ENDS_SECONDS)
    after = pages.metrics()
    took_seconds = seconds_since(clock, int(outcome.issued_ns[0]))
    return Measured(
        outcome,
        before,
        after,
        is_in_window=took_seconds <= WINDOW_SECONDS,
        cores=cores,
    )


# --- Figures --------------------------------------------------------------------------------------


def load_report(
    rate_per_second: float, runs: Sequence[Measured], null_outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """The JSON of one load: each run, and the median of each figure over the runs."""
    each = [
        run_figures(run, null_outcome)
        for run, null_outcome in zip(runs, null_outcomes, strict=True)
    ]
    sides = ("server", "clients", "difference", "null")
    outcomes = [run.outcome for run in runs]
    return {
        "rate_per_second": rate_per_second,
        "stated_error_ratio": STATED_ERROR_RATIO,
        "runs": each,
        **{side: medians([run[side] for run in each], _QUANTILES) for side in sides},
        "is_exact": all(run["server_count"] == run["clients_count"] for run in each),
        "errors": sum(int((outcome.codes != 0).sum()) for outcome in outcomes),
        "error_messages": error_messages(outcomes),
        "generator": generator_figures(outcomes),
        "cores_used": asdict(worst_cores([run.cores for run in runs])),
    }


def run_figures(run: Measured, null_outcome: Outcome) -> dict[str, Any]:
    """Makes one run's figures; `null` is the time of wire and client alone at this rate."""
    server = {
        key: quantile_ms(run.after, text) if run.is_in_window else None
        for key, text in _QUANTILES.items()
    }
    answered_ns = latencies_ns(run.outcome)[run.outcome.codes == StatusCode.OK]
    clients = {key: figures(answered_ns)[key] for key in _QUANTILES}
    nothing = {key: figures(latencies_ns(null_outcome))[key] for key in _QUANTILES}
    return {
        "server_count": round(_count(run.after) - _count(run.before)),
        "clients_count": len(run.outcome.codes),
        "server": server,
        "server_p999_bucket_ms": p999_bucket_ms(run.before, run.after),
        "clients": clients,
        "difference": {key: _difference(clients[key], server[key]) for key in _QUANTILES},
        "null": nothing,
    }


def quantile_ms(metrics: Metrics, quantile: str) -> float | None:
    """A quantile of the answers to Predict of the last 10 s; None if there were none."""
    seconds = metrics.value(_QUANTILE_GAUGE, quantile=quantile, **_ANSWERED)
    return None if seconds is None else round(seconds * 1_000, 3)


def p999_bucket_ms(before: Metrics, after: Metrics) -> tuple[float, float] | None:
    """The bucket edges around p999 of the answers between two pages; None without answers."""
    earlier = before.bucket_counts(_LATENCY, **_ANSWERED)
    counts = {
        edge: count - earlier.get(edge, 0)
        for edge, count in after.bucket_counts(_LATENCY, **_ANSWERED).items()
    }
    total = max(counts.values(), default=0)
    if total == 0:
        return None
    rank = math.ceil(total * 0.999)
    above = next(edge for edge, count in counts.items() if count >= rank)
    below = max((edge for edge in counts if edge < above), default=0.0)
    return (round(below * 1_000, 3), round(above * 1_000, 3))


def _count(metrics: Metrics) -> float:
    return metrics.total(_REQUESTS, **_PREDICT)


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else round(one - other, 3)


# --- What people read -----------------------------------------------------------------------------


def print_load(shown: Mapping[str, Any], console: Console) -> None:
    """Prints the table of one load, and the difference that stays unexplained."""
    runs = shown["runs"]
    request_count = sum(run["clients_count"] for run in runs)
    title = (
        f"{shown['rate_per_second']:,g} requests/s, {request_count:,} requests, "
        f"medians of {len(runs)} runs"
    )
    table = Table("", *(key.replace("_", " ") for key in _QUANTILES), title=title)
    rows = {
        "server, /metrics": "server",
        "clients, open loop": "clients",
        "difference": "difference",
        "a server that does nothing": "null",
    }
    for name, side in rows.items():
        table.add_row(name, *(number(shown[side][key], 3) for key in _QUANTILES))
    console.print(table)
    console.print(unexplained_line(shown), highlight=False)
    console.print(generator_line(shown["generator"]))
    console.print(cores_line(shown["cores_used"]))
    for message in shown["error_messages"]:
        console.print(f"  {message}", markup=False)


def unexplained_line(shown: Mapping[str, Any]) -> str:
    """The line of the part of the difference that requests waited before a request thread
    took them.
    """
    left_ms = _difference(shown["difference"]["p999_ms"], shown["null"]["p999_ms"])
    p999_ms = shown["server"]["p999_ms"]
    error_ms = None if p999_ms is None else p999_ms * shown["stated_error_ratio"]
    spread = " ".join(number(run["difference"]["p999_ms"], 3) for run in shown["runs"])
    within = sum(is_in_its_bucket(run) for run in shown["runs"])
    counts = "equal" if shown["is_exact"] else "NOT EQUAL"
    buckets = ", ".join(
        "-"
        if run["server_p999_bucket_ms"] is None
        else "{:g} to {:g}".format(*run["server_p999_bucket_ms"])
        for run in shown["runs"]
    )
    return (
        f"p999's difference by run: {spread} ms; beyond that of a server that does nothing: "
        f"{number(left_ms, 3)} ms, stated error {number(error_ms, 3)} ms; counts {counts}; "
        f"the server's histogram has p999 at {buckets} ms, which agrees in {within} of "
        f"{len(shown['runs'])} runs"
    )


def is_in_its_bucket(run: Mapping[str, Any]) -> bool:
    """True if the server's quantile and its histogram agree on p999, within the error."""
    p999_ms, bucket_ms = run["server"]["p999_ms"], run["server_p999_bucket_ms"]
    if p999_ms is None or bucket_ms is None:
        return False
    below_ms, above_ms = bucket_ms
    low, high = 1 - STATED_ERROR_RATIO, 1 + STATED_ERROR_RATIO
    is_in: bool = below_ms * low <= p999_ms <= above_ms * high
    return is_in


P999 = Command(
    "the server's p999 beside its clients' p999, of the same requests", _add_options, _run
)
