"""The figures of turns: medians over the rounds, and ratios to the first server in the same round."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.measure.budget import summed
from loadtest.measure.latency import figures, medians, ratio
from loadtest.measure.outcome_figures import answer_figures
from loadtest.measure.processor_time import mean_cores
from loadtest.measure.saturation import answered_rate
from loadtest.measure.shares import Saturations
from loadtest.measure.turns import Results, Turn
from loadtest.plan.loops import Loop
from loadtest.report.report import machine
from loadtest.report.tables import cores_line, number, print_answers

_KEYS = ("requests_per_second", "cpu_us", "p50_ms", "p99_ms")
_DIGITS = {"requests_per_second": 0, "cpu_us": 0, "p50_ms": 2, "p99_ms": 2}
# A part below this share of a request is not printed.
_SHOWN_SHARE = 0.005
_TITLE = "medians over the rounds; p999 over all; ×: to the first server in the same round"


def turns_report(
    commands: Mapping[str, str], results: Results, found: Saturations | None = None
) -> dict[str, Any]:
    """Makes the JSON: the commands, the figures of each loop, those of all turns together, and the
    saturations that shares are of.

    A loop has for each server the medians over the rounds, and the medians of the ratios to the
    first server in the same round.
    """
    turns = [turn for each in results.values() for turn in each]
    return {
        "commands": dict(commands),
        "loops": {str(loop): _of_loop(results, loop) for loop, _ in results},
        "saturation": {
            str(rows): {name: round(rate, 1) for name, rate in each.items()}
            for rows, each in (found or {}).items()
        },
        **answer_figures([t.outcome for t in turns], sum(t.wrong_count for t in turns)),
        "is_realtime": all(turn.outcome.is_realtime for turn in turns),
        "cores": asdict(mean_cores([turn.cores for turn in turns])),
        "machine": machine(),
    }


def _of_loop(results: Results, loop: Loop) -> dict[str, Any]:
    of_loop = {name: turns for (of, name), turns in results.items() if of == loop}
    rounds = {name: [_turn_figures(turn, loop) for turn in of_loop[name]] for name in of_loop}
    pooled = {
        name: figures(np.concatenate([turn.latencies_ns(loop) for turn in turns]))
        for name, turns in of_loop.items()
    }
    first = next(iter(of_loop))
    return {
        name: {
            **medians(each, _KEYS),
            "ratios": medians(_ratios(each, rounds[first]), _KEYS),
            "pooled": pooled[name],
            "ratio_p999": ratio(pooled[name], pooled[first], "p999_ms"),
            "failed_count": sum(int((turn.outcome.codes != 0).sum()) for turn in of_loop[name]),
            "refused": figures(np.concatenate([turn.refused_ns(loop) for turn in of_loop[name]])),
            "wrong_count": sum(turn.wrong_count for turn in of_loop[name]),
            "rounds": each,
        }
        for name, each in rounds.items()
    }


def _ratios(
    each: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, float | None]]:
    return [
        {key: ratio(one, of_first, key) for key in _KEYS}
        for one, of_first in zip(each, first, strict=True)
    ]


def _turn_figures(turn: Turn, loop: Loop) -> dict[str, Any]:
    return {
        **figures(turn.latencies_ns(loop)),
        "requests_per_second": round(answered_rate(turn.outcome), 1),
        "cpu_us": round(turn.server_ns / max(len(turn.outcome.codes), 1) / 1_000, 1),
    }


def print_turns(report: Mapping[str, Any], console: Console) -> None:
    """Prints the table, saturations, refusals, lost and wrong answers, and the use of the cores."""
    console.print(turns_table(report["loops"], _TITLE))
    for rows, each in report["saturation"].items():
        rates = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in each.items())
        console.print(f"saturation at {rows} rows: {rates}", highlight=False)
    for loop, servers in report["loops"].items():
        for name, shown in servers.items():
            if shown["refused"]["count"]:
                console.print(refused_line(f"{name}, {loop}", shown["refused"]), highlight=False)
    if not report["is_realtime"]:
        console.print("generator NOT real-time: it may not set SCHED_FIFO")
    print_answers(report, console)
    console.print(f"mean of all turns: {cores_line(report['cores'])}", highlight=False)


def refused_line(title: str, refused: Mapping[str, Any]) -> str:
    """A line on the requests that a server refused because it had too many."""
    p50, p99 = (number(refused[key]) for key in ("p50_ms", "p99_ms"))
    return f"{title}: refused {refused['count']:,}, after p50 {p50}, p99 {p99} ms"


def turns_table(loops: Mapping[str, Mapping[str, Mapping[str, Any]]], title: str) -> Table:
    """Makes a table with a row for each loop and server of `loops_report`."""
    table = Table(
        *("load", "server", "rate/s", "CPU µs", "p50 ms", "p99 ms"),
        *("p999 ms", "failed"),
        title=title,
    )
    for loop, servers in loops.items():
        for place, (name, shown) in enumerate(servers.items()):
            table.add_row(
                "" if place else loop,
                name,
                *(_cell(shown, key, is_first=place == 0) for key in _KEYS),
                _with_ratio(
                    number(shown["pooled"]["p999_ms"]), shown["ratio_p999"] if place else None
                ),
                f"{shown['failed_count']:,}",
            )
        table.add_section()
    return table


def _cell(shown: Mapping[str, Any], key: str, *, is_first: bool) -> str:
    figure = number(shown[key], _DIGITS[key])
    return _with_ratio(figure, None if is_first else shown["ratios"][key])


def _with_ratio(figure: str, of_first: float | None) -> str:
    return figure if of_first is None else f"{figure}\n×{of_first:.2f}"


def budget_table(budgets: Mapping[str, Mapping[str, Any]]) -> Table:
    """Makes a table with a row for each part, a column for each load, and the sums in the end."""
    table = Table("µs of a request", *budgets, title="server's processor time per request")
    columns = [of_load["parts"] for of_load in budgets.values()]
    shown = {
        part: None
        for of_load in budgets.values()
        for part, microseconds in of_load["parts"].items()
        if microseconds >= _SHOWN_SHARE * of_load["request_us"]
    }
    for part in sorted(shown):
        table.add_row(part, *(f"{parts.get(part, 0):.1f}" for parts in columns))
    table.add_section()
    groups = [summed(parts) for parts in columns]
    for group in dict.fromkeys(name for sums in groups for name in sums):
        table.add_row(group, *(f"{sums.get(group, 0):.1f}" for sums in groups))
    table.add_section()
    table.add_row("all", *(f"{of_load['request_us']:.1f}" for of_load in budgets.values()))
    return table
