"""Servers under `--supervise`, with a model that crashes them on a magic input."""

import os
import signal
import socket
import urllib.request
from collections.abc import Callable
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
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel, drop
from tests.integration.logs import logged, wait_for_log
from tests.integration.processes import (
    child_processes,
    is_alive,
    is_standby,
    mapped_files,
    millpond,
    resident_mib,
    served_by,
)
from tests.integration.steady_clients import Exchange, SteadyThreads, scale_exchange

CRASH_COUNT = 5

StartSupervised = Callable[..., ModelServer]


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


@pytest.fixture
def base_paths(tmp_path: Path, crashing: Path, scale_model: ScaleModel) -> dict[str, Path]:
    """`crashing` with version 1, and `scale` with version 1."""
    paths = {name: tmp_path / name for name in ("crashing", "scale")}
    for path in paths.values():
        path.mkdir()
    drop(crashing, paths["crashing"], 1)
    scale_model.write(paths["scale"], 1)
    return paths


@pytest.fixture
def start_supervised(
    start_server: StartServer,
    write_config: WriteConfig,
    base_paths: dict[str, Path],
    crash_op: Path,
    tmp_path: Path,
) -> StartSupervised:
    """Starts a supervised server of both models, and waits until it is ready."""

    def start(**flags: object) -> ModelServer:
        config = write_config(tmp_path, base_paths)
        server = start_server(
            **{
                "model_config_file": config,
                "supervise": True,
                "op_library": crash_op,
                "listen_before_ready": False,
                **flags,
            }
        )
        for name in base_paths:
            server.wait_until_available(name)
        return server

    return start


class WaitingClients(SteadyThreads):
    """Clients of `scale` whose calls wait for a connection.

    A call that was in flight at a crash may end with UNAVAILABLE, and is kept in `lost`. Any other
    error is a failure. A client that lost a call connects anew: gRPC's channel may write the next
    call to the connection that was reset a moment ago, and such a call never reaches a server.
    """

    def __init__(self, target: str, count: int = 2) -> None:
        super().__init__(count)
        self._target = target
        self.lost: list[str] = []

    def run(self, number: int) -> None:
        """Implements SteadyThreads."""
        exchange = scale_exchange(np.array([number, 1.0], np.float32))
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


def predict(server: ModelServer, x: float, version: int | None = None) -> float:
    """Returns the answer of `crashing`. Stock gRPC, because Millpond's client tries again."""
    with caller_to(server.target) as caller:
        given = {"x": np.array([x], np.float32)}
        return float(caller.outputs("crashing", given, version=version)["y"][0])


def crash(server: ModelServer, x: float = crashing_model.SEGV) -> None:
    """Sends the magic input, and waits until the supervisor has logged the crash."""
    count = len(logged(server, "server_restarts"))
    code, _ = refusal(lambda: predict(server, x))
    assert code is grpc.StatusCode.UNAVAILABLE
    wait_until(
        lambda: len(logged(server, "server_restarts")) > count, "the server to be started again"
    )


def wait_until_ready_again(server: ModelServer, restart_count: int = 1) -> None:
    """Waits until the server that was started last has logged `ready`.

    A crash may lose the last lines of a log, so the lines of earlier servers are not counted.
    """
    turns = ("server_restarts", "ready")

    def is_ready() -> bool:
        events = [event["event"] for event in server.events() if event["event"] in turns]
        return events.count("server_restarts") >= restart_count and events[-1] == "ready"

    wait_until(is_ready, "the server to be ready again")


def blocked_of(server: ModelServer, name: str = "crashing") -> dict[int, str]:
    with Client(server.admin_target) as client:
        model = client.describe_models()[name]
    return {row["version"]: row["by"] for row in model.get("blocked_versions", ())}


@pytest.mark.parametrize("x", [crashing_model.SEGV, crashing_model.ABORT])
def test_crash_brings_predecessor_back(
    start_supervised: StartSupervised, base_paths: dict[str, Path], crashing: Path, x: float
):
    drop(crashing, base_paths["crashing"], 2)
    server = start_supervised()
    crash(server, x)
    assert predict(server, 1.0) == 2.0
    server.wait_until_available("crashing", version=1)
    assert blocked_of(server) == {2: "crash"}
    (event,) = logged(server, "version_crashed")
    assert (event["model"], event["version"]) == ("crashing", 2)
    assert "while it ran this version" in event["reason"]
    metrics = urllib.request.urlopen(f"{server.url}/metrics", timeout=30).read().decode()
    assert 'serving_version_blocked{by="crash",model="crashing",version="2"} 1' in metrics
    assert "serving_supervisor_restarts_total 1" in metrics
    with Client(server.admin_target) as client:
        client.allow("crashing", 2)
    server.wait_until_available("crashing", version=2)
    assert blocked_of(server) == {}


