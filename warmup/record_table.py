"""The records of a warm-up file as a table, for people."""

from collections.abc import Sequence
from typing import TextIO

from warmup.inspection import RecordSummary, Totals

_COLUMNS = ("#", "kind", "model", "signature", "inputs", "output_filter", "bytes", "response")

# On a terminal these columns get their full width. All other columns wrap.
_UNWRAPPED = {"#", "kind", "inputs", "bytes"}


def print_records(summaries: Sequence[RecordSummary], totals: Totals, stream: TextIO) -> None:
    """Prints the records and the totals.

    On a terminal the records are a drawn table; elsewhere one line each, with columns separated by
    tabs.
    """
    if stream.isatty():
        _draw([_row(summary, separator="\n") for summary in summaries], stream)
    else:
        for row in (_COLUMNS, *(_row(summary, separator=", ") for summary in summaries)):
            print("\t".join(row), file=stream)
    print(_total_line(totals), file=stream)


def _row(summary: RecordSummary, *, separator: str) -> tuple[str, ...]:
    return (
        str(summary.number),
        summary.kind or "empty",
        summary.model,
        summary.signature,
        separator.join(summary.inputs),
        separator.join(summary.output_filter),
        str(summary.size_bytes),
        "yes" if summary.has_response else "no",
    )


def _draw(rows: Sequence[tuple[str, ...]], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in _COLUMNS:
        table.add_column(column, no_wrap=column in _UNWRAPPED)
    for row in rows:
        # Wrapped in Text, because a shape in [brackets] would be read as markup.
        table.add_row(*(Text(cell) for cell in row))
    Console(file=stream).print(table)


def _total_line(totals: Totals) -> str:
    kinds = ", ".join(f"{count} {kind or 'empty'}" for kind, count in totals.kinds.items())
    return (
        f"{totals.record_count} records ({kinds or 'none'}), {totals.size_bytes} bytes, "
        f"{totals.response_count} with a response"
    )
