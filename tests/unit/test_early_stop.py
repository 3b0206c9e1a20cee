import signal
import subprocess
import sys
from typing import NoReturn

import pytest

from serving.base.early_stop import STOP_SIGNALS
from serving.server.launcher import preload_early

TIMEOUT_SECONDS = 60

_SIGNALLED_IN_AN_IMPORT = """
import os, signal, sys
from serving.base.early_stop import exit_at_stop_signals
exit_at_stop_signals()
os.kill(os.getpid(), signal.{name})
import serving.commands.serve
"""

# The signal comes between two programs, when neither has a handler.
_SIGNALLED_AT_THE_EXEC = """
import os, signal, sys
from serving.base.early_stop import exit_at_stop_signals, signals_kept
if sys.argv[1] == "first":
    exit_at_stop_signals()
    with signals_kept():
        os.kill(os.getpid(), signal.{name})
        os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], "second"])
exit_at_stop_signals()
sys.exit("the signal was lost")
"""


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("program", [_SIGNALLED_IN_AN_IMPORT, _SIGNALLED_AT_THE_EXEC])
def test_early_stop_ends_with_status_0(program: str, number: signal.Signals) -> None:
    code = program.format(name=number.name)
    ended = subprocess.run(
        [sys.executable, "-c", code, "first"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        # The tests themselves may run under nohup.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    assert (ended.returncode, ended.stderr) == (0, "")


_BEGUN_BY_NOHUP = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from serving.base.early_stop import exit_at_stop_signals
from serving.server.stop_signals import StopSignals
from serving.supervisor.events import Events
os.kill(os.getpid(), signal.SIGHUP)
exit_at_stop_signals()
os.kill(os.getpid(), signal.SIGHUP)
with StopSignals(print):
    os.kill(os.getpid(), signal.SIGHUP)
with Events() as events:
    os.kill(os.getpid(), signal.SIGHUP)
    print(events.wait(0))
"""


def test_nohup_keeps_a_server_without_its_terminal() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _BEGUN_BY_NOHUP],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")


def test_launcher_keeps_stop_signals_over_its_exec() -> None:
    blocked: list[set[int]] = []

    def execute(*arguments: object) -> NoReturn:
        blocked.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        raise OSError("no memory")

    before = set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    with pytest.raises(OSError, match="no memory"):
        preload_early(
            ["serve"], environment={}, is_loaded=False, find=lambda: "/jemalloc", execute=execute
        )
    assert blocked == [before | set(STOP_SIGNALS)]
    assert set(signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before


def test_serve_told_to_stop_while_it_starts_ends_well() -> None:
    command = [sys.executable, "-m", "serving", "serve", "--model_base_path=/nowhere"]
    command += ["--port=0", "--rest_api_port=0", "--log_format=json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            first_line = process.stderr.readline()
            process.terminate()
            assert process.wait(TIMEOUT_SECONDS) == 0
        finally:
            process.kill()
    assert first_line  # a server that has logged is starting
