"""ModelServer around a small program that behaves like `millpond serve`, or misbehaves."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving import ModelServer
from serving.base.errors import FailedPrecondition, Unavailable
from serving.base.parent_process import stops_at_stdin_eof
from serving.base.protos import get_model_status_pb2
from serving.client import Tls
from serving.core.servable import AVAILABLE, LOADING, ServableState
from tests.unit.fakes.grpc_services import grpc_service
from tests.unit.pem import make_identity

# Logs its arguments, listens unless the log is set otherwise, and ends at SIGTERM with the given
# status.
PROGRAM = """
import json, os, signal, sys

def log(event, **values):
    print(json.dumps({"event": event, **values}), file=sys.stderr, flush=True)

print("TensorFlow says hello", file=sys.stderr, flush=True)
log("started", arguments=sys.argv[1:], environment=dict(os.environ))
behaviour = os.environ.get("BEHAVIOUR", "")
if behaviour == "dies":
    sys.exit("no such model")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3 if behaviour == "bad end" else 0))
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if behaviour != "mute":
    http_port = int(os.environ["HTTP_PORT"]) if "HTTP_PORT" in os.environ else None
    log("listening", port=int(os.environ.get("PORT", "4711")), http_port=http_port)
sys.stdin.buffer.read()
"""


@pytest.fixture(autouse=True)
def logs_of_failed_servers_go_with_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return [sys.executable, str(path)]


class FakeModelService:
    """Answers GetModelStatus for version 7 with the next of `states`, the last one for ever."""

    def __init__(self) -> None:
        self.states: list[ServableState] = []

    def answer(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not self.states:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        response = get_model_status_pb2.GetModelStatusResponse()
        response.model_version_status.add(version=7, state=int(state))
        reply: bytes = response.SerializeToString()
        return reply


@pytest.fixture
def model_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeModelService]:
    """Returns the listening address in the program's log."""
    service = FakeModelService()
    with grpc_service(service.answer) as port:
        monkeypatch.setenv("PORT", str(port))
        yield service


