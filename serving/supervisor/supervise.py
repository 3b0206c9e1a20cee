"""Makes the supervisor's parts from the flags, and runs it."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from serving.base.clock import Clock, SystemClock
from serving.base.log_line import log_line
from serving.base.service_manager import ServiceManager
from serving.config.server_config import ServerConfig
from serving.supervisor.block_store import BlockStore
from serving.supervisor.child_process import HeldSocket, start_child
from serving.supervisor.crash_page import CrashPage
from serving.supervisor.events import Events
from serving.supervisor.held_sockets import hold_sockets
from serving.supervisor.restarts import Restarts
from serving.supervisor.supervisor import Page, Supervisor

_STDERR = 2


def supervise(
    flags: Mapping[str, Any], config: ServerConfig, *, is_human: bool, command: Sequence[str] = ()
) -> int:
    """Runs servers until one ends for good, and returns its exit status.

    `command` is the command line of this process by default. Raises InvalidConfig or Unavailable if a
    port cannot be opened.
    """
    clock = SystemClock()
    sockets = hold_sockets(config)
    # Without a state directory, blocks last as long as the supervisor.
    own_directory = "" if config.state_directory else tempfile.mkdtemp(prefix="millpond-state-")
    directory = config.state_directory or own_directory
    try:
        # The server stops when the last copy of the write end closes: it never outlives this process.
        input_descriptor, _held_open = os.pipe()
        start = partial(
            _start,
            _child_command(command or [sys.executable, *sys.orig_argv[1:]], directory),
            sockets,
            input_descriptor,
        )
        with Events(sys.stdin.fileno() if flags["stop_at_stdin_eof"] else None) as events:
            return Supervisor(
                start_child=start,
                make_page=CrashPage,
                wait_for_events=events.wait,
                restarts=Restarts(clock),
                blocks=BlockStore(Path(directory)),
                log=partial(_log, clock, is_human),
                service_manager=ServiceManager(),
                clock=clock,
            ).run()
    finally:
        if own_directory:
            shutil.rmtree(own_directory, ignore_errors=True)


def _child_command(command: Sequence[str], directory: str) -> list[str]:
    """Returns the server's command line. The last value of a flag counts."""
    return [
        *command,
        "--supervise=false",
        "--stop_at_stdin_eof=true",
        f"--state_directory={directory}",
    ]


def _start(
    command: Sequence[str],
    sockets: Sequence[HeldSocket],
    input_descriptor: int,
    page: Page,
    restart_count: int,
) -> Any:
    return start_child(
        command,
        sockets=sockets,
        page_descriptor=page.descriptor,
        input_descriptor=input_descriptor,
        restart_count=restart_count,
        environment=os.environ,
    )


def _log(
    clock: Clock,
    is_human: bool,
    level: str,
    event: str,
    message: str,
    fields: Mapping[str, object],
) -> None:
    line = log_line(
        event,
        f"millpond: {message}",
        clock.wall_ns(),
        is_human=is_human,
        level=level,
        fields=fields,
    )
    # One write: the lines of the server go into the same pipe.
    os.write(_STDERR, line.encode())
