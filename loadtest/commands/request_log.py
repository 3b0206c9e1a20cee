"""`life request-log`: the cost of the request log in latency, on one server whose sampling rate is reloaded.

Short segments with and without a log take turns under one load, in an order that no drift of the machine favours.
A bootstrap over the rounds says how far chance may be from the ratio, so a run tells whether it has decided.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.commands.options import (
    Command,
    add_load_options,
    add_models_option,
    positive,
    positive_integer,
    share,
)
from loadtest.commands.plain_run import load_of, rate_of
from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.measure.intervals import ratio_interval
from loadtest.measure.latency import TooFewRequests, figures
from loadtest.measure.outcome_figures import answer_figures, generator_figures
from loadtest.measure.segments import Segment, SegmentedLoad, SegmentedRun, run_segments, timed
from loadtest.measure.server_pages import Metrics, ServerPages
from loadtest.report.report import machine
from loadtest.report.tables import (
    cores_line,
    exit_status,
    generator_line,
    latency_table,
    number,
    print_answers,
    write_json,
)
from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.base.errors import Unavailable
from serving.client import Client
from serving.config.model_config_file import encode_model_config
from serving.server.model_server import ModelServer

NONE, LOGGED = "none", "logged"

# The time in which a reload's own work ends, such as the end of a file. No segment has it.
_SETTLE_SECONDS = 0.4
_RELOAD_SECONDS_MAX = 2.0
_END_SECONDS_MAX = 30.0
_GOAL = 1.02
_PER_MILLE = {"p50_ms": 500, "p99_ms": 990, "p999_ms": 999}
_PREFIX = "serving_request_log_"


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_load_options(parser, default_rate=300)
    add_models_option(parser)
    parser.add_argument(
        "--share", type=share, default=0.1, help="of the requests that are logged; default 0.1"
    )
    parser.add_argument(
        "--rounds", type=positive_integer, default=30, help="of one segment each; default 30"
    )
    parser.add_argument(
        "--segment-seconds", type=positive, default=2.0, metavar="S", help="default 2"
    )
    parser.add_argument(
        "--server-cores", default="", metavar="LIST", help="as taskset has them; default: all"
    )
    parser.add_argument(
        "--log-directory", type=Path, metavar="DIR", help="default: a temporary one"
    )


def kinds_of(round_count: int) -> Sequence[str]:
    """The kinds in order: each round has both, and the next one has them the other way round."""
    orders = ((NONE, LOGGED), (LOGGED, NONE))
    return [kind for number in range(round_count) for kind in orders[number % 2]]


def config_text(base_path: Path, sampling_rate: float, prefix: Path) -> str:
    """The config file of the model, with a log of that share of its requests."""
    return (
        f'model_config_list {{ config {{ name: "{MODEL_NAME}" base_path: "{base_path}" '
        'model_platform: "tensorflow" logging_config { '
        f"sampling_config {{ sampling_rate: {sampling_rate} }} "
        f'log_collector_config {{ filename_prefix: "{prefix}" }} }} }} }}'
    )


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    load = load_of(parsed, MODEL_NAME)
    with ExitStack() as stack:
        models = stack.enter_context(demo_directory(parsed.models))
        base_path = prepare_model(models, parsed.table_rows, console.print).base_path
        logs = parsed.log_directory
        work = Path(stack.enter_context(tempfile.TemporaryDirectory("log", "millpond-", logs)))
        configs = {NONE: work / "none.config", LOGGED: work / "logged.config"}
        for kind, sampling_rate in ((NONE, 0.0), (LOGGED, parsed.share)):
            configs[kind].write_text(config_text(base_path, sampling_rate, work / "log"))
        server = stack.enter_context(_server(configs[NONE], parsed.server_cores))
        server.wait_until_available(MODEL_NAME, 1)
        rate_per_second = rate_of(parsed, load, server.target)
        segmented = SegmentedLoad(
            load=load,
            arrivals=parsed.arrivals,
            rate_per_second=rate_per_second,
            seed=parsed.seed,
            kinds=kinds_of(parsed.rounds),
            segment_seconds_max=parsed.segment_seconds + _SETTLE_SECONDS + _RELOAD_SECONDS_MAX,
        )
        reload = _Reload(server, configs, clock)
        run = run_segments(
            segmented,
            server,
            lambda kind: _segment(kind, reload, parsed.segment_seconds, clock),
            clock=clock,
            say=lambda _: None,
        )
        records = reload.ended_log()
    report = request_log_report(run, records, rate_per_second, parsed.share, parsed.seed)
    print_request_log(report, console)
    write_json(parsed.json, report)
    return exit_status(report) or int(report["records"]["lost"] != 0)


def _server(config: Path, cores: str) -> ModelServer:
    pinned = ["taskset", "-c", cores] if cores else []
    return ModelServer(
        command=[*pinned, sys.executable, "-m", "serving"],
        model_config_file=config,
        model_config_file_poll_wait_seconds=-1,
    )


class _Reload:
    """Turns the log of a running server on and off."""

    def __init__(self, server: ModelServer, configs: Mapping[str, Path], clock: Clock) -> None:
        self._server = server
        self._configs = {kind: encode_model_config(path) for kind, path in configs.items()}
        self._clock = clock

    def __call__(self, kind: str) -> None:
        """Raises MillpondError if the server refuses."""
        with Client(self._server.admin_target) as client:
            client.reload_config(self._configs[kind])

    def ended_log(self) -> Mapping[str, int]:
        """Turns the log off, and counts its records when its last file is complete. Raises Unavailable."""
        self(NONE)
        begin_ns = self._clock.now_ns()
        while True:
            metrics = ServerPages(self._server.url).metrics(_PREFIX)
            if not metrics.total(f"{_PREFIX}pending"):
                return records_of(metrics)
            if seconds_since(self._clock, begin_ns) > _END_SECONDS_MAX:
                raise Unavailable("the last file of the log is not complete")
            pause(self._clock, 0.1)


def _segment(kind: str, reload: _Reload, seconds: float, clock: Clock) -> Segment:
    reload(kind)
    pause(clock, _SETTLE_SECONDS)
    return Segment(kind, timed(clock, seconds))


# --- Figures --------------------------------------------------------------------------------------


def records_of(metrics: Metrics) -> Mapping[str, int]:
    """The records of a log that has ended; records that no counter has are lost. Pure."""
    counts = {
        kind: round(metrics.total(f"{_PREFIX}{kind}_total"))
        for kind in ("sampled", "written", "dropped")
    }
    return {**counts, "lost": counts["sampled"] - counts["written"] - counts["dropped"]}


def request_log_report(
    run: SegmentedRun[Segment],
    records: Mapping[str, int],
    rate_per_second: float,
    logged_share: float,
    seed: int,
) -> dict[str, Any]:
    """Makes the JSON: latencies of both kinds, and the intervals of their ratios. Pure."""
    parts = {kind: run.latencies_by_segment_ns(kind) for kind in (NONE, LOGGED)}
    ratios: dict[str, Any] = {}
    for key, per_mille in _PER_MILLE.items():
        try:
            interval = ratio_interval(parts[LOGGED], parts[NONE], per_mille, seed)
        except TooFewRequests as error:
            ratios[key] = {"refused": str(error)}
        else:
            ratios[key] = {
                **{name: round(value, 4) for name, value in asdict(interval).items()},
                "verdict": interval.verdict(_GOAL),
            }
    return {
        "rate_per_second": rate_per_second,
        "logged_share": logged_share,
        "round_count": len(parts[NONE]),
        **answer_figures([run.outcome], run.wrong_count),
        "latency": {kind: figures(run.latencies_ns(kind)) for kind in (NONE, LOGGED)},
        "goal": _GOAL,
        "ratio": ratios,
        "records": dict(records),
        "machine": machine(),
        "generator": generator_figures([run.outcome]),
        "cores_used": vars(run.cores),
    }


def print_request_log(report: Mapping[str, Any], console: Console) -> None:
    """Prints the table of both kinds, their ratios, and the records."""
    title = f"{report['logged_share']:.0%} logged of {report['rate_per_second']:,.0f} requests/s"
    console.print(latency_table(title, report["latency"]))
    for key, shown in report["ratio"].items():
        name = key.removesuffix("_ms")
        text = shown.get("refused") or (
            f"{number(shown['ratio'], 3)}, by chance from {number(shown['low'], 3)} to "
            f"{number(shown['high'], 3)}; at most {report['goal']}: {shown['verdict']}"
        )
        console.print(f"{name} logged over none: {text}", highlight=False)
    records = ", ".join(f"{name} {count:,}" for name, count in report["records"].items())
    console.print(f"records: {records}", highlight=False)
    console.print(generator_line(report["generator"]))
    console.print(cores_line(report["cores_used"]))
    print_answers(report, console)


REQUEST_LOG = Command(
    "what logging a share of the requests does to latencies, with the interval of chance",
    _add_options,
    _run,
)
