"""`millpond completion`: prints the script by which a shell completes commands, flags and files."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from serving.config.flag_rows import Flag, base_path, boolean, local_path, optional_path
from serving.config.flags import FLAGS

SHELLS = ("bash", "zsh", "fish")

_PATH_READERS = (base_path, local_path, optional_path)
_WORDS = re.compile(r"[a-z]+(\|[a-z]+)+")
"""Matches the metavar of a flag if it lists all values, like "a|b|c"."""


def run(arguments: Sequence[str]) -> int:
    """Prints the script to standard output. Runs no server and imports no TensorFlow."""
    parsed = make_parser().parse_args(arguments)
    import shtab

    print(shtab.complete(make_root_parser(), shell=parsed.shell))
    return 0


def make_root_parser() -> argparse.ArgumentParser:
    """Makes one parser that describes all commands. `millpond` itself does not parse arguments with it."""
    from serving.commands.cli import COMMANDS

    root = argparse.ArgumentParser(prog="millpond", allow_abbrev=False)
    root.add_argument("--version", action="store_true", help="print the versions of what is inside")
    commands = root.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        made = command.make_parser()
        # add_help is False because `made` brings its own --help.
        parser = commands.add_parser(name, help=command.summary, parents=[made], add_help=False)
        _complete_files(parser)
    return root


def make_serve_parser() -> argparse.ArgumentParser:
    """Makes a parser that describes all flags which `millpond serve` accepts."""
    parser = argparse.ArgumentParser(prog="millpond serve", allow_abbrev=False)
    for flag in FLAGS.values():
        if isinstance(flag, Flag):
            _add_flag(parser, flag)
    return parser


def _add_flag(parser: argparse.ArgumentParser, flag: Flag) -> None:
    help_text = flag.help.replace("%", "%%")
    if flag.read is boolean:
        parser.add_argument(f"--{flag.name}", nargs="?", choices=("true", "false"), help=help_text)
        return
    choices = flag.metavar.split("|") if _WORDS.fullmatch(flag.metavar) else None
    kind = Path if flag.read in _PATH_READERS else str
    parser.add_argument(
        f"--{flag.name}", type=kind, metavar=flag.metavar, choices=choices, help=help_text
    )


def _complete_files(parser: argparse.ArgumentParser) -> None:
    import shtab

    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                _complete_files(inner)
        elif action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond completion",
        description="Print the completion script of a shell. Write it once to a file that the shell "
        "reads: millpond completion bash > ~/.local/share/bash-completion/completions/millpond",
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the script")
    return parser
