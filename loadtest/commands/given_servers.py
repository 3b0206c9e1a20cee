"""The options of commands that start given servers, and their start: shell commands, and flags of
this checkout's server, on the demo's model."""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from loadtest.commands.options import (
    Arguments,
    add_json_option,
    add_models_option,
    positive_integer,
    turn_seconds,
)
from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.drive.shell_server import ShellServer, filled_in, free_port
from loadtest.measure.turns import prepare
from loadtest.plan.ctr_load import CtrLoad
from serving.base.clock import Clock
from serving.base.errors import InvalidConfig

PLACEHOLDERS = "{port}, {name} and {base} for the gRPC port, the model's name and its base path"

THIS = "this"
"""The name of this checkout's own server with its defaults."""

# A command's own equals signs follow a space or a flag, so they do not look like a name's.
_NAMED = re.compile(r"(\w[\w.+-]*|)=(.*)", re.DOTALL)


def server_command(text: str) -> tuple[str, str]:
    """Returns the name and the shell command of NAME=CMD, or of CMD, which is named by its program.

    Raises ArgumentTypeError.
    """
    found = _NAMED.fullmatch(text)
    name, command = (found[1], found[2]) if found else (_program_of(text), text)
    if not name or not command.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=CMD")
    if "{port}" not in command:
        raise argparse.ArgumentTypeError(
            f"the command of '{name}' lacks {{port}}, the gRPC port that it must listen on"
        )
    return name, command


def swapping_command(text: str) -> tuple[str, str]:
    """Returns the result of `server_command`. Raises ArgumentTypeError also without {base}, because
    versions come and go there.
    """
    name, command = server_command(text)
    if "{base}" not in command:
        raise argparse.ArgumentTypeError(
            f"the command of '{name}' lacks {{base}}, the base path that it must look for versions in"
        )
    return name, command


def _program_of(command: str) -> str:
    words = command.split(maxsplit=1)
    return PurePath(words[0]).name if words else ""


def server_flags(text: str) -> tuple[str, str]:
    """Returns the name and the shell command of NAME=FLAGS: this checkout's server with the flags.

    Raises ArgumentTypeError.
    """
    found = _NAMED.fullmatch(text)
    if not found or not found[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FLAGS")
    return found[1], f"{this_command()} {found[2]}".rstrip()


def this_command() -> str:
    """Returns the shell command of this checkout's own server, without an HTTP port."""
    return (
        f"{shlex.quote(sys.executable)} -m serving serve --host=127.0.0.1 --port={{port}} "
        "--model_name={name} --model_base_path={base} --rest_api_port=0"
    )


def add_servers_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--command` and `--flags`, which name the servers, the options of their model, and
    `--json`.
    """
    parser.add_argument(
        "--command",
        dest="servers",
        type=server_command,
        action="append",
        metavar="[NAME=]CMD",
        help=f"a server: a shell command with {PLACEHOLDERS}; without NAME it is named by its "
        "program; may be repeated, and a comparison is with the first one; default: `this`, this "
        "checkout's own server",
    )
    parser.add_argument(
        "--flags",
        dest="servers",
        type=server_flags,
        action="append",
        metavar="NAME=FLAGS",
        help="a server: this checkout's own one with these flags, of which there may be none; may be "
        "repeated and mixed with --command",
    )
    add_models_option(parser)
    parser.add_argument("--table-rows", type=positive_integer, default=300_000)
    add_json_option(parser)


def add_turns_options(parser: argparse.ArgumentParser, rounds: int, seconds: float) -> None:
    """Adds the options of servers that take turns, with these defaults."""
    add_servers_options(parser)
    parser.add_argument("--rounds", type=positive_integer, default=rounds, help=f"default {rounds}")
    parser.add_argument(
        "--seconds",
        type=turn_seconds,
        default=seconds,
        metavar="S",
        help=f"seconds of a closed loop's turn; default {seconds}; longer if a p99 needs it, which "
        "needs 500 requests",
    )


def add_command_option(parser: Arguments) -> None:
    """Adds `--command` for one server of any make whose versions are swapped."""
    parser.add_argument(
        "--command",
        type=swapping_command,
        metavar="[NAME=]CMD",
        help="the server instead of Millpond: any server of the PredictionService, by a shell command "
        f"with {PLACEHOLDERS}",
    )


def server_commands(given: Sequence[tuple[str, str]] | None) -> Mapping[str, str]:
    """Returns the commands by name, by default `this` alone. Raises InvalidConfig if a name is
    given twice.
    """
    if not given:
        return {THIS: this_command()}
    names = [name for name, _ in given]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"--command: duplicate name '{name}'")
    return dict(given)


@contextmanager
def prepared_servers(
    parsed: argparse.Namespace, rows: Iterable[int], clock: Clock, say: Callable[[str], None]
) -> Iterator[tuple[Mapping[str, ShellServer], Mapping[int, CtrLoad]]]:
    """Yields the servers of `add_servers_options` by name, ready for the loads of `rows`, and these
    loads by their rows.
    """
    commands = server_commands(parsed.servers)
    loads = {each: ctr_load(parsed, each) for each in rows}
    with demo_directory(parsed.models) as directory:
        base_path = prepare_model(directory, parsed.table_rows, say).base_path
        with running_servers(commands, base_path, clock) as servers:
            prepare(servers, loads, clock, say)
            yield servers, loads


def ctr_load(parsed: argparse.Namespace, rows: int) -> CtrLoad:
    """Returns the load of `rows` on the model of `add_servers_options`."""
    return CtrLoad(MODEL_NAME, rows=rows, table_rows=parsed.table_rows, seed=1)


@contextmanager
def running_servers(
    commands: Mapping[str, str], base_path: Path, clock: Clock
) -> Iterator[Mapping[str, ShellServer]]:
    """Yields the servers by name while all of them run."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-servers-")))
        servers: dict[str, ShellServer] = {}
        for name, command in commands.items():
            port = free_port()
            filled = filled_in(command, port=port, model_name=MODEL_NAME, base_path=base_path)
            server = ShellServer(name, filled, port, logs / f"{len(servers)}.log", clock)
            servers[name] = stack.enter_context(server)
        yield servers
