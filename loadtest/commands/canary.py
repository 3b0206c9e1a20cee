"""`canary`: the rule of a canary on machines that pause, with good versions and slow ones."""

import argparse

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive_integer
from loadtest.measure.judged_pauses import VERSIONS, stopped_shares
from loadtest.report.tables import write_json

_COUNTS = (1_000, 2_000, 10_000)
_PAUSE_PERIODS_SECONDS = (4.0, 8.0, 30.0)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=positive_integer, default=200, help="judgements for each figure; default 200"
    )
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    table = Table("a pause in", "requests", *VERSIONS, title="stopped: by the rule, by p999 alone")
    rows = []
    for period in _PAUSE_PERIODS_SECONDS:
        for count in _COUNTS:
            shares = {
                version: stopped_shares(version, count, period, parsed.runs, parsed.seed)
                for version in VERSIONS
            }
            rows.append({"pause_period_seconds": period, "requests": count, "stopped": shares})
            cells = (", ".join(f"{share:.1%}" for share in row.values()) for row in shares.values())
            table.add_row(f"{period:g} s", f"{count:,}", *cells)
    Console().print(table)
    write_json(parsed.json, {"runs": rows})
    return 0


CANARY = Command(
    "how often the rule of a canary stops good and slow versions on machines that pause",
    _add_options,
    _run,
)
