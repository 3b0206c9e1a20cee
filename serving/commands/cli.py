"""The command `millpond`: a table of its commands. The module of a command is imported when it is used."""

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from serving.base.closed_pipe import EXIT_FAILURE, EXIT_USAGE, until_closed_pipe
from serving.base.early_stop import exit_at_stop_signals
from serving.base.errors import InvalidConfig, MillpondError
from serving.base.name_text import printable
from serving.base.standard_streams import open_closed_streams
from serving.server.launcher import preload_early

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(NamedTuple):
    """A command of `millpond`.

    `entry` is MODULE:FUNCTION. A module without a dot is in this package. `parser` names, in the same form,
    the function that makes the parser of the command's arguments. By default it is `make_parser` for a
    function `run`, and `make_X_parser` for a function `X`.
    """

    entry: str
    summary: str
    parser: str = ""

    def run(self, arguments: Sequence[str]) -> int:
        status: int = _imported(self.entry)(arguments)
        return status

    def make_parser(self) -> "ArgumentParser":
        """Makes the parser of the command's arguments, for completion."""
        module_name, function_name = self.entry.split(":")
        infix = "" if function_name == "run" else f"{function_name}_"
        made: ArgumentParser = _imported(self.parser or f"{module_name}:make_{infix}parser")()
        return made


def _imported(entry: str) -> Any:
    module_name, function_name = entry.split(":")
    if "." not in module_name:
        module_name = f"serving.commands.{module_name}"
    return getattr(importlib.import_module(module_name), function_name)


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "serve": Command(
            "serve:run",
            "serve models (flags as TensorFlow Serving spells them)",
            parser="completion:make_serve_parser",
        ),
        "status": Command(
            "status:run", "print the versions of a model, or of all models, and their states"
        ),
        "health": Command("health:run", "exit with status 0 if a server is ready"),
        "predict": Command("predict:run", "send one request and print the outputs"),
        "config": Command(
            "config:run", "print what a config file would change on a server, or apply it"
        ),
        "rollback": Command("rollout:rollback", "put a model's previous version back in its place"),
        "promote": Command("rollout:promote", "let a model's canary answer all its requests"),
        "allow": Command("rollout:allow", "unblock a version that was rolled back"),
        "capture": Command(
            "capture:run", "write a model's recent live requests into a warm-up file"
        ),
        "fleet": Command("fleet.commands.command:run", "swap versions over many servers in waves"),
        "demo-model": Command(
            "demo_model:run", "export the CTR model that the demo and the measurements use"
        ),
        "compile": Command(
            "compile_ahead:run", "compile signatures for an accelerator before a server loads them"
        ),
        "delta": Command(
            "millpond.delta_command:run", "write a version that has only the rows that changed"
        ),
        "help": Command(
            "help_pages:run", "print a page of the documents, or the help of a command or flag"
        ),
        "completion": Command("completion:run", "print the completion script of bash, zsh or fish"),
    }
)

EXIT_INTERRUPTED = 130
"""The status that a shell reports for a command that SIGINT ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, and returns the exit status: 0, or 1 if it has failed, or 2 for a wrong usage.

    After Ctrl-C or a closed pipe, it is the status of a process that the signal has ended.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        open_closed_streams()
        if given[:1] == ["serve"]:
            exit_at_stop_signals()
        preload_early(given)
    return until_closed_pipe(lambda: _main(given))


def _main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help") or list(arguments) == ["help"]:
        print(_help_text())
        return 0 if arguments else EXIT_USAGE
    command, *rest = arguments
    if command == "--version":
        command, rest = "serve", ["--version"]
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        advice = f"; did you mean {close[0]}?" if close else f"\n\n{_help_text()}"
        print(f"millpond: {command!r} is not a command{advice}", file=sys.stderr)
        return EXIT_USAGE
    return _run(command, rest)


def _run(command: str, arguments: Sequence[str]) -> int:
    try:
        return COMMANDS[command].run(arguments)
    except SystemExit as exit_by_argparse:  # --help, or wrong usage that argparse has reported
        return int(exit_by_argparse.code or 0)
    except InvalidConfig as error:
        _print_error(command, error)
        return EXIT_USAGE
    except BrokenPipeError:
        raise
    except (MillpondError, OSError) as error:
        _print_error(command, error)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _print_error(command: str, error: Exception) -> None:
    """Prints a message line by line. Escapes control characters, because a server or a file may contain them."""
    for line in f"millpond {command}: {error}".split("\n"):
        print(printable(line), file=sys.stderr)


def _help_text() -> str:
    lines = ["usage: millpond COMMAND [--flag=value ...]", ""]
    lines += [f"  {name:<12}{command.summary}" for name, command in COMMANDS.items()]
    lines += [
        "",
        "millpond COMMAND --help prints the options of a command.",
        "millpond help TOPIC prints a page of the documents; millpond help topics lists them.",
    ]
    return "\n".join(lines)
