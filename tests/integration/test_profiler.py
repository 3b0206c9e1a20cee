"""TensorFlow's profiler against a running server: its stock client, and hostile requests."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.base.compiled_protos import message_class
from serving.rpc.profiler_service import METHODS, MONITOR, PROFILE, TERMINATE
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, refusal, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.steady_clients import SteadyClients, scale_exchange

# TensorFlow traces costly ops only, and an op on a few elements is soon found to be cheap.
X = np.linspace(-3, 3, 100_000, dtype=np.float32)
LONG_MS = 60_000
CLIENT_SECONDS = 300

# The calls that people write by hand, and that TensorBoard makes to capture a profile.
STOCK_CLIENT = """
import json, sys
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

address, directory = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
tf.profiler.experimental.client.trace(address, directory, 1000)
monitored = tf.profiler.experimental.client.monitor(address, 500, 2)
saved = {}
for path in tf.io.gfile.glob(f"{directory}/plugins/profile/*/*"):
    space = xplane_pb2.XSpace.FromString(open(path, "rb").read())
    saved[path] = [
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes for line in plane.lines for event in line.events
    ]
print(json.dumps({"saved": saved, "monitored": monitored}))
"""


@dataclass(frozen=True)
class Traced:
    """Returns the files and the output of the stock client, which ran beside other clients."""

    saved: dict[str, list[str]]
    monitored: str
    failures: list[str]
    answer_count: int


@pytest.fixture(scope="module")
def base_path(scale_model: ScaleModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profiler") / "scale"
    scale_model.write(path, 1)
    return path


@pytest.fixture(scope="module")
def server(start_module_server: StartServer, base_path: Path) -> ModelServer:
    server = start_module_server(model_name="scale", base_path=base_path, admin_address="off")
    server.wait_until_available("scale", 1)
    return server


@contextmanager
def stock_client(target: str, directory: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Starts the stock client, which has imported TensorFlow then. Yields what lets it run, and returns its output."""
    with subprocess.Popen(
        [sys.executable, "-c", STOCK_CLIENT, f"grpc://{target}", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None

        def run() -> dict[str, Any]:
            output, errors = process.communicate("\n", timeout=CLIENT_SECONDS)
            assert process.returncode == 0, errors[-3000:]
            # TensorFlow's own lines come from a buffer of C, before or after that of Python.
            (line,) = (line for line in output.splitlines() if line.startswith("{"))
            printed: dict[str, Any] = json.loads(line)
            return printed

        try:
            while process.stdout.readline().strip() not in ("ready", ""):
                pass
            yield run
        finally:
            process.kill()


@pytest.fixture(scope="module")
def traced(server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    clients = SteadyClients(server.target, [scale_exchange(X)] * 2)
    with stock_client(server.target, tmp_path_factory.mktemp("logs")) as run, clients.running():
        clients.wait_for_answers_of(1)
        printed = run()
        clients.wait_for_answers_of(1)
    return Traced(
        printed["saved"], printed["monitored"], clients.failures, clients.answer_counts[1]
    )


def test_stock_client_saves_a_trace_of_the_runs(server: ModelServer, traced: Traced):
    ((path, events),) = traced.saved.items()
    assert path.endswith(f"/127.0.0.1_{server.port}.xplane.pb")
    assert any("SessionRun" in name for name in events), sorted(set(events))[:50]
    # The model is `x * scale + offsets[0]`.
    for op in ("Mul", "AddV2"):
        assert any(name.split(":")[-1] == op for name in events), (op, sorted(set(events))[:50])


def test_stock_client_prints_costly_ops(traced: Traced):
    assert " events in 500 ms" in traced.monitored
    assert "SessionRun" in traced.monitored
    assert " UTC" in traced.monitored.splitlines()[0]


def test_no_request_is_lost_while_a_trace_runs(traced: Traced):
    assert traced.failures == []
    assert traced.answer_count > 0


def profile_request(**fields: Any) -> bytes:
    serialized: bytes = message_class("tensorflow.ProfileRequest")(**fields).SerializeToString()
    return serialized


class Profiling:
    """A trace under way."""

    def __init__(self, channel: grpc.Channel, request: bytes) -> None:
        call: Any = channel.unary_unary(PROFILE)
        self.call: Any = call.future(request, timeout=CLIENT_SECONDS)

    def response(self) -> Any:
        return message_class("tensorflow.ProfileResponse").FromString(self.call.result())


@pytest.fixture
def channel(server: ModelServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.target) as channel:
        yield channel


def profile_when_free(channel: grpc.Channel, **fields: Any) -> Any:
    """Returns the response to a short trace, after all other traces have ended."""
    profiling = Profiling(channel, profile_request(**fields))

    def is_answered() -> bool:
        nonlocal profiling
        if not is_refused(profiling, waits=True):
            return True
        profiling = Profiling(channel, profile_request(**fields))
        return False

    wait_until(is_answered, "no other trace runs", CLIENT_SECONDS)
    return profiling.response()


def start_long_trace(channel: grpc.Channel, **fields: Any) -> Profiling:
    """Starts a trace of a minute; it runs once another trace is refused."""
    request = profile_request(duration_ms=LONG_MS, **fields)
    profiling = Profiling(channel, request)

    def is_running() -> bool:
        nonlocal profiling
        if is_refused(profiling):
            # A short trace that looks for it came first.
            profiling = Profiling(channel, request)
        return is_refused(Profiling(channel, profile_request(duration_ms=1)), waits=True)

    wait_until(is_running, "the trace runs", CLIENT_SECONDS)
    assert not profiling.call.done()
    return profiling


def is_refused(profiling: Profiling, *, waits: bool = False) -> bool:
    """Returns True if another trace runs instead; raises if the call fails otherwise."""
    if not waits and not profiling.call.done():
        return False
    error = profiling.call.exception()
    if error is not None and error.code() != grpc.StatusCode.ALREADY_EXISTS:
        raise error
    return error is not None


def test_server_ignores_path_named_by_client(channel: grpc.Channel, tmp_path: Path):
    named = tmp_path / "named"
    response = profile_when_free(
        channel,
        duration_ms=1,
        repository_root=str(named),
        session_id="../x",
        host_name="../../y",
    )
    assert response.empty_trace or [tool.name for tool in response.tool_data] == ["xplane.pb"]
    assert list(tmp_path.iterdir()) == []


def test_client_that_goes_away_ends_its_trace(channel: grpc.Channel):
    start_long_trace(channel).call.cancel()
    assert profile_when_free(channel, duration_ms=1) is not None


def test_terminate_ends_a_trace(channel: grpc.Channel):
    profiling = start_long_trace(channel, session_id="mine")
    call: Any = channel.unary_unary(TERMINATE)
    call(
        message_class("tensorflow.TerminateRequest")(session_id="mine").SerializeToString(),
        timeout=TIMEOUT_SECONDS,
    )
    assert profiling.response() is not None


def test_status_is_answered_while_a_trace_runs(server: ModelServer, channel: grpc.Channel):
    profiling = start_long_trace(channel)
    server.wait_until_available("scale", 1)
    profiling.call.cancel()
    profile_when_free(channel, duration_ms=1)


@pytest.mark.parametrize("method", METHODS)
def test_profiling_is_refused_through_proxy(channel: grpc.Channel, method: str):
    call: Any = channel.unary_unary(method)
    code, message = refusal(
        lambda: call(b"", timeout=TIMEOUT_SECONDS, metadata=[("x-forwarded-for", "192.0.2.7")])
    )
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert "may not profile this server" in message


def test_profiler_that_is_off_is_unimplemented(start_server: StartServer, base_path: Path):
    server = start_server(model_name="scale", base_path=base_path, enable_profiler=False)
    with caller_to(server.target) as caller:
        for method in (PROFILE, MONITOR):
            code, _ = refusal(partial(caller.send_bytes, method, b""))
            assert code == grpc.StatusCode.UNIMPLEMENTED


def test_stop_ends_a_trace_and_answers_it(start_server: StartServer, base_path: Path):
    server = start_server(model_name="scale", base_path=base_path, drain_seconds=200)
    with grpc.insecure_channel(server.target) as channel:
        profiling = start_long_trace(channel)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert profiling.response() is not None
        stopping.join()
    assert "trace_ended" in server.log_path.read_text()
