"""Clients of a fleet with real servers and a real coordinator: a server drains, and no call fails."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from serving import ModelServer
from serving.base.clock import SystemClock
from serving.client import Client
from serving.fleet.config import parse_fleet_config
from serving.fleet.metrics import METRICS_PATH
from serving.fleet.service import FleetService
from serving.fleet.service_config import stock_service_config
from tests.integration.clients import predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

SERVER_COUNT = 3
PATIENCE_SECONDS = 120
PREDICT = "/tensorflow.serving.PredictionService/Predict"

# A call of any client.
Call = Callable[[], Any]


def free_port(start: int = 0) -> int:
    import socket

    with socket.create_server(("127.0.0.1", start)) as listener:
        port: int = listener.getsockname()[1]
    return port


@dataclass
class Load:
    """Threads that call without a pause, and count."""

    call: Call
    failures: list[str] = field(default_factory=list)
    answer_count: int = 0
    _is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self, thread_count: int = 3) -> Iterator["Load"]:
        threads = [threading.Thread(target=self._send) for _ in range(thread_count)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def wait_for_more(self, count: int) -> None:
        wanted = self.answer_count + count
        wait_until(lambda: self.answer_count >= wanted, f"{count} more answers", PATIENCE_SECONDS)

    def _send(self) -> None:
        while not self._is_over.is_set():
            try:
                self.call()
            except Exception as error:  # noqa: BLE001 (every failure counts)
                self.failures.append(str(error))
            else:
                self.answer_count += 1


@dataclass
class Fleet:
    """Three servers, and the coordinator's configuration and thread."""

    directory: Path
    servers: list[ModelServer]
    port: int = field(default_factory=free_port)
    running: list[tuple[FleetService, threading.Thread]] = field(default_factory=list)

    @property
    def registry_file(self) -> Path:
        return self.directory / "servers.json"

    def start(self, *servers: ModelServer) -> None:
        """Starts a coordinator of these servers, in the place of the last one."""
        self.stop()
        tables = "".join(
            f'[servers.s{number}]\nadmin = "{server.admin_target}"\ngrpc = "{server.target}"\n'
            for number, server in enumerate(servers)
        )
        config = parse_fleet_config(
            f"[coordinator]\nstate_directory = {str(self.directory / 'fleet')!r}\n"
            f'listen = "127.0.0.1:{self.port}"\npoll_seconds = 0.1\n'
            f"registry_file = {str(self.registry_file)!r}\n"
            f'[waves]\nsizes = ["1"]\njudged_seconds = 1\nlost_seconds = 5\n{tables}'
        )
        service = FleetService(config, SystemClock())
        thread = threading.Thread(target=service.run)
        thread.start()
        self.running.append((service, thread))
        wait_until(lambda: self._lists(servers), "the registry", PATIENCE_SECONDS)

    def stop(self) -> None:
        while self.running:
            service, thread = self.running.pop()
            service.stop()
            thread.join()

    def _lists(self, servers: tuple[ModelServer, ...]) -> bool:
        if not self.registry_file.exists():
            return False
        rows = json.loads(self.registry_file.read_text())["servers"]
        return [row["grpc"] for row in rows] == [server.target for server in servers] and all(
            row["is_ready"] for row in rows
        )


@pytest.fixture
def fleet(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
) -> Iterator[Fleet]:
    scale_model.write(base_path, 1)
    servers = [
        start_server(
            model_name="scale",
            base_path=base_path,
            state_directory=tmp_path / f"s{number}",
            fleet_member=True,
            drain_seconds=3,
            listen_before_ready=True,
        )
        for number in range(SERVER_COUNT)
    ]
    made = Fleet(tmp_path, servers)
    made.start(*servers)
    try:
        yield made
    finally:
        made.stop()


def request_count(server: ModelServer) -> int:
    with Client(server.admin_target) as client:
        (model,) = client.describe()["models"]
        return sum(version["request_count"] for version in model["versions"])


def predict_with(client: Client) -> Call:
    return lambda: client.predict("scale", {"x": np.ones(1, np.float32)}, timeout_seconds=60)


@pytest.mark.parametrize("kind", ["http", "file"])
def test_client_loses_nothing_as_servers_drain(fleet: Fleet, kind: str) -> None:
    target = {
        "http": f"fleet://127.0.0.1:{fleet.port}",
        "file": f"fleet+file://{fleet.registry_file}",
    }[kind]
    with Client(target) as client:
        client.wait_until_ready("scale", PATIENCE_SECONDS)
        with Load(predict_with(client)).running() as load:
            load.wait_for_more(300)
            assert all(request_count(server) > 0 for server in fleet.servers)
            # The coordinator's end changes nothing for clients.
            fleet.stop()
            fleet.servers[0].stop()
            load.wait_for_more(300)
            fleet.start(*fleet.servers[1:])
            fleet.servers[1].stop()
            load.wait_for_more(300)
    assert load.failures == []


def test_stock_client_loses_nothing_as_one_drains(fleet: Fleet) -> None:
    target = f"ipv4:{','.join(server.target for server in fleet.servers)}"
    config = json.dumps(stock_service_config())
    request = predict_request("scale", {"x": np.ones(1, np.float32)}).SerializeToString()
    with grpc.insecure_channel(target, [("grpc.service_config", config)]) as channel:
        call: Any = channel.unary_unary(PREDICT)
        with Load(lambda: call(request, timeout=60)).running() as load:
            load.wait_for_more(300)
            assert all(request_count(server) > 0 for server in fleet.servers)
            fleet.servers[0].stop()
            load.wait_for_more(300)
    assert load.failures == []


def test_coordinator_serves_page_and_metrics(fleet: Fleet) -> None:
    address = f"http://127.0.0.1:{fleet.port}"
    assert "Millpond fleet" in httpx.get(address).text
    assert httpx.get(address, headers={"Host": "evil.example"}).status_code != 200
    metrics = httpx.get(address + METRICS_PATH).text
    assert 'fleet_servers{state="live"} 3.0' in metrics
    calls = [line for line in metrics.splitlines() if line.startswith("fleet_calls_total")]
    assert all(float(line.rpartition(" ")[2]) > 0 for line in calls), calls
