"""`millpond delta`: makes a delta version of two versions of a model.

Stands beside the package `millpond.delta`, which imports TensorFlow.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millpond.table_changes import CHANGED_RATIO_MAX, ManyRowsChanged
from millpond.version_files import refuse_target
from serving.base.errors import FailedPrecondition
from serving.base.quiet_stderr import quiet_stderr
from serving.base.tensorflow_package import REQUIREMENT
from serving.commands.argument_types import positive_number, whole_number


def run(arguments: Sequence[str]) -> int:
    """Writes OUT and prints what it has.

    Raises the errors of `millpond.delta.delta_of_versions`, and FailedPrecondition if TensorFlow is missing.
    """
    parsed = make_parser().parse_args(arguments)
    # Checked before TensorFlow is imported, which takes seconds.
    refuse_target(parsed.out, parsed.old, parsed.new)
    with quiet_stderr(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ManyRowsChanged)
        delta = _importer()(
            parsed.old,
            parsed.new,
            parsed.out,
            table_names=parsed.table,
            table_bytes_min=parsed.table_bytes_min,
            changed_ratio_max=parsed.changed_ratio_max,
            copy=parsed.copy,
        )
    for warning in caught:
        if issubclass(warning.category, ManyRowsChanged):
            print(f"millpond delta: warning: {warning.message}", file=sys.stderr)
    for name, count in delta.changed_rows.items():
        print(f"{name}: {count} rows")
    print(
        f"{delta.path}: {delta.changed_ratio:.2%} of the rows, {delta.written_bytes} bytes written"
    )
    return 0


def _importer() -> Callable[..., Any]:
    try:
        from millpond.delta import delta_of_versions
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            f"{error}: a delta needs TensorFlow's Python package, which the container image leaves "
            f"out: run this where it is installed (pip install '{REQUIREMENT}')"
        ) from error
    return delta_of_versions


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond delta",
        description="Write the version OUT, which answers as NEW: links to the tables of OLD, and the "
        "rows that differ.",
        allow_abbrev=False,
    )
    for name, text in (
        ("old", "version whose files OUT links to: a base, a delta of it, or an ordinary version"),
        ("new", "version of the same graph, whose values OUT gets"),
        ("out", "directory to write, on the file system of OLD"),
    ):
        parser.add_argument(name, type=Path, metavar=name.upper(), help=text)
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="NAME",
        help="path of a table in the model, such as tables/0; may be repeated (default: all large ones)",
    )
    parser.add_argument(
        "--table_bytes_min",
        type=whole_number(0),
        default=2**20,
        metavar="BYTES",
        help="smallest table that is found without --table (default %(default)s)",
    )
    parser.add_argument(
        "--changed_ratio_max",
        type=positive_number,
        default=CHANGED_RATIO_MAX,
        metavar="RATIO",
        help="refuse if more of the rows differ (default %(default)s)",
    )
    parser.add_argument(
        "--copy", action="store_true", help="copy the files of OLD if they cannot be linked"
    )
    return parser
