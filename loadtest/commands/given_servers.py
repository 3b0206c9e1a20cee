"""Servers that are given on the command line, as shell commands or as flags of this checkout's server, and
their start.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.generator import ChannelOptions
from loadtest.drive.shell_server import ShellServer, filled_in, free_port
from serving.base.clock import Clock
from serving.base.errors import InvalidConfig

PLACEHOLDERS = "{port}, {name} and {base} for the gRPC port, the model's name and its base path"

THIS = "this"
"""The name of this checkout's own server with its defaults."""

# A command's own equals signs follow a space or a flag, so they do not look like a name's.
_NAMED = re.compile(r"(\w[\w.+-]*|)=(.*)", re.DOTALL)


def server_command(text: str) -> tuple[str, str]:
    """Reads the name and the shell command from NAME=CMD, or from CMD, which is named by its program.

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
    """Reads as `server_command` does.

    Raises ArgumentTypeError also without {base}, because versions come and go there.
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
    """Reads the name from NAME=FLAGS, and makes the shell command of this checkout's server with the flags.

    Raises ArgumentTypeError.
    """
    found = _NAMED.fullmatch(text)
    if not found or not found[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FLAGS")
    return found[1], f"{this_command()} {found[2]}".rstrip()


def this_command() -> str:
    """Makes the shell command of this checkout's own server, without an HTTP port."""
    return (
        f"{shlex.quote(sys.executable)} -m serving serve --host=127.0.0.1 --port={{port}} "
        "--model_name={name} --model_base_path={base} --rest_api_port=0"
    )


def server_commands(given: Sequence[tuple[str, str]] | None) -> Mapping[str, str]:
    """Puts the commands together by name; by default `this` alone.

    Raises InvalidConfig if a name is given twice.
    """
    if not given:
        return {THIS: this_command()}
    names = [name for name, _ in given]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"--command: duplicate name '{name}'")
    return dict(given)


@contextmanager
def running_servers(
    commands: Mapping[str, str],
    channels: Mapping[str, ChannelOptions],
    base_path: Path,
    clock: Clock,
) -> Iterator[Mapping[str, ShellServer]]:
    """Yields the servers by name while all of them run."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-servers-")))
        servers: dict[str, ShellServer] = {}
        for name, command in commands.items():
            port, log = free_port(), logs / f"{len(servers)}.log"
            filled = filled_in(command, port=port, model_name=MODEL_NAME, base_path=base_path)
            server = ShellServer(name, filled, port, log, clock, channels.get(name))
            servers[name] = stack.enter_context(server)
        yield servers
