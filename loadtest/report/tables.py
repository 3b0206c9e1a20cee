"""Formats a report for people, and writes the file for other tools."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# The share of this program and a quiet system. Above it, other processes disturb the tail.
_OTHERS_CORES_MAX = 0.1
_PERCENTILES = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")


def latency_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Makes a table with a row for each of `rows`, which are `latency.figures` by name."""
    table = Table("", "requests", *(key.replace("_", " ") for key in _PERCENTILES), title=title)
    for name, shown in rows.items():
        cells = (number(shown[key]) for key in _PERCENTILES)
        table.add_row(name, f"{shown['count']:,}", *cells)
    return table


def generator_line(shown: Mapping[str, Any]) -> str:
    """A line on the generator's own accuracy, printed beside every result."""
    priority = "real-time" if shown["is_realtime"] else "NOT real-time: it may not set SCHED_FIFO"
    return (
        f"generator ({priority}): issue delay p99 {number(shown['issue_delay_p99_ms'])} ms, "
        f"p999 {number(shown['issue_delay_p999_ms'])} ms, max {shown['issue_delay_max_ms']} ms; "
        f"late by more than {shown['late_over_ms']:g} ms in {shown['late_stretch_count']} "
        f"stretches, {shown['left_out_count']} requests left out for it; "
        f"{shown['core_share']:.1%} of a core"
    )


def cores_line(shown: Mapping[str, Any]) -> str:
    """A line on the use of the cores, with a warning if other processes used them."""
    disturbed = shown["other"] + shown["stolen"] > _OTHERS_CORES_MAX
    return (
        f"cores in use: server {shown['server']:.2f}, generator {shown['generator']:.2f}, others "
        f"{shown['other']:.2f}, stolen {shown['stolen']:.2f}"
        + ("; DISTURBED: measure again on a quiet machine" if disturbed else "")
    )


def print_answers(shown: Mapping[str, Any], console: Console) -> None:
    """Prints the counts and messages of `outcome_figures.answer_figures`."""
    console.print(f"errors {shown['errors']}, wrong answers {shown['wrong_answers']}")
    for message in shown["error_messages"]:
        console.print(f"  {message}", markup=False)
    for line in wrong_reply_lines(shown):
        console.print(f"  {line}", markup=False, highlight=False)


def wrong_reply_lines(shown: Any) -> Iterator[str]:
    """The lines of all `wrong_replies` in a report, at any depth."""
    if isinstance(shown, Mapping):
        yield from (reply["line"] for reply in shown.get("wrong_replies", ()))
        for value in shown.values():
            yield from wrong_reply_lines(value)


def exit_status(shown: Mapping[str, Any]) -> int:
    """1 if a request was lost or answered wrongly, otherwise 0."""
    return 1 if shown["errors"] or shown["wrong_answers"] else 0


def number(value: float | None, digits: int = 2) -> str:
    """Formats a figure; `-` if it was refused for too few requests."""
    return "-" if value is None else f"{value:.{digits}f}"


def write_json(path: Path | None, report: Any) -> None:
    """Writes a report if `path` is given. Raises OSError."""
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")
