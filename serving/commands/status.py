"""`millpond status`: which versions a server has, and in which states."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from serving.client import Client, VersionStatus

_COLUMNS = ("model", "version", "state", "error")

Statuses = Mapping[str, Sequence[VersionStatus]]


def run(arguments: Sequence[str]) -> int:
    """Prints a table. Raises MillpondError where the server or the model is not there."""
    parsed = _parser().parse_args(arguments)
    with Client(parsed.target) as client:
        print_statuses(_statuses(client, parsed.model), sys.stdout)
    return 0


def _statuses(client: Client, model: str | None) -> Statuses:
    return client.list_models() if model is None else {model: client.model_status(model)}


def print_statuses(statuses: Statuses, stream: TextIO) -> None:
    """A drawn table on a terminal; elsewhere one line a version, columns separated by tabs."""
    rows = [row for name in statuses for row in _rows(name, statuses[name])]
    if not stream.isatty():
        for row in (_COLUMNS, *rows):
            print("\t".join(row), file=stream)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*_COLUMNS)
    for row in rows:
        # As text: a message with [brackets] is no markup.
        table.add_row(*(Text(cell) for cell in row))
    Console(file=stream).print(table)


def _rows(name: str, statuses: Sequence[VersionStatus]) -> list[tuple[str, ...]]:
    if not statuses:
        return [(name, "-", "no version", "")]
    return [
        (name, str(status.version), status.state.name, _one_line(status.error_message))
        for status in statuses
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond status",
        description="Print the versions of MODEL, or of every model, and their states.",
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="all models where left out")
    parser.add_argument("--target", default="localhost:8500", help="default %(default)s")
    return parser
