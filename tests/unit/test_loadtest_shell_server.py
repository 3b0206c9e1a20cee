"""Servers of a shell command: their group of processes, and errors with the end of their log."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from loadtest.drive.shell_server import ShellServer, filled_in, free_port, group_process_ids
from serving.base.clock import NS_PER_SECOND, SystemClock, pause
from serving.base.errors import Unavailable

# A shell that starts a process, prints its id, and waits for it.
FORKING = "sleep 60 & echo $!; wait"


def shell_server(command: str, tmp_path: Path) -> ShellServer:
    return ShellServer("mine", command, free_port(), tmp_path / "log", SystemClock())


def forked_process_id(log: Path) -> int:
    wait_until_written(log)
    return int(log.read_text())


def wait_until_written(log: Path) -> None:
    clock = SystemClock()
    end_ns = clock.now_ns() + 30 * NS_PER_SECOND
    while not log.read_text().endswith("\n"):
        assert clock.now_ns() < end_ns
        pause(clock, 0.01)


def wait_until_ended(process_id: int, server: ShellServer) -> None:
    clock = SystemClock()
    end_ns = clock.now_ns() + 30 * NS_PER_SECOND
    while process_id in server.process_ids():
        assert clock.now_ns() < end_ns
        pause(clock, 0.01)


def test_placeholders_are_filled_in_and_quoted():
    command = "serve ${HOME} --port={port} --model={name} --path={base}"
    filled = filled_in(command, port=8500, model_name="ctr", base_path=Path("/my models/ctr"))
    assert filled == "serve ${HOME} --port=8500 --model=ctr --path='/my models/ctr'"


def test_end_of_with_ends_forked_processes(tmp_path: Path):
    with shell_server(FORKING, tmp_path) as server:
        forked = forked_process_id(tmp_path / "log")
        assert forked in server.process_ids()
    assert server.process_ids() == []


def test_group_ends_when_its_pipe_closes(tmp_path: Path):
    # As at SIGKILL of the load test, which runs no code of ours.
    with shell_server(FORKING, tmp_path) as server:
        forked = forked_process_id(tmp_path / "log")
        assert server._process is not None
        assert server._process.stdin is not None
        server._process.stdin.close()
        wait_until_ended(forked, server)


def test_ended_command_is_reported_with_its_log(tmp_path: Path):
    with (
        shell_server("echo no such model >&2; exit 3", tmp_path) as server,
        pytest.raises(Unavailable, match="'mine': its command ended with status 3") as error,
    ):
        server.wait_until_ready(b"")
    assert "the end of its log:\n  no such model" in str(error.value)


def test_group_has_its_live_processes():
    command = ["sh", "-c", FORKING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout is not None
        forked = int(shell.stdout.readline())
        assert sorted(group_process_ids(shell.pid)) == sorted([shell.pid, forked])
        os.killpg(shell.pid, signal.SIGKILL)
    assert shell.pid not in group_process_ids(shell.pid)
