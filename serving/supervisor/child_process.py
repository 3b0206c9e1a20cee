"""The server as a child process: starts it with its sockets and its crash page, and waits for its end."""

import fcntl
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from serving.base.early_stop import signals_kept
from serving.config.handed_sockets import VARIABLES
from serving.supervisor.crash_page import DESCRIPTOR_VARIABLE

RESTART_COUNT_VARIABLE = "MILLPOND_RESTART_COUNT"
"""The environment variable that tells the server how many times it was started again."""

STANDBY_VARIABLE = "MILLPOND_STANDBY"
"""The environment variable that makes a process a standby.

Its value is the descriptor of a pipe. The standby waits until the pipe delivers the number of restarts, and
then serves.
"""

_FIRST_SOCKET = 3
_STANDARD_ERROR = 2
_EXIT_NOT_EXECUTED = 127


@dataclass(frozen=True)
class HeldSocket:
    """A listening socket that the supervisor keeps open. `name` is `grpc` or `rest`."""

    descriptor: int
    name: str


class ChildProcess:
    """A running server, or a standby that waits until `release` lets it serve. One thread."""

    def __init__(self, process_id: int, release_descriptor: int = -1) -> None:
        """`release_descriptor` is the write end of the pipe from which a standby reads; -1 without one."""
        self._process_id = process_id
        self._release_descriptor = release_descriptor

    @property
    def process_id(self) -> int:
        return self._process_id

    def wait_status(self) -> int | None:
        """The status of the ended process, in the form of waitpid(2); None while the process runs.

        Do not call it again after it has returned a status.
        """
        process_id, status = os.waitpid(self._process_id, os.WNOHANG)
        return status if process_id else None

    def send_signal(self, number: int) -> None:
        """Sends the process a signal. Do not call it after `wait_status` has returned a status."""
        os.kill(self._process_id, number)

    def release(self, restart_count: int) -> bool:
        """Lets a standby serve. If the standby has failed, ends its process and returns False."""
        try:
            os.write(self._release_descriptor, f"{restart_count}\n".encode())
        except BrokenPipeError:
            self.discard()
            return False
        os.close(self._release_descriptor)
        return True

    def discard(self) -> None:
        """Ends a standby that is not needed."""
        os.close(self._release_descriptor)
        os.kill(self._process_id, signal.SIGKILL)
        os.waitpid(self._process_id, 0)


def start_child(
    command: Sequence[str],
    *,
    sockets: Sequence[HeldSocket],
    page_descriptor: int,
    input_descriptor: int,
    restart_count: int | None,
    environment: Mapping[str, str],
) -> ChildProcess:
    """Starts `command`. Its descriptors from 3 on are the sockets, and the crash page comes after them.

    `input_descriptor` is its standard input. If `restart_count` is None, the process is a standby. The
    process is forked here and not started by subprocess, because LISTEN_PID must be the new process's id.
    """
    handed = [*(held.descriptor for held in sockets), page_descriptor]
    if restart_count is not None:
        return ChildProcess(
            _start(command, handed, input_descriptor, sockets, restart_count, environment)
        )
    read_end, write_end = os.pipe()
    try:
        handed.append(read_end)
        process_id = _start(command, handed, input_descriptor, sockets, None, environment)
    finally:
        os.close(read_end)
    return ChildProcess(process_id, write_end)


def _start(
    command: Sequence[str],
    handed: Sequence[int],
    input_descriptor: int,
    sockets: Sequence[HeldSocket],
    restart_count: int | None,
    environment: Mapping[str, str],
) -> int:
    # A stop signal that comes before the child has its handlers waits for them.
    with signals_kept():
        process_id = os.fork()
        if process_id:
            return process_id
        try:
            _hand_in(handed, input_descriptor)
            child_environment = _environment(environment, sockets, restart_count)
            os.execve(command[0], list(command), child_environment)
        except BaseException as error:  # noqa: BLE001 (a fork must not run its parent's code)
            _report_and_exit(error)


def _hand_in(descriptors: Sequence[int], input_descriptor: int) -> None:
    # The descriptors are first copied above all targets, so that no target replaces one that is still needed.
    above = _FIRST_SOCKET + len(descriptors)
    copies = [_copy_above(number, above) for number in (input_descriptor, *descriptors)]
    os.dup2(copies[0], 0)
    for target, copy in enumerate(copies[1:], _FIRST_SOCKET):
        os.dup2(copy, target)


def _copy_above(descriptor: int, lowest: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)


def _environment(
    environment: Mapping[str, str], sockets: Sequence[HeldSocket], restart_count: int | None
) -> dict[str, str]:
    # The variables of handed-in sockets and WATCHDOG_PID are meant for the parent. It passes the sockets on
    # below, and itself sends WATCHDOG=1.
    dropped = {*VARIABLES, "WATCHDOG_PID"}
    kept = {name: value for name, value in environment.items() if name not in dropped}
    page = _FIRST_SOCKET + len(sockets)
    kept[DESCRIPTOR_VARIABLE] = str(page)
    if restart_count is None:
        kept[STANDBY_VARIABLE] = str(page + 1)
    else:
        kept[RESTART_COUNT_VARIABLE] = str(restart_count)
    if sockets:
        kept["LISTEN_PID"] = str(os.getpid())
        kept["LISTEN_FDS"] = str(len(sockets))
        kept["LISTEN_FDNAMES"] = ":".join(held.name for held in sockets)
    return kept


def _report_and_exit(error: BaseException) -> NoReturn:
    os.write(_STANDARD_ERROR, f"millpond: the server cannot be executed: {error}\n".encode())
    os._exit(_EXIT_NOT_EXECUTED)
