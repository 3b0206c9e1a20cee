"""Children that report what was handed to them."""

import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.base.clock import SystemClock, pause, seconds_since
from serving.base.early_stop import STOP_SIGNALS
from serving.supervisor.child_process import ChildProcess, HeldSocket, start_child

REPORT = """
import os, pathlib, socket, sys
names = ("LISTEN_FDS", "LISTEN_FDNAMES", "MILLPOND_CRASH_PAGE", "MILLPOND_RESTART_COUNT")
values = [os.environ[name] for name in names] + [str(os.environ.get("WATCHDOG_PID"))]
values.append(str(os.environ["LISTEN_PID"] == str(os.getpid())))
values += [str(socket.socket(fileno=number).getsockname()[1]) for number in (3, 4)]
values.append(os.read(int(os.environ["MILLPOND_CRASH_PAGE"]), 9).decode())
values.append(repr(os.read(0, 1)))
pathlib.Path(sys.argv[1]).write_text(" ".join(values))
"""


def start(
    command: Sequence[str],
    held: Sequence[socket.socket],
    page: int,
    own: int,
    restart_count: int | None = 4,
) -> ChildProcess:
    return start_child(
        command,
        sockets=[
            HeldSocket(item.fileno(), name)
            for item, name in zip(held, ("grpc", "rest"), strict=False)
        ],
        page_descriptor=page,
        input_descriptor=own,
        restart_count=restart_count,
        environment={**os.environ, "WATCHDOG_PID": "1", "LISTEN_PID": "1"},
    )


def wait(child: ChildProcess) -> int:
    clock = SystemClock()
    start_ns = clock.now_ns()
    while (status := child.wait_status()) is None:
        assert seconds_since(clock, start_ns) < 30
        pause(clock, 0.01)
    return status


def test_child_gets_sockets_page_and_input(tmp_path: Path):
    page = os.memfd_create("page")
    os.pwrite(page, b"the page.", 0)
    read_end, write_end = os.pipe()
    os.close(write_end)
    with (
        socket.create_server(("127.0.0.1", 0)) as grpc,
        socket.create_server(("127.0.0.1", 0)) as rest,
    ):
        command = [sys.executable, "-c", REPORT, str(tmp_path / "report")]
        assert wait(start(command, [grpc, rest], page, read_end)) == 0
        ports = f"{grpc.getsockname()[1]} {rest.getsockname()[1]}"
    found = (tmp_path / "report").read_text()
    assert found == f"2 grpc:rest 5 4 None True {ports} the page. b''"
    os.close(page)
    os.close(read_end)


def test_signal_ends_child():
    read_end, write_end = os.pipe()
    child = start([sys.executable, "-c", "import os; os.read(0, 1)"], [], read_end, read_end)
    assert child.process_id > 0
    child.send_signal(signal.SIGKILL)
    assert os.WTERMSIG(wait(child)) == signal.SIGKILL
    os.close(read_end)
    os.close(write_end)


def test_command_that_is_missing_ends_with_127(tmp_path: Path):
    read_end, write_end = os.pipe()
    status = wait(start([str(tmp_path / "none")], [], read_end, read_end))
    assert os.WEXITSTATUS(status) == 127
    os.close(read_end)
    os.close(write_end)


STANDBY = """
import os, pathlib, sys
count = os.read(int(os.environ["MILLPOND_STANDBY"]), 9).decode()
pathlib.Path(sys.argv[1]).write_text(count + str(os.environ.get("MILLPOND_RESTART_COUNT")))
"""


def test_standby_waits_for_its_number_of_restarts(tmp_path: Path):
    command = [sys.executable, "-c", STANDBY, str(tmp_path / "report")]
    own = os.open(os.devnull, os.O_RDONLY)
    child = start(command, [], own, own, restart_count=None)
    assert child.wait_status() is None
    assert child.release(5)
    assert wait(child) == 0
    assert (tmp_path / "report").read_text() == "5\nNone"
    os.close(own)


def test_standby_that_has_failed_is_not_released():
    own = os.open(os.devnull, os.O_RDONLY)
    child = start([sys.executable, "-c", "pass"], [], own, own, restart_count=None)
    os.waitid(os.P_PID, child.process_id, os.WEXITED | os.WNOWAIT)
    assert not child.release(5)
    with pytest.raises(ChildProcessError):
        child.wait_status()
    os.close(own)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_child_told_to_stop_at_once_ends_well(number: signal.Signals):
    """The signal comes before the child's interpreter runs, and so before its handlers."""
    code = "from serving.base.early_stop import exit_at_stop_signals; exit_at_stop_signals()"
    page = os.memfd_create("page")
    read_end, write_end = os.pipe()
    child = start([sys.executable, "-c", f"{code}; import sys; sys.exit(3)"], [], page, read_end)
    child.send_signal(number)
    assert wait(child) == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(STOP_SIGNALS)
    for descriptor in (page, read_end, write_end):
        os.close(descriptor)