def test_crash_in_unknown_thread_blocks_what_ran(
    start_supervised: StartSupervised, base_paths: dict[str, Path], crashing: Path
):
    drop(crashing, base_paths["crashing"], 2)
    server = start_supervised()
    crash(server, crashing_model.SEGV_IN_OTHER_THREAD)
    assert predict(server, 1.0) == 2.0
    assert blocked_of(server) == {2: "crash"}


def test_model_without_predecessor_is_refused_first(start_supervised: StartSupervised):
    server = start_supervised()
    for _ in range(4):
        server.wait_until_available("crashing", version=1)
        crash(server)
    wait_until_ready_again(server, restart_count=4)
    # Eight seconds are left, less the start of the server.
    code, message = refusal(lambda: predict(server, 1.0))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "version 1 is blocked (the server died while it ran this version" in message
    assert "is tried again from" in message
    with urllib.request.urlopen(f"{server.url}/readyz", timeout=30) as reply:
        assert reply.status == 200
    server.wait_until_available("crashing", version=1)
    assert predict(server, 1.0) == 2.0


def test_version_that_crashes_while_loaded_is_blocked(
    start_supervised: StartSupervised, base_paths: dict[str, Path], crashing_at_load: Path
):
    server = start_supervised()
    drop(crashing_at_load, base_paths["crashing"], 2)
    wait_for_log(server, "server_restarts")
    wait_until_ready_again(server)
    assert predict(server, 1.0) == 2.0
    assert blocked_of(server) == {2: "crash"}
    (event,) = logged(server, "version_crashed")
    assert "while it loaded this version" in event["reason"]


def test_other_model_answers_through_crashes(
    start_supervised: StartSupervised, base_paths: dict[str, Path], crashing: Path
):
    server = start_supervised()
    clients = WaitingClients(server.target)
    with clients.running():
        for number in range(2, 2 + CRASH_COUNT):
            drop(crashing, base_paths["crashing"], number)
            server.wait_until_available("crashing", version=number)
            clients.wait_for_answers_of(1, 20)
            crash(server)
            with socket.create_connection(("127.0.0.1", server.port), timeout=5):
                clients.wait_for_answers_of(1, 20)
    assert clients.failures == []
    # A crash ends the calls that are in flight, and no others.
    assert len(clients.lost) <= 2 * CRASH_COUNT, clients.lost
    assert blocked_of(server) == dict.fromkeys(range(2, 2 + CRASH_COUNT), "crash")


def test_kill_of_server_blocks_no_version(start_supervised: StartSupervised):
    server = start_supervised()
    clients = WaitingClients(server.target)
    with clients.running():
        clients.wait_for_answers_of(1, 20)
        child = served_by(server.process_id)
        os.kill(child, signal.SIGKILL)
        wait_for_log(server, "server_restarts", signal="SIGKILL")
        clients.wait_for_answers_of(1, 20)
    assert clients.failures == []
    assert blocked_of(server) == {}


def test_standby_serves_after_crash(start_supervised: StartSupervised):
    server = start_supervised()
    standbys: list[int] = []

    def is_started() -> bool:
        standbys[:] = filter(is_standby, child_processes(server.process_id))
        return bool(standbys)

    wait_until(is_started, "the supervisor to start a standby")
    os.kill(served_by(server.process_id), signal.SIGKILL)
    wait_until_ready_again(server)
    assert child_processes(server.process_id)[:1] == standbys
    metrics = urllib.request.urlopen(f"{server.url}/metrics", timeout=30).read().decode()
    assert "serving_supervisor_restarts_total 1" in metrics
    # TensorFlow's greeting, which each process that loads TensorFlow would write, stays out of the log.
    assert "InitializeLog" not in server.log_path.read_text()


def test_sigterm_of_supervisor_drains(start_supervised: StartSupervised):
    server = start_supervised()
    child = served_by(server.process_id)
    server.stop()
    assert not is_alive(child)
    assert logged(server, "stopping", reason="SIGTERM")
    assert logged(server, "stopped", is_complete=True)


def test_server_ends_with_its_supervisor(start_server: StartServer, base_paths: dict[str, Path]):
    server = ModelServer(model_name="scale", base_path=base_paths["scale"], supervise=True)
    server.start()
    child = served_by(server.process_id)
    server.kill()
    wait_until(lambda: not is_alive(child), "the server to end")


def test_configuration_error_ends_supervisor(tmp_path: Path):
    done = millpond("serve", "--supervise", f"--model_config_file={tmp_path / 'none'}")
    assert done.returncode == 2


def test_supervisor_maps_no_tensorflow(start_supervised: StartSupervised):
    server = start_supervised()
    mapped = mapped_files(server.process_id)
    assert not [name for name in mapped if "tensorflow" in name or "_data_plane" in name]
    assert resident_mib(server.process_id) < 40
