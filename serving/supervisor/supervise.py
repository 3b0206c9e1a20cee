"""Makes the supervisor's parts from the flags, and runs it."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from serving.base.clock import Clock, SystemClock
from serving.base.errors import InvalidConfig
from serving.base.log_line import log_line
from serving.base.parent_process import STOP_AT_STDIN_EOF, stops_at_stdin_eof
from serving.base.service_manager import ServiceManager
from serving.config.server_config import ServerConfig
from serving.supervisor.block_store import BlockStore
from serving.supervisor.child_process import ChildProcess, HeldSocket, start_child
from serving.supervisor.crash_page import CrashPage
from serving.supervisor.events import Events
from serving.supervisor.held_sockets import hold_sockets
from serving.supervisor.restarts import Restarts
from serving.supervisor.supervisor import Supervisor


def supervise(
    config: ServerConfig,
    *,
    is_human: bool,
    write_line: Callable[[bytes], object],
) -> int:
    """Runs servers, one after the other, until one ends for good. Returns its exit status.

    The servers get the command line of this process. `write_line` writes a line to the log. Raises
    InvalidConfig or Unavailable if a port cannot be opened.
    """
    clock = SystemClock()
    sockets = hold_sockets(config)
    # Without --state_directory, blocked versions are kept as long as the supervisor runs.
    own_directory = "" if config.state_directory else make_state_directory()
    directory = config.state_directory or own_directory
    try:
        # A server stops when its standard input ends. This process alone has the other end of that pipe, so a
        # server never outlives this process.
        input_descriptor, _held_open = os.pipe()
        start = partial(
            _start,
            child_command([sys.executable, *sys.orig_argv[1:]], directory),
            sockets,
            input_descriptor,
        )
        with Events(sys.stdin.fileno() if stops_at_stdin_eof(os.environ) else None) as events:
            return Supervisor(
                start_child=start,
                make_page=CrashPage,
                events=events,
                restarts=Restarts(clock),
                blocks=BlockStore(Path(directory)),
                log=partial(log_event, write_line, clock, is_human),
                service_manager=ServiceManager(),
                clock=clock,
            ).run()
    finally:
        if own_directory:
            shutil.rmtree(own_directory, ignore_errors=True)


def make_state_directory(parents: Sequence[str | None] = (None, "/dev/shm")) -> str:
    """Makes a directory in the first of `parents` that allows it. None is the system's temporary directory.

    A container with a read-only root often has no other writable directory than /dev/shm. Raises
    InvalidConfig if no parent allows it.
    """
    for parent in parents:
        with suppress(OSError):
            return tempfile.mkdtemp(prefix="millpond-state-", dir=parent)
    raise InvalidConfig(
        "--supervise keeps the versions that crash in a temporary directory, and none can be written "
        "to: use --state_directory"
    )


def child_command(command: Sequence[str], directory: str) -> list[str]:
    """The command line of a server, from that of the supervisor. If a flag comes twice, its last value counts.

    Leaves out --supervise, because with that flag the launcher would not preload an allocator.
    """
    kept = [item for item in command if item.partition("=")[0] != "--supervise"]
    return [
        *kept,
        "--supervise=false",
        f"--state_directory={directory}",
    ]


def _start(
    command: Sequence[str],
    sockets: Sequence[HeldSocket],
    input_descriptor: int,
    page: CrashPage,
    restart_count: int | None,
) -> ChildProcess:
    return start_child(
        command,
        sockets=sockets,
        page_descriptor=page.descriptor,
        input_descriptor=input_descriptor,
        restart_count=restart_count,
        environment={**os.environ, STOP_AT_STDIN_EOF: "1"},
    )


def log_event(
    write_line: Callable[[bytes], object],
    clock: Clock,
    is_human: bool,
    level: str,
    event: str,
    message: str,
    fields: Mapping[str, object],
) -> None:
    """Writes one event to the log."""
    line = log_line(
        event,
        f"millpond: {message}",
        clock.wall_ns(),
        is_human=is_human,
        level=level,
        fields=fields,
    )
    write_line(line.encode())
