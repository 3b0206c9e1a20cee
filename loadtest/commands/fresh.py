"""`fresh`: how soon answers have the rows that a trainer changes, and what that does to the tail.

A trainer (TensorFlow and `millpond.delta`, in a process of its own) changes rows, and writes a delta each few
seconds into the base path of a server under load. Each request asks for rows that change every time, so the
answers show when a version has arrived, and whether all their rows are of one version.

A machine without TensorFlow's Python package, or without memory for the trainer's tables, has another trainer
(`--templates`), which writes the same files. With `--sparse` it needs no disk for the tables either.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.commands.options import (
    Command,
    add_flag_option,
    add_json_option,
    flags_of,
    picture_file,
    positive,
    positive_integer,
)
from loadtest.drive.trained_model import DELTA, FULL
from loadtest.measure.fresh_run import FreshRun, FreshSetup, Say, run_fresh
from loadtest.measure.freshness import ages
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.row_values import TABLE_COUNT, RowValues
from loadtest.report.fresh_report import fresh_report, print_fresh
from loadtest.report.plot import check_can_plot, plot_runs
from loadtest.report.tables import exit_status, write_json
from serving.base.clock import Clock, SystemClock


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table-gb", type=positive, default=1.0, metavar="GB", help="of two tables; default 1"
    )
    parser.add_argument(
        "--changed-percent",
        type=positive,
        default=1.0,
        metavar="P",
        help="of the rows change now and then; default 1",
    )
    parser.add_argument(
        "--rows-per-minute", type=positive, default=200_000, metavar="R", help="default 200,000"
    )
    parser.add_argument(
        "--every", type=positive, default=6, metavar="S", help="seconds between exports; default 6"
    )
    parser.add_argument(
        "--versions", type=positive_integer, default=12, metavar="N", help="of a run; default 12"
    )
    parser.add_argument(
        "--compare",
        choices=(FULL,),
        help="run the same with full versions too, in turns",
    )
    parser.add_argument(
        "--repeats", type=positive_integer, default=1, help="runs of each kind; default 1"
    )
    parser.add_argument(
        "--rollbacks", type=int, default=20, metavar="N", help="at the end; default 20"
    )
    parser.add_argument(
        "--rest",
        type=positive,
        metavar="S",
        help="seconds of requests before the first export; default: as --every",
    )
    parser.add_argument("--rate", type=positive, default=300, metavar="R", help="requests/s")
    parser.add_argument("--rows", type=positive_integer, default=100, help="rows of a request")
    parser.add_argument("--arrivals", choices=ARRIVALS, default="poisson")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="for the versions; default: a temporary one")
    parser.add_argument(
        "--templates",
        type=Path,
        metavar="DIR",
        help="of python -m loadtest.drive.version_template DIR: the trainer writes files by them, without TensorFlow",
    )
    parser.add_argument(
        "--sparse",
        action="store_true",
        help="rows are zeros until they change; with --templates the base takes no disk",
    )
    parser.add_argument(
        "--server-cores", default="", metavar="LIST", help="as taskset has them; default: all"
    )
    add_flag_option(parser)
    add_json_option(parser)
    parser.add_argument(
        "--plot", type=picture_file, metavar="FILE.png", help="latency and age over time"
    )


def _run(parsed: argparse.Namespace) -> int:
    check_can_plot(parsed.plot)
    console, clock = Console(), SystemClock()
    setup = setup_of(parsed)
    kinds = (DELTA, FULL) if parsed.compare else (DELTA,)
    with tempfile.TemporaryDirectory(prefix="millpond-fresh-", dir=parsed.directory) as directory:
        runs = in_turns(setup, kinds, parsed.repeats, Path(directory), clock, console.print)
    report = fresh_report(setup, runs) | rollback_figures(runs[DELTA][-1].rollbacks)
    print_fresh(report, console)
    write_json(parsed.json, report)
    shown = {f"{kind} versions": of_kind[0] for kind, of_kind in runs.items()}
    lines = {name: ages(run.exports, run.outcome, run.answers) for name, run in shown.items()}
    plot_runs(parsed.plot, shown, lines)
    return exit_status(report) or int(report.get("first_answers_of_another_version", 0) > 0)


def setup_of(parsed: argparse.Namespace) -> FreshSetup:
    """Makes the setup from the options. Raises InvalidConfig."""
    step_count = round(parsed.rows_per_minute * parsed.every / 60 / TABLE_COUNT)
    return FreshSetup(
        values=RowValues.sized(
            parsed.table_gb * 1e9,
            parsed.changed_percent / 100,
            step_count,
            parsed.seed,
            is_sparse=parsed.sparse,
        ),
        version_count=parsed.versions,
        every_seconds=parsed.every,
        rest_seconds=parsed.rest or parsed.every,
        rate_per_second=parsed.rate,
        rows=parsed.rows,
        arrivals=parsed.arrivals,
        seed=parsed.seed,
        rollback_count=parsed.rollbacks,
        templates=parsed.templates,
        server_cores=parsed.server_cores,
        server_flags=flags_of(parsed),
    )


def in_turns(
    setup: FreshSetup, kinds: Sequence[str], repeats: int, directory: Path, clock: Clock, say: Say
) -> Mapping[str, Sequence[FreshRun]]:
    """Runs each kind once, then each once more, so that disturbances of the machine affect all alike.

    The last run of deltas has the rollbacks.
    """
    runs: dict[str, list[FreshRun]] = {kind: [] for kind in kinds}
    for repeat in range(repeats):
        is_last = repeat == repeats - 1
        for kind in reversed(kinds):
            say(f"run {repeat + 1} of {repeats}: {kind} versions")
            own = replace(
                setup,
                seed=setup.seed + repeat,
                rollback_count=setup.rollback_count if is_last else 0,
            )
            with tempfile.TemporaryDirectory(prefix=f"{kind}-", dir=directory) as versions:
                runs[kind].append(run_fresh(own, kind, Path(versions), clock, say))
    return runs


def rollback_figures(rollbacks: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The figures of rollbacks for the JSON; none without rollbacks. Pure."""
    if not rollbacks:
        return {}
    figures = {
        f"rollback_{key}": {
            "count": len(values),
            "p50_ms": round(statistics.median(values), 3),
            "max_ms": round(max(values), 3),
        }
        for key, values in rollbacks.items()
        if key.endswith("_ms")
    }
    return {**figures, "first_answers_of_another_version": int(sum(rollbacks["is_late"]))}


FRESH = Command(
    "how soon answers have the rows that a trainer changes, and the tail meanwhile",
    _add_options,
    _run,
)
