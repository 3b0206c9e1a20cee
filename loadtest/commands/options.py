"""The options that several commands of `python -m loadtest` share."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.version_series import WARM_UP_MODES
from loadtest.measure.setup import Setup
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.ctr_load import OUTPUTS
from loadtest.plan.presets import PRESETS
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS

# The generator gives up on a closed loop after 25 s.
_TURN_SECONDS_MAX = 10

PICTURE_SUFFIXES = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class Command:
    """A command: its line in the help, its options, and the function that runs it and returns the
    exit status.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def positive(text: str) -> float:
    """Reads a number above 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def share(text: str) -> float:
    """Reads a number above 0 and at most 1. Raises ArgumentTypeError."""
    value = positive(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is above 1; 80 % is 0.8")
    return value


def writable_file(text: str) -> Path:
    """Reads a file in an existing directory, so that a mistake is found before the load."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent} is not a directory")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory; name a file")
    return path


def picture_file(text: str) -> Path:
    """Reads a file that matplotlib can draw into. Raises ArgumentTypeError."""
    path = writable_file(text)
    if path.suffix not in PICTURE_SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"{text!r} must end in one of {', '.join(PICTURE_SUFFIXES)}"
        )
    return path


def positive_integer(text: str) -> int:
    """Reads a whole number above 0. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def turn_seconds(text: str) -> float:
    """Reads the length of a closed loop's turn. Raises ArgumentTypeError if it is too long."""
    seconds = positive(text)
    if seconds > _TURN_SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is above {_TURN_SECONDS_MAX}; use more rounds")
    return seconds


def host_and_port(text: str) -> str:
    """Reads HOST:PORT. Raises ArgumentTypeError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text


def add_load_options(parser: argparse.ArgumentParser, default_rate: float | None) -> None:
    """Adds the options of the load: rate, size and arrivals of requests, and the file for the
    figures.
    """
    rate = parser.add_mutually_exclusive_group(required=default_rate is None)
    rate.add_argument(
        "--rate", type=positive, default=default_rate, metavar="R", help="requests per second"
    )
    rate.add_argument(
        "--saturation",
        type=share,
        metavar="SHARE",
        help="share of the server's highest rate, which is measured first (0.6: 60 %%)",
    )
    parser.add_argument("--arrivals", choices=ARRIVALS, default="poisson")
    parser.add_argument("--rows", type=positive_integer, default=100, help="rows of a request")
    parser.add_argument("--seed", type=int, default=1, metavar="K")
    parser.add_argument(
        "--output-filter",
        choices=OUTPUTS,
        action="append",
        help="output that the clients request; twice for both; default: no filter",
    )
    parser.add_argument(
        "--table-rows",
        type=positive_integer,
        default=DEFAULT_TABLE_ROWS,
        help="rows of each of the model's tables, on which its answers depend",
    )
    add_json_option(parser)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the file with the figures."""
    parser.add_argument(
        "--json", type=writable_file, metavar="FILE", help="write the figures to FILE"
    )


def add_flag_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option for further flags of the server, which `flags_of` reads."""
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further flag of the server, without its dashes; may be repeated",
    )


def flags_of(parsed: argparse.Namespace) -> dict[str, str]:
    """The values of the option of `add_flag_option`, by the flags' names."""
    return dict(flag.split("=", 1) for flag in parsed.flag)


def add_models_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the directory of the served model."""
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="keep the exported model (1 GB) in DIR; default: export it to a temporary directory",
    )


def add_swap_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of swaps: the model, the count and the pauses."""
    add_models_option(parser)
    parser.add_argument(
        "--swaps",
        type=positive_integer,
        default=6,
        help="swaps of one run, default 6; a swap adds some 400 requests at 300/s to the swap window, "
        "whose p99 needs 500 and p999 5,000",
    )
    parser.add_argument(
        "--repeats",
        type=positive_integer,
        default=1,
        help="runs of each preset, which are pooled; default 1",
    )
    parser.add_argument(
        "--swap-interval",
        type=positive,
        default=6,
        metavar="S",
        help="seconds from drop to drop, default 6; a slow swap makes it longer",
    )
    parser.add_argument(
        "--warm-up",
        choices=WARM_UP_MODES,
        default="records",
        help="the versions' warm-up file: as exported, no file, or other outputs than the clients'",
    )


def setup_of(
    parsed: argparse.Namespace,
    preset: str,
    reloaded: str = MODEL_NAME,
    command: str | None = None,
    reloaded_too: Sequence[str] = (),
) -> Setup:
    """Makes the setup from the options of `add_load_options` and `add_swap_options`.

    With a shell command, `preset` is the name of its server.
    """
    return Setup(
        preset=preset,
        loaded=MODEL_NAME,
        reloaded=reloaded,
        rate_per_second=parsed.rate,
        rows=parsed.rows,
        table_rows=parsed.table_rows,
        swaps=parsed.swaps,
        swap_interval_seconds=parsed.swap_interval,
        seed=parsed.seed,
        arrivals=parsed.arrivals,
        warm_up=parsed.warm_up,
        output_filter=tuple(parsed.output_filter or ()),
        command=command,
        reloaded_too=reloaded_too,
    )


def add_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, Command], dest: str
) -> None:
    """Adds a subparser for each of `commands`, whose name the parsed `dest` has."""
    subparsers = parser.add_subparsers(dest=dest, required=True, metavar=dest.upper())
    for name, command in commands.items():
        command.add_arguments(subparsers.add_parser(name, help=command.summary, allow_abbrev=False))


def add_preset_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the server's preset."""
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="millpond",
        metavar="NAME",
        help=f"one of {', '.join(PRESETS)}; default: millpond",
    )
