"""A server that the tests fork is the process that the command line starts."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from serving import ModelServer
from serving.base.errors import Unavailable
from tests.integration import warm_servers
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.processes import mapped_files
from tests.integration.warm_servers import SERVE_COMMAND, WarmModelServer, WarmProcess

STATUS_FIELDS = ("PPid", "SigBlk", "SigIgn", "SigCgt", "Umask", "Cpus_allowed", "NoNewPrivs")


def described(server: ModelServer) -> dict[str, object]:
    """Returns the parts of a process that its start decides: parent, signals, limits and threads."""
    process = Path(f"/proc/{server.process_id}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    return {
        **{name: status[name] for name in STATUS_FIELDS},
        "limits": (process / "limits").read_text(),
        "threads": {(task / "comm").read_text() for task in (process / "task").iterdir()},
    }


@pytest.fixture
def cold(start_server: StartServer, base_path: Path) -> ModelServer:
    return start_server(base_path=base_path, environment={"PYTHON_COLD": "1"})


@pytest.fixture
def warm(start_server: StartServer, base_path: Path) -> ModelServer:
    return start_server(base_path=base_path)


def test_warm_server_is_forked_and_a_cold_one_executed(cold: ModelServer, warm: ModelServer):
    command_lines = [
        Path(f"/proc/{server.process_id}/cmdline").read_text() for server in (cold, warm)
    ]
    assert ["tests.integration.warm_servers" in line for line in command_lines] == [False, True]


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": (sys.executable, "-c", "pass", "serving")},
        {"supervise": True},
        {"allocator": "glibc"},
        {"environment": {"LD_LIBRARY_PATH": "/nowhere"}},
    ],
)
def test_start_that_is_not_the_usual_one_is_cold(
    arguments: dict[str, Any], base_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(warm_servers, "_warm", lambda: pytest.fail("it was forked"))
    server = WarmModelServer(base_path=base_path, **arguments)
    with suppress(Unavailable):
        server.start()
    server.kill()


def test_warm_server_has_what_a_cold_one_has(cold: ModelServer, warm: ModelServer):
    # A thread that starts another one blocks signals meanwhile.
    wait_until(lambda: described(warm) == described(cold), "the same state")
    assert mapped_files(warm.process_id) >= mapped_files(cold.process_id)


def test_warm_server_begins_in_the_given_directory(base_path: Path, tmp_path: Path):
    command = [*SERVE_COMMAND, "--port=0", "--rest_api_port=0", f"--model_base_path={base_path}"]
    null = subprocess.DEVNULL
    with WarmProcess(
        command, cwd=tmp_path, env=dict(os.environ), stdin=null, stderr=null
    ) as server:
        wait_until(lambda: Path(f"/proc/{server.pid}/cwd").readlink() == tmp_path, "its directory")
        server.kill()


def test_warm_servers_streams_are_its_own(warm: ModelServer, start_server: StartServer, base_path):
    other = start_server(base_path=base_path)
    os.kill(other.process_id, signal.SIGKILL)
    wait_until(lambda: other.exit_status == -signal.SIGKILL, "the end of the killed server")
    other.kill()
    assert warm.exit_status is None
    # The end of its input stops it, as it stops a server whose parent has ended.
    process = warm._running_process()
    assert process.stdin is not None
    process.stdin.close()
    wait_until(lambda: warm.exit_status == 0, "the end of the other one")


def test_wrong_flag_of_a_warm_server_is_status_2(base_path: Path, tmp_path: Path):
    server = WarmModelServer(base_path=base_path, log_path=tmp_path / "log", port="no port")
    with pytest.raises(Exception, match="ended with status 2"):
        server.start()
    assert "no port" in (tmp_path / "log").read_text()
