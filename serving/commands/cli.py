"""The command `millpond`: a table of commands, each in a module of its own that is imported when used."""

import difflib
import importlib
import sys
from collections.abc import Sequence

from serving.base.closed_pipe import EXIT_FAILURE, EXIT_USAGE, until_closed_pipe
from serving.base.errors import InvalidConfig, MillpondError
from serving.base.name_text import printable

COMMANDS = {
    "serve": "serve models (flags as TensorFlow Serving spells them)",
    "status": "print the versions of a model, or of all models, and their states",
    "predict": "send one request and print the outputs",
    "config": "print what a config file would change on a server, or apply it",
    "rollback": "put a model's previous version back in its place",
    "promote": "let a model's canary answer all its requests",
    "allow": "unblock a version that was rolled back",
    "capture": "write a model's recent live requests into a warm-up file",
    "demo-model": "export the CTR model that the demo and the measurements use",
}

# What a shell says of a command that SIGINT ended.
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit status: 0, 1 failed, 2 wrong usage, or that of
    a command that Ctrl-C or a closed pipe ended.
    """
    given = sys.argv[1:] if arguments is None else arguments
    return until_closed_pipe(lambda: _main(given))


def _main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
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
    module = importlib.import_module(f"serving.commands.{command.replace('-', '_')}")
    try:
        status: int = module.run(arguments)
    except SystemExit as exit_by_argparse:  # --help, or wrong usage that it has told already
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
    return status


def _print_error(command: str, error: Exception) -> None:
    """Prints the message line by line; it may hold text that a server or a file made up."""
    for line in f"millpond {command}: {error}".split("\n"):
        print(printable(line), file=sys.stderr)


def _help_text() -> str:
    lines = ["usage: millpond COMMAND [--flag=value ...]", ""]
    lines += [f"  {name:<12}{summary}" for name, summary in COMMANDS.items()]
    return "\n".join([*lines, "", "millpond COMMAND --help says more."])
