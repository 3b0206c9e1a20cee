"""The figures of turns: medians over the rounds, and ratios to the first server in the same round."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.measure.latency import figures, medians, ratio
from loadtest.measure.outcome_figures import answer_figures
from loadtest.measure.processor_time import mean_cores
from loadtest.measure.saturation import answered_rate
from loadtest.measure.turns import Results, Turn
from loadtest.plan.loops import Loop
from loadtest.report.report import machine
from loadtest.report.tables import cores_line, number, print_answers

_KEYS = ("requests_per_second", "cpu_us", "p50_ms", "p99_ms")
_DIGITS = {"requests_per_second": 0, "cpu_us": 0, "p50_ms": 2, "p99_ms": 2}
_TITLE = "medians over the rounds; p999 over all; ×: to the first server in the same round"


def turns_report(commands: Mapping[str, str], results: Results) -> dict[str, Any]:
    """Returns the JSON: the commands, the figures of each loop, and those of all turns together."""
    return {
        "commands": dict(commands),
        "loops": loops_report(results),
        **all_turns_report([turn for each in results.values() for turn in each]),
    }


def all_turns_report(turns: Sequence[Turn]) -> dict[str, Any]:
    """Returns the JSON of all turns: lost and wrong answers, the use of the cores, the machine."""
    return {
        **answer_figures([t.outcome for t in turns], sum(t.wrong_count for t in turns)),
        "is_realtime": all(turn.outcome.is_realtime for turn in turns),
        "cores": asdict(mean_cores([turn.cores for turn in turns])),
        "machine": machine(),
    }


def loops_report(results: Results) -> dict[str, Any]:
    """Returns for each loop and server the medians over the rounds, and the medians of the ratios to
    the first server in the same round.
    """
    return {str(loop): _of_loop(results, loop) for loop, _ in results}


def _of_loop(results: Results, loop: Loop) -> dict[str, Any]:
    of_loop = {name: turns for (of, name), turns in results.items() if of == loop}
    rounds = {name: [_turn_figures(turn, loop) for turn in of_loop[name]] for name in of_loop}
    pooled = {name: _pooled(turns, loop) for name, turns in of_loop.items()}
    first = next(iter(of_loop))
    return {
        name: {
            **medians(each, _KEYS),
            "ratios": medians(_ratios(each, rounds[first]), _KEYS),
            "pooled": pooled[name],
            "ratio_p999": ratio(pooled[name], pooled[first], "p999_ms"),
            "failed_count": sum(int((turn.outcome.codes != 0).sum()) for turn in of_loop[name]),
            "wrong_count": sum(turn.wrong_count for turn in of_loop[name]),
            "rounds": each,
        }
        for name, each in rounds.items()
    }


def _pooled(turns: Sequence[Turn], loop: Loop) -> dict[str, Any]:
    return figures(np.concatenate([turn.latencies_ns(loop) for turn in turns]))


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
    """Prints the table, the lost and wrong answers, and the use of the cores."""
    console.print(turns_table(report["loops"], _TITLE))
    print_all_turns(report, console)


def print_all_turns(report: Mapping[str, Any], console: Console) -> None:
    """Prints what `all_turns_report` returned."""
    if not report["is_realtime"]:
        console.print("generator NOT real-time: it may not set SCHED_FIFO")
    print_answers(report, console)
    console.print(f"mean of all turns: {cores_line(report['cores'])}", highlight=False)


def turns_table(loops: Mapping[str, Mapping[str, Mapping[str, Any]]], title: str) -> Table:
    """Returns a table with a row for each loop and server of `loops_report`."""
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
