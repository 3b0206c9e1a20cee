"""Any server of the PredictionService, started by a shell command."""

import os
import secrets
import shlex
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from loadtest.drive.first_answer import wait_for_answer
from loadtest.drive.generator import ChannelOptions
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import FailedPrecondition, Unavailable

_READY_SECONDS = 60
_STOP_SECONDS = 30
_POLL_SECONDS = 0.05
_TAIL_LINE_COUNT = 40

# The ports of those that ask for any.
_GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Ray's workers listen below.
_LOWEST_PORT = 20_000

# Descriptor 3 is a pipe from this process. If this process ends without stopping the server, even by
# SIGKILL, the pipe closes, and the process in the background ends its whole group.
_SCRIPT = """exec 3<&0 </dev/null
(read -r _ <&3; kill -s TERM 0) &
exec 3<&-
{command}
"""

# Indexes in /proc/PID/stat after the name, which may hold spaces.
_STATE_FIELD, _GROUP_FIELD = 0, 2


class ShellServer:
    """Runs a server's shell command in a process group of its own inside `with`.

    At the end of `with` the group gets SIGTERM, and SIGKILL if it has not ended after 30 s.
    Not safe to use from several threads at once.
    """

    def __init__(
        self,
        name: str,
        command: str,
        port: int,
        log_path: Path,
        clock: Clock,
        channel: ChannelOptions | None = None,
    ) -> None:
        """Prepares the command; starts nothing yet. `name` is for messages, and `channel` for the
        generators of its load.
        """
        self.channel = channel or ChannelOptions()
        self._name = name
        self._command = command
        self._port = port
        self._log_path = log_path
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ShellServer":
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT.format(command=self._command)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        process = self._started()
        self._signal_group(signal.SIGTERM)
        stop_ns = self._clock.now_ns()
        while self.process_ids() and seconds_since(self._clock, stop_ns) < _STOP_SECONDS:
            pause(self._clock, _POLL_SECONDS)
        self._signal_group(signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    @property
    def target(self) -> str:
        """`HOST:PORT`, for a gRPC channel."""
        return f"127.0.0.1:{self._port}"

    def process_ids(self) -> Sequence[int]:
        """The live processes of its group: the shell, and all that the command has
        started.
        """
        return group_process_ids(self._started().pid)

    def wait_until_ready(self, request: bytes, pause_seconds: float = _POLL_SECONDS) -> None:
        """Waits until a serialized PredictRequest is answered with OK, trying again after a pause.

        Raises Unavailable, with the end of the log, after 60 s or if the command ends first.
        """
        try:
            wait_for_answer(
                self.target,
                request,
                self._clock,
                timeout_seconds=_READY_SECONDS,
                pause_seconds=pause_seconds,
                check=self._check_started,
                root_certificates=self.channel.root_certificates,
            )
        except Unavailable as error:
            raise self.failure(str(error)) from None

    def check_running(self) -> None:
        """Raises Unavailable, with the end of the log, if its command has ended."""
        try:
            self._check_started()
        except Unavailable as error:
            raise self.failure(str(error)) from None

    def failure(self, reason: str) -> Unavailable:
        """Makes an error with the server's name, the reason and the end of its log."""
        lines = self._log_path.read_text(errors="replace").splitlines()[-_TAIL_LINE_COUNT:]
        tail = "".join(f"\n  {line}" for line in lines)
        return Unavailable(f"server '{self._name}': {reason}; the end of its log:{tail}")

    def _check_started(self) -> None:
        status = self._started().poll()
        if status is not None:
            raise Unavailable(f"its command ended with status {status}")

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._started().pid, number)

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise FailedPrecondition("the ShellServer is not started: use `with`")
        return self._process


def filled_in(command: str, *, port: int, model_name: str, base_path: Path) -> str:
    """Fills the values into the command, for `{port}`, `{name}` and `{base}`.

    Other braces stay as they are, because shells use them too.
    """
    values = {"{port}": str(port), "{name}": model_name, "{base}": str(base_path)}
    for placeholder, value in values.items():
        command = command.replace(placeholder, shlex.quote(value))
    return command


def free_port() -> int:
    """Finds a TCP port of 127.0.0.1 that no process listens on now.

    It stays free until its server starts, because the kernel gives such a port neither to a connection nor to a
    process that asks for any port. If the kernel gives all ports above 20,000, it is one of these, and may be taken.
    """
    lowest_given = int(_GIVEN_PORTS.read_text().split()[0])
    while True:
        with (
            suppress(OSError),
            socket.create_server(("127.0.0.1", _drawn_port(lowest_given))) as free,
        ):
            port: int = free.getsockname()[1]
            return port


def _drawn_port(lowest_given: int) -> int:
    """Draws a port below those that the kernel gives; 0, for any, if there are none."""
    below = range(_LOWEST_PORT, lowest_given)
    return secrets.choice(below) if below else 0


def group_process_ids(group_id: int) -> Sequence[int]:
    """The live processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[_GROUP_FIELD]) == group_id and fields[_STATE_FIELD] not in "ZX":
                found.append(int(stat.parent.name))
    return found
