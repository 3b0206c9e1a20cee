"""`canary`: the rule of a canary on machines that pause, with good versions and slow ones."""

import argparse
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive_integer
from loadtest.measure.judged_pauses import VERSIONS, Traffic, stopped_shares
from loadtest.report.tables import write_json

# Requests/s, and requests until the judgement.
_RATES = ((50, 1_000), (50, 10_000), (2_000, 10_000))
_PAUSE_PERIODS_SECONDS = (4.0, 8.0, 30.0)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=positive_integer, default=200, help="judgements for each figure; default 200"
    )
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    heads = ("requests/s", "requests", "a pause in")
    table = Table(*heads, *VERSIONS, title="stopped: by the rule, by p999 alone")
    rows = []
    for rate, count in _RATES:
        for period in _PAUSE_PERIODS_SECONDS:
            traffic = Traffic(rate, count, period)
            shares = {
                version: stopped_shares(version, traffic, parsed.runs, parsed.seed)
                for version in VERSIONS
            }
            rows.append({**asdict(traffic), "stopped": shares})
            cells = (", ".join(f"{share:.1%}" for share in row.values()) for row in shares.values())
            table.add_row(f"{rate:,}", f"{count:,}", f"{period:g} s", *cells)
    Console().print(table)
    write_json(parsed.json, {"runs": rows})
    return 0


CANARY = Command(
    "how often the rule of a canary stops good and slow versions on machines that pause",
    _add_options,
    _run,
)
