"""`millpond demo-model`: exports a version of the CTR model."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from serving.base.errors import FailedPrecondition
from serving.base.quiet_stderr import quiet_stderr
from serving.base.tensorflow_package import REQUIREMENT
from serving.commands.argument_types import whole_number
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS, refuse_existing
from serving.source.listing import VERSION_MAX


def run(arguments: Sequence[str]) -> int:
    """Exports one version, and prints its path.

    Raises FailedPrecondition if the version exists already or TensorFlow is missing, and OSError if the
    version cannot be written.
    """
    parsed = make_parser().parse_args(arguments)
    # Both checks come before the import of TensorFlow, which takes seconds.
    parsed.directory.mkdir(parents=True, exist_ok=True)
    refuse_existing(parsed.directory / str(parsed.version))
    with quiet_stderr() as terminal:
        path = _export_with_progress_bar(parsed, terminal)
    print(path)
    return 0


def _export_with_progress_bar(parsed: argparse.Namespace, terminal: TextIO) -> Path:
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    console = Console(file=terminal)
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("importing TensorFlow", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        export_ctr_model = _exporter()
        return export_ctr_model(
            parsed.directory.absolute(),
            parsed.version,
            table_rows=parsed.rows,
            with_warm_up=parsed.warmup,
            progress=show,
        )


def _exporter() -> Callable[..., Path]:
    """Imports `export_ctr_model`. Raises FailedPrecondition if TensorFlow cannot be imported."""
    try:
        from serving.commands.ctr_export import export_ctr_model
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            f"{error}: exporting needs TensorFlow's Python package, which the container image leaves "
            f"out: run this where it is installed (pip install '{REQUIREMENT}')"
        ) from error
    return export_ctr_model


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond demo-model",
        description="Export a version of the CTR model (26 embedding tables) as DIR/VERSION.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="base path of the model")
    parser.add_argument(
        "--version",
        type=whole_number(1, VERSION_MAX),
        required=True,
        metavar="N",
        help="number of the version",
    )
    parser.add_argument(
        "--rows",
        type=whole_number(1),
        default=DEFAULT_TABLE_ROWS,
        help="rows of each table (default %(default)s: 500 MB)",
    )
    parser.add_argument(
        "--warmup",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write warm-up records with it",
    )
    return parser