def test_model_server_with_tls_is_called_over_tls(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shown = make_identity(tmp_path, "server")
    (tmp_path / "server.crt").write_text(shown.certificate)
    pair = (shown.key.encode(), shown.certificate.encode())
    service = FakeModelService()
    service.states = [AVAILABLE]
    tls = Tls(ca_file=tmp_path / "server.crt")
    with grpc_service(service.answer, grpc.ssl_server_credentials([pair])) as port:
        monkeypatch.setenv("PORT", str(port))
        with ModelServer(base_path=tmp_path, command=command, tls=tls) as running:
            running.wait_until_available("m", 7, timeout_seconds=30)


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_model_server_listens_until_the_end_of_with(command: list[str], tmp_path: Path):
    with ModelServer(base_path=tmp_path, command=command) as server:
        process_id = server.process_id
        assert is_running(process_id)
        assert (server.port, server.target) == (4711, "127.0.0.1:4711")
    assert not is_running(process_id)


def test_model_server_url_is_http_address(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HTTP_PORT", "4712")
    server = ModelServer(base_path=tmp_path, command=command)
    with pytest.raises(FailedPrecondition, match="not started"):
        _ = server.url
    with server:
        assert server.url == "http://127.0.0.1:4712"


def test_model_server_without_http_has_no_url(command: list[str], tmp_path: Path):
    with (
        ModelServer(base_path=tmp_path, command=command) as server,
        pytest.raises(FailedPrecondition, match="--rest_api_port=0"),
    ):
        _ = server.url


def test_model_server_passes_flags_as_text(command: list[str], tmp_path: Path):
    with ModelServer(
        model_name="m", base_path=tmp_path, command=command, enable_model_warmup=False, port=9
    ) as server:
        (started, _) = server.events()
    assert started["arguments"] == [
        "serve",
        "--host=127.0.0.1",
        "--port=9",
        "--rest_api_port=auto",
        "--log_format=json",
        "--listen_before_ready=true",
        "--model_name=m",
        f"--model_base_path={tmp_path}",
        "--enable_model_warmup=false",
    ]


def test_model_server_passes_its_environment_on(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OF_THIS_PROCESS", "1")
    with ModelServer(base_path=tmp_path, command=command, environment={"OWN": "2"}) as server:
        (started, _) = server.events()
    passed = started["environment"]
    assert (passed["OF_THIS_PROCESS"], passed["OWN"]) == ("1", "2")
    assert stops_at_stdin_eof(passed)


def test_model_server_keeps_the_whole_log(command: list[str], tmp_path: Path):
    log_path = tmp_path / "server.log"
    with ModelServer(base_path=tmp_path, command=command, log_path=log_path) as server:
        assert server.log_path == log_path
    first, *rest = log_path.read_text().splitlines()
    assert first == "TensorFlow says hello"
    assert len(rest) == 2


def test_death_at_start_raises_with_log(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BEHAVIOUR", "dies")
    with pytest.raises(Unavailable, match="no such model"):
        ModelServer(base_path=tmp_path, command=command).start()


def test_server_that_never_listens_is_killed(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BEHAVIOUR", "mute")
    server = ModelServer(base_path=tmp_path, command=command, start_timeout_seconds=0.3)
    with pytest.raises(Unavailable, match=r"in 0.3 s; the end of its log"):
        server.start()
    assert not is_running(server.process_id)


def test_death_before_stop_raises_at_stop(command: list[str], tmp_path: Path):
    server = ModelServer(base_path=tmp_path, command=command)
    server.start()
    os.kill(server.process_id, 9)
    os.waitid(os.P_PID, server.process_id, os.WEXITED | os.WNOWAIT)
    with pytest.raises(Unavailable, match="had died with status -9"):
        server.stop()


def test_model_server_that_ends_badly_raises_at_stop(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BEHAVIOUR", "bad end")
    server = ModelServer(base_path=tmp_path, command=command)
    server.start()
    with pytest.raises(Unavailable, match="stopped with status 3"):
        server.stop()


def test_server_ignoring_sigterm_is_killed_and_raises(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BEHAVIOUR", "deaf")
    server = ModelServer(base_path=tmp_path, command=command, stop_timeout_seconds=0.2)
    server.start()
    with pytest.raises(Unavailable, match=r"did not stop in 0.2 s and was killed"):
        server.stop()
    assert not is_running(server.process_id)


def test_model_server_stop_twice_does_nothing_more(command: list[str], tmp_path: Path):
    server = ModelServer(base_path=tmp_path, command=command)
    server.start()
    server.stop()
    server.stop()


def test_failure_within_with_prints_log(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    server = ModelServer(base_path=tmp_path, command=command)

    def fail_inside_with() -> None:
        with server:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail_inside_with()
    assert not is_running(server.process_id)
    assert "TensorFlow says hello" in capsys.readouterr().err


def test_server_ends_with_killed_parent(command: list[str], tmp_path: Path):
    parent = (
        "import os, sys\n"
        "from serving import ModelServer\n"
        f"server = ModelServer(base_path='/', command={command!r})\n"
        "server.start()\n"
        "print(server.process_id, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    # The server inherits standard output: this returns when both have ended, or at the timeout.
    result = subprocess.run(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, timeout=30, check=False
    )
    assert result.returncode == -9
    assert int(result.stdout) > 0


def test_model_server_before_start_has_no_port(tmp_path: Path):
    with pytest.raises(FailedPrecondition, match="not started"):
        _ = ModelServer(base_path=tmp_path).port


@pytest.mark.parametrize("version", [None, 7])
def test_server_waits_until_version_is_available(
    version: int | None, command: list[str], tmp_path: Path, model_service: FakeModelService
):
    model_service.states = [LOADING, LOADING, AVAILABLE]
    with ModelServer(base_path=tmp_path, command=command) as server:
        server.wait_until_available("m", version)
    assert model_service.states == [AVAILABLE]


@pytest.mark.parametrize("states", [[], [LOADING]], ids=["unknown_model", "still_loading"])
def test_unavailable_version_times_out_with_log(
    states: list[ServableState],
    command: list[str],
    tmp_path: Path,
    model_service: FakeModelService,
):
    model_service.states = states
    with (
        ModelServer(base_path=tmp_path, command=command) as server,
        pytest.raises(Unavailable, match=r"m version 7 is not available after 0.1 s.*(?s:.)*hello"),
    ):
        server.wait_until_available("m", 7, timeout_seconds=0.1)


def test_death_during_wait_raises_at_once(
    command: list[str], tmp_path: Path, model_service: FakeModelService
):
    model_service.states = [LOADING]
    server = ModelServer(base_path=tmp_path, command=command)
    server.start()
    os.kill(server.process_id, 9)
    with pytest.raises(Unavailable, match="is not available"):
        server.wait_until_available("m", 7, timeout_seconds=60)
    server.kill()
