"""`delta`: how many rows a delta version has after training, by optimizer, and what writing one costs."""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option
from loadtest.measure.delta_costs import (
    IDS_PER_STEP,
    STEP_COUNTS,
    TABLE_ROWS,
    asked_shares,
    changed_shares,
    first_optimizers,
    keras_optimizers,
    writing_costs,
)
from loadtest.report.tables import write_json
from serving.base.clock import SystemClock


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as directory:
        costs = writing_costs(Path(directory), SystemClock())
    console = Console()
    console.print(
        f"base {costs.base_bytes / 1e6:.1f} MB in {costs.base_seconds * 1e3:.0f} ms; delta of 1 % "
        f"{costs.delta_bytes / 1e6:.2f} MB in {costs.delta_seconds * 1e3:.0f} ms, with given ids in "
        f"{costs.named_seconds * 1e3:.0f} ms; comparison of 600,000 × 16 in "
        f"{costs.compared_seconds * 1e3:.0f} ms"
    )
    heads = (f"{count}" for count in STEP_COUNTS * 2)
    title = f"rows that differ after so many steps of {IDS_PER_STEP} ids of {TABLE_ROWS:,} rows: new, trained"
    table = Table("optimizer", *heads, title=title)
    table.add_row("rows asked for", *_cells(asked_shares(parsed.seed)))
    shares = {}
    for name, make in {**keras_optimizers(), **first_optimizers()}.items():
        found = changed_shares(make(), parsed.seed)
        shares[name] = asdict(found)
        table.add_row(name, *_cells(found.from_start), *_cells(found.from_trained))
    console.print(table)
    write_json(parsed.json, {"costs": asdict(costs), "changed_shares": shares})
    return 0


def _cells(shares: Mapping[int, float]) -> list[str]:
    return [f"{shares[count]:.2%}" for count in STEP_COUNTS]


DELTA = Command(
    "the rows that a delta version has after training, by optimizer, and what writing one costs",
    _add_options,
    _run,
)
