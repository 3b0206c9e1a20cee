"""Servers under `--supervise`, with a model that crashes them on a magic input.

The tests share a server: a crash of one test's version blocks that version and no other one, and the models
of earlier tests leave with the next test's.
"""

import os
import signal
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from loadtest.drive import crashing_model
from serving import ModelServer
from serving.base.protos import predict_pb2
from serving.client import Client
from tests.integration.clients import (
    PREDICT,
    TIMEOUT_SECONDS,
    caller_to,
    channel_to,
    refusal,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop
from tests.integration.logs import catch_up, logged, wait_for_log
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import (
    child_processes,
    is_alive,
    is_standby,
    mapped_files,
    millpond,
    resident_mib,
)
from tests.integration.steady_clients import Exchange, SteadyThreads, scale_exchange

CRASH_COUNT = 2


@pytest.fixture(scope="module")
def crash_op(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return crashing_model.build_crash_op(tmp_path_factory.mktemp("op"))


@pytest.fixture(scope="module")
def crashing(crash_op: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version that crashes the server on a magic input."""
    return crashing_model.export_crashing(tmp_path_factory.mktemp("crashing") / "1", crash_op)


@pytest.fixture(scope="module")
def crashing_at_load(crash_op: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version that crashes the server while it is loaded."""
    directory = tmp_path_factory.mktemp("crashing_at_load") / "1"
    return crashing_model.export_crashing(directory, crash_op, init=crashing_model.SEGV)


@pytest.fixture(scope="module")
def host_flags(crash_op: Path) -> Mapping[str, object]:
    return {"supervise": True, "op_library": crash_op, "listen_before_ready": False}


@pytest.fixture
def model(host: ModelHost, base_path: Path, crashing: Path) -> HostedModel:
    """`crashing` with version 1."""
    drop(crashing, base_path, 1)
    added = host.model(base_path, prefix="crashing")
    added.wait_until_available(1)
    return added


@pytest.fixture
def scale(host: ModelHost, scale_model: ScaleModel, tmp_path: Path) -> HostedModel:
    """`scale` with version 1."""
    (tmp_path / "scale").mkdir()
    scale_model.write(tmp_path / "scale", 1)
    added = host.model(tmp_path / "scale", prefix="scale")
    added.wait_until_available(1)
    return added


@pytest.fixture
def own_server(start_server: StartServer, scale_model: ScaleModel, base_path: Path) -> ModelServer:
    """A supervised server that the test ends."""
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale", base_path=base_path, supervise=True, listen_before_ready=False
    )
    server.wait_until_available("scale", 1)
    return server


class WaitingClients(SteadyThreads):
    """Clients of a `ScaleModel` whose calls wait for a connection.

    A call that was in flight at a crash may end with UNAVAILABLE, and is kept in `lost`. Any other
    error is a failure. A client that lost a call connects anew: gRPC's channel may write the next
    call to the connection that was reset a moment ago, and such a call never reaches a server.
    """

    def __init__(self, model: HostedModel, count: int = 2) -> None:
        super().__init__(count)
        self._target = model.server.target
        self._name = model.name
        self.lost: list[str] = []

    def run(self, number: int) -> None:
        """Implements SteadyThreads."""
        exchange = scale_exchange(np.array([number, 1.0], np.float32), self._name)
        while not self.is_stopping:
            with channel_to(self._target) as channel:
                self._ask_until_lost(channel, exchange)

    def _ask_until_lost(self, channel: grpc.Channel, exchange: Exchange) -> None:
        request, fault = exchange
        predict: Any = channel.unary_unary(
            PREDICT,
            request_serializer=predict_pb2.PredictRequest.SerializeToString,
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )
        while not self.is_stopping:
            self.pause()
            try:
                found = fault(predict(request, timeout=TIMEOUT_SECONDS, wait_for_ready=True))
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    self.lost.append(str(error.details()))
                    return
                found = str(error)
            if found:
                self.failures.append(found)
            else:
                self.answer_counts[1] += 1


def predict(model: HostedModel, x: float) -> float:
    """Returns the answer of `crashing`. Stock gRPC, because Millpond's client tries again."""
    with caller_to(model.server.target) as caller:
        return float(caller.outputs(model.name, {"x": np.array([x], np.float32)})["y"][0])


def crash(model: HostedModel, x: float = crashing_model.SEGV) -> None:
    """Sends the magic input, and waits until the supervisor has logged the crash."""
    count = restart_count(model.server)
    code, _ = refusal(lambda: predict(model, x))
    assert code is grpc.StatusCode.UNAVAILABLE
    wait_for_restart(model.server, count)


def restart_count(server: ModelServer) -> int:
    return len(logged(server, "server_restarts"))


def wait_for_restart(server: ModelServer, count: int) -> None:
    """Waits until the supervisor has logged more restarts than `count`."""
    wait_until(lambda: restart_count(server) > count, "the server to be started again")


def wait_until_ready_again(server: ModelServer) -> None:
    """Waits until the server that was started last has logged `ready`.

    A crash may lose the last lines of a log, so the lines of earlier servers are not counted.
    """
    turns = ("server_restarts", "ready")

    def is_ready() -> bool:
        names = [event["event"] for event in server.events() if event["event"] in turns]
        return names[-1:] == ["ready"]

    wait_until(is_ready, "the server to be ready again")


def server_and_standby(server: ModelServer) -> tuple[int, int]:
    """Waits until the supervisor has a standby, and returns the ids of the server and of the standby."""
    children: list[int] = []

    def has_standby() -> bool:
        children[:] = child_processes(server.process_id)
        return len(children) == 2 and is_standby(children[1])

    wait_until(has_standby, "the supervisor to start a standby")
    return children[0], children[1]


def blocked_of(model: HostedModel) -> dict[int, str]:
    # The log has the address of the admin listener, which is another one after a restart.
    catch_up(model.server)
    with Client(model.server.admin_target) as client:
        described = client.describe_models()[model.name]
    return {row["version"]: row["by"] for row in described.get("blocked_versions", ())}


def metrics_of(server: ModelServer) -> str:
    url = f"{server.url}/metrics"
    text: str = urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS).read().decode()
    return text


def serve_second(model: HostedModel, crashing: Path) -> None:
    drop(crashing, model.base_path, 2)
    model.wait_until_available(2)


@pytest.mark.parametrize("x", [crashing_model.SEGV, crashing_model.ABORT])
def test_crash_brings_predecessor_back(model: HostedModel, crashing: Path, x: float):
    serve_second(model, crashing)
    crash(model, x)
    assert predict(model, 1.0) == 2.0
    model.wait_until_available(1)
    assert blocked_of(model) == {2: "crash"}
    event = model.only_logged("version_crashed")
    assert event["version"] == 2
    assert "while it ran this version" in event["reason"]
    metrics = metrics_of(model.server)
    assert f'serving_version_blocked{{by="crash",model="{model.name}",version="2"}} 1' in metrics
    assert f"serving_supervisor_restarts_total {restart_count(model.server)}" in metrics
    with Client(model.server.admin_target) as client:
        client.allow(model.name, 2)
    model.wait_until_available(2)
    assert blocked_of(model) == {}


def test_crash_in_unknown_thread_blocks_what_ran(model: HostedModel, crashing: Path):
    serve_second(model, crashing)
    crash(model, crashing_model.SEGV_IN_OTHER_THREAD)
    assert predict(model, 1.0) == 2.0
    assert blocked_of(model) == {2: "crash"}


def test_model_without_predecessor_is_refused_first(model: HostedModel, scale: HostedModel):
    refused: list[tuple[grpc.StatusCode, str | None]] = []

    def is_refused_after_a_crash() -> bool:
        # The first refusals may be over before the server is ready again; each crash doubles the next.
        model.wait_until_available(1)
        crash(model)
        wait_until_ready_again(model.server)
        try:
            predict(model, 1.0)
        except grpc.RpcError as error:
            refused.append((error.code(), error.details()))
        return bool(refused)

    wait_until(is_refused_after_a_crash, "a refusal")
    ((code, message),) = refused
    assert code is grpc.StatusCode.UNAVAILABLE
    assert message is not None
    assert "version 1 is blocked (the server died while it ran this version" in message
    assert "is tried again from" in message
    scale.wait_until_available(1)
    with urllib.request.urlopen(f"{model.server.url}/readyz", timeout=TIMEOUT_SECONDS) as reply:
        assert reply.status == 200
    model.wait_until_available(1)
    assert predict(model, 1.0) == 2.0


def test_version_that_crashes_while_loaded_is_blocked(model: HostedModel, crashing_at_load: Path):
    count = restart_count(model.server)
    drop(crashing_at_load, model.base_path, 2)
    wait_for_restart(model.server, count)
    wait_until_ready_again(model.server)
    assert predict(model, 1.0) == 2.0
    assert blocked_of(model) == {2: "crash"}
    event = model.only_logged("version_crashed")
    assert "while it loaded this version" in event["reason"]


def test_other_model_answers_through_crashes(
    model: HostedModel, scale: HostedModel, crashing: Path
):
    address = ("127.0.0.1", model.server.port)
    clients = WaitingClients(scale)
    with clients.running():
        for number in range(2, 2 + CRASH_COUNT):
            drop(crashing, model.base_path, number)
            model.wait_until_available(number)
            clients.wait_for_answers_of(1, 20)
            crash(model)
            with socket.create_connection(address, timeout=TIMEOUT_SECONDS):
                clients.wait_for_answers_of(1, 20)
    assert clients.failures == []
    # A crash ends the calls that are in flight, and no others.
    assert len(clients.lost) <= 2 * CRASH_COUNT, clients.lost
    assert blocked_of(model) == dict.fromkeys(range(2, 2 + CRASH_COUNT), "crash")


def test_kill_blocks_nothing_and_the_standby_serves(model: HostedModel, scale: HostedModel):
    server = model.server
    count = restart_count(server)
    clients = WaitingClients(scale)
    with clients.running():
        clients.wait_for_answers_of(1, 20)
        child, standby = server_and_standby(server)
        os.kill(child, signal.SIGKILL)
        wait_for_restart(server, count)
        clients.wait_for_answers_of(1, 20)
        # The standby serves, and not a new process.
        assert child_processes(server.process_id)[0] == standby
    assert clients.failures == []
    assert logged(server, "server_restarts")[-1]["signal"] == "SIGKILL"
    assert blocked_of(model) == blocked_of(scale) == {}
    # TensorFlow's greeting, which each process that loads TensorFlow would write, stays out of the log.
    assert "InitializeLog" not in server.log_path.read_text()


def test_sigterm_of_supervisor_drains(own_server: ModelServer):
    child = child_processes(own_server.process_id)[0]
    own_server.stop()
    assert not is_alive(child)
    wait_for_log(own_server, "stopping", reason="SIGTERM")
    wait_for_log(own_server, "stopped", is_complete=True)


def test_server_ends_with_its_supervisor(own_server: ModelServer):
    child = child_processes(own_server.process_id)[0]
    own_server.kill()
    wait_until(lambda: not is_alive(child), "the server to end")


def test_configuration_error_ends_supervisor(tmp_path: Path):
    done = millpond("serve", "--supervise", f"--model_config_file={tmp_path / 'none'}")
    assert done.returncode == 2


def test_supervisor_maps_no_tensorflow(model: HostedModel):
    mapped = mapped_files(model.server.process_id)
    assert not [name for name in mapped if "tensorflow" in name or "_data_plane" in name]
    assert resident_mib(model.server.process_id) < 40
