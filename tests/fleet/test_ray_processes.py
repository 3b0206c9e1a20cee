"""The processes of a fleet on Ray: they end with their parents, and have the usual priority."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray import bound_process
from fleet.ray.bound_process import bound
from fleet.ray.cluster import death_reason
from fleet.ray.server_actor import ServerActor, port_flags

# The processes below run the files themselves: their package imports Ray, which takes seconds.
_SCRIPTS = Path(bound_process.__file__).parent

# Starts a server of sorts from a thread that stays, and waits for its end.
_PARENT = f"""
import runpy, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
bound = runpy.run_path({str(_SCRIPTS / "bound_process.py")!r})["bound"]
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('runs', flush=True); signal.pause()"
executor = ThreadPoolExecutor(1)
executor.submit(subprocess.Popen, bound([sys.executable, "-c", code])).result().wait()
"""


def test_bound_process_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"runs\n"
    os.kill(parent.pid, signal.SIGKILL)
    # The end of the pipe: the child, which has it too, has ended.
    assert parent.stdout.read() == b""
    parent.wait()


def test_bound_process_gets_its_arguments() -> None:
    code = "import sys; print(sys.argv[1:])"
    command = bound([sys.executable, "-c", code, "-x", "a b"])
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"['-x', 'a b']\n"


def test_process_of_another_parent_does_not_start() -> None:
    command = bound([sys.executable, "-c", "print('runs')"])
    command[command.index(str(os.getpid()))] = "1"
    ended = subprocess.run(command, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")


# Prints its nice value, that of a thread of before, and the score, after it was a worker of Ray.
_WORKER = f"""
import os, runpy, threading
from pathlib import Path
take_usual_priority = runpy.run_path({str(_SCRIPTS / "priority.py")!r})["take_usual_priority"]
os.setpriority(os.PRIO_PROCESS, 0, 15)
Path("/proc/self/oom_score_adj").write_text("1000")
has_ended = threading.Event()
thread = threading.Thread(target=has_ended.wait)
thread.start()
if USER:
    os.setuid(USER)
take_usual_priority()
nice = [os.getpriority(os.PRIO_PROCESS, id) for id in (0, thread.native_id)]
print(*nice, Path("/proc/self/oom_score_adj").read_text().strip())
has_ended.set()
"""


def _worker(user: int) -> str:
    code = _WORKER.replace("USER", str(user))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ended.stdout


def _may_raise_priority() -> bool:
    """Returns True if this process has CAP_SYS_NICE, number 23 of the kernel's list."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> 23 & 1)


@pytest.mark.skipif(not _may_raise_priority(), reason="this process may not raise a priority")
def test_worker_of_root_gets_the_usual_priority() -> None:
    assert _worker(0) == "0 0 0\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_worker_without_rights_logs_the_remedy() -> None:
    printed = _worker(65_534)
    assert "fleet_priority_refused" in printed
    assert "RAY_worker_niceness=0" in printed
    assert printed.splitlines()[-1].startswith("15 15 ")


class SlowServer:
    """A server whose drain lasts until `may_end` is set."""

    def __init__(self) -> None:
        self.is_draining, self.may_end = threading.Event(), threading.Event()

    def stop(self) -> None:
        self.is_draining.set()
        self.may_end.wait(10)


def test_further_drain_returns_at_once() -> None:
    server = SlowServer()
    actor: Any = ServerActor.__new__(ServerActor)
    actor._server, actor._drain_lock = server, threading.Lock()
    thread = threading.Thread(target=actor.drain)
    thread.start()
    assert server.is_draining.wait(10)
    # A next coordinator asks for it too.
    actor.drain()
    assert thread.is_alive()
    server.may_end.set()
    thread.join()


def test_server_gets_its_ports_of_before_if_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        flags = port_flags("127.0.0.1", (taken, taken))
        assert taken not in flags.values()
        assert port_flags("127.0.0.2", (taken, taken)) == {"port": taken, "rest_api_port": taken}
    assert port_flags("127.0.0.1", (taken, 0))["port"] == taken


def test_first_ports_are_none_of_outgoing_connections() -> None:
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = port_flags("127.0.0.1", (0, 0))
    assert ports["port"] != ports["rest_api_port"]
    assert max(ports.values()) < first_of_kernel


def test_death_of_an_unstarted_server_has_one_line() -> None:
    text = (
        "The actor died because of an error raised in its creation task, ray::ServerActor.__init__()\n"
        "  File x\nserving.base.errors.Unavailable: the server did not log it;\n  the end:\n  bad flag\n"
    )
    assert death_reason(text) == "the server did not log it; the end: bad flag"
    assert (
        death_reason("The actor died unexpectedly.\nclass_name: X")
        == "The actor died unexpectedly."
    )
