"""`saturation`: requests per second of servers by rows and requests in flight, and their latencies at
shares of that.

All servers run at the same time and take turns, as in `turns`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console

from loadtest.commands.given_servers import (
    add_turns_options,
    prepared_servers,
    server_commands,
)
from loadtest.commands.options import Command, positive, positive_integer, share
from loadtest.measure.shares import (
    LOWEST,
    SHARE_OF,
    Saturations,
    measure_shares,
    saturations,
    share_rates,
)
from loadtest.measure.turns import Results, measure_loops
from loadtest.plan.loops import ClosedLoop
from loadtest.report.tables import exit_status, write_json
from loadtest.report.turns_report import (
    all_turns_report,
    loops_report,
    print_all_turns,
    turns_table,
)
from serving.base.clock import SystemClock

_ROWS, _IN_FLIGHT, _SHARES = "1,100", "1,16,64,256", "0.1,0.5,0.8"

_ItemT = TypeVar("_ItemT")


def _list_of(item: Callable[[str], _ItemT]) -> Callable[[str], Sequence[_ItemT]]:
    """Returns the parser of items between commas, of which none may be given twice."""

    def parse(text: str) -> Sequence[_ItemT]:
        items = [item(word) for word in text.split(",") if word]
        if len(set(items)) < len(items):
            raise argparse.ArgumentTypeError(f"{text!r} has an item twice")
        return items

    return parse


numbers = _list_of(positive_integer)
shares = _list_of(share)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_turns_options(parser, rounds=5, seconds=0.5)
    for option, parse, default, what in (
        ("--rows", numbers, _ROWS, "rows of a request"),
        ("--in-flight", numbers, _IN_FLIGHT, "requests under way in a closed loop"),
        ("--shares", shares, _SHARES, "open loops at shares of the saturation; none for ''"),
    ):
        parser.add_argument(
            option, type=parse, default=default, metavar="N,...", help=f"{what}; default {default}"
        )
    parser.add_argument(
        "--share-of",
        choices=SHARE_OF,
        default=LOWEST,
        help="the saturation that the shares are of: the lowest of all servers, so that all get the "
        "same rate, or each server's own; default lowest",
    )
    parser.add_argument(
        "--channels",
        type=positive_integer,
        default=4,
        help="connections of a closed loop, at most its requests in flight; default 4",
    )
    parser.add_argument(
        "--share-seconds",
        type=positive,
        default=1,
        metavar="S",
        help="seconds of an open loop's turn; default 1; longer if a p999 needs it, whose rounds need "
        "5,000 requests together",
    )


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    loops = closed_loops(parsed.rows, parsed.in_flight, parsed.channels)
    with prepared_servers(parsed, parsed.rows, clock, console.print) as (servers, loads):
        measuring = (parsed.rounds, parsed.seconds, clock, console.print)
        closed = measure_loops(servers, loops, loads, *measuring)
        found = saturations(closed)
        rates = share_rates(found, parsed.shares, parsed.share_of)
        measuring = (parsed.rounds, parsed.share_seconds, clock, console.print)
        at_shares = measure_shares(servers, rates, loads, *measuring) if rates else {}
    report = saturation_report(
        server_commands(parsed.servers), closed, found, at_shares, parsed.share_of
    )
    print_saturation(report, console)
    write_json(parsed.json, report)
    return exit_status(report)


def closed_loops(
    rows: Sequence[int], in_flight: Sequence[int], channels: int
) -> Sequence[ClosedLoop]:
    """Returns a loop for each number of rows and of requests in flight."""
    return [ClosedLoop(each, min(channels, count), count) for each in rows for count in in_flight]


def saturation_report(
    commands: Mapping[str, str],
    closed: Results,
    found: Saturations,
    at_shares: Results,
    share_of: str,
) -> dict[str, Any]:
    """Returns the JSON: `loops` and `shares` as `turns` has its loops, and `saturation` by rows and
    server.
    """
    turns = [turn for results in (closed, at_shares) for each in results.values() for turn in each]
    return {
        "commands": dict(commands),
        "loops": loops_report(closed),
        "saturation": {
            rows: {name: round(rate, 1) for name, rate in each.items()}
            for rows, each in found.items()
        },
        "share_of": share_of,
        "shares": loops_report(at_shares),
        **all_turns_report(turns),
    }


def print_saturation(report: Mapping[str, Any], console: Console) -> None:
    """Prints the tables of both kinds of loops, and each server's saturation."""
    ratios = "×: to the first server in the same round"
    console.print(
        turns_table(report["loops"], f"closed loops, ROWS:CHANNELSxIN_FLIGHT; medians; {ratios}")
    )
    for rows, each in report["saturation"].items():
        rates = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in each.items())
        console.print(f"saturation at {rows} rows: {rates}", highlight=False)
    if report["shares"]:
        of = "the lowest" if report["share_of"] == LOWEST else "each server's own"
        title = (
            f"open loops, ROWS:SHARE of {of} saturation; medians, p999 over all rounds; {ratios}"
        )
        console.print(turns_table(report["shares"], title))
    print_all_turns(report, console)


SATURATION = Command(
    "requests per second by rows and requests in flight, and latencies at shares of that",
    _add_options,
    _run,
)
