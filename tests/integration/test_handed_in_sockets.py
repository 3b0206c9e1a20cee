"""Servers on sockets that their parent process holds, as systemd does (sd_listen_fds(3))."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from serving.base.clock import SystemClock
from serving.base.protos import predict_pb2
from serving.server.server_log import LogReader
from tests.integration.clients import PREDICT, TIMEOUT_SECONDS, caller_to, channel_to
from tests.integration.exports import ScaleModel
from tests.integration.steady_clients import SteadyThreads, scale_exchange
from tests.unit.pem import config_text, make_identity

# The process that bash becomes has its id. The sockets become its descriptors 3 and 4.
HAND_IN = 'exec 3<&"$1" 4<&"$2"; export LISTEN_PID=$$; shift 2; exec "$@"'


class HandedInServer:
    """`millpond serve` with a socket for gRPC and one for HTTP. Port 1 in its flags is not used."""

    def __init__(
        self,
        directory: Path,
        base_path: Path,
        sockets: Sequence[socket.socket],
        flags: Sequence[str] = (),
    ) -> None:
        # Above the numbers that bash assigns.
        copies = [fcntl.fcntl(held.fileno(), fcntl.F_DUPFD, 10) for held in sockets]
        command = [
            *(sys.executable, "-m", "serving", "serve", "--model_name=scale", "--log_format=json"),
            *(f"--model_base_path={base_path}", "--host=192.0.2.1", "--port=1", *flags),
        ]
        self.process = subprocess.Popen(
            ["bash", "-c", HAND_IN, "bash", *map(str, copies), *command],
            stderr=subprocess.PIPE,
            pass_fds=copies,
            env={
                **os.environ,
                "LISTEN_FDS": str(len(sockets)),
                "LISTEN_FDNAMES": "grpc:rest",
                "MILLPOND_RUN_DIRECTORY": str(directory),
            },
        )
        for copy in copies:
            os.close(copy)
        assert self.process.stderr is not None
        self.log = LogReader(self.process.stderr, (directory / "server.log").open("wb"))

    def wait_until_listening(self) -> Any:
        found = self.log.wait_for(
            lambda line: line["event"] == "listening", TIMEOUT_SECONDS, SystemClock()
        )
        assert found is not None, self.log.tail()
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.join()


@pytest.fixture(scope="module")
def held() -> Iterator[list[socket.socket]]:
    """The sockets of gRPC and of HTTP, which listen for as long as the tests run."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            for _ in range(2)
        ]


@pytest.fixture(scope="module")
def start_next(
    held: list[socket.socket],
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], HandedInServer]]:
    """Starts a server of `scale` version 1 on the sockets."""
    base_path = tmp_path_factory.mktemp("scale")
    scale_model.write(base_path, 1)
    with ExitStack() as stack:

        def start() -> HandedInServer:
            server = HandedInServer(tmp_path_factory.mktemp("server"), base_path, held)
            stack.callback(server.close)
            return server

        yield start


class WaitingClients(SteadyThreads):
    """Clients whose calls wait for a connection."""

    def __init__(self, target: str, count: int = 2) -> None:
        super().__init__(count)
        self._target = target

    def run(self, number: int) -> None:
        """Implements SteadyThreads."""
        request, fault = scale_exchange(np.array([number, 1.0], np.float32))
        with channel_to(self._target) as channel:
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
                    found = str(error)
                if found:
                    self.failures.append(found)
                else:
                    self.answer_counts[1] += 1


def port_of(held: socket.socket) -> int:
    return int(held.getsockname()[1])


@dataclass
class Restart:
    """A server on the sockets, and the one after it; clients asked all the time."""

    listening: Any
    answer_fault: str
    """The fault of an answer to a call over gRPC, or ""."""
    readyz_status: int
    stop_status: int
    failures: Sequence[str]


@pytest.fixture(scope="module")
def restart(held: list[socket.socket], start_next: Callable[[], HandedInServer]) -> Restart:
    grpc_port, http_port = map(port_of, held)
    first = start_next()
    listening = first.wait_until_listening()
    request, fault = scale_exchange(np.array([3.0], np.float32))
    with caller_to(f"127.0.0.1:{grpc_port}") as caller:
        answer_fault = fault(caller.predict(request))
    url = f"http://127.0.0.1:{http_port}/readyz"
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply:
        readyz_status = reply.status
    clients = WaitingClients(f"127.0.0.1:{grpc_port}")
    with clients.running():
        clients.wait_for_answers_of(1, 100)
        stop_status = first.stop()
        for between in held:
            socket.create_connection(between.getsockname(), timeout=TIMEOUT_SECONDS).close()
        start_next().wait_until_listening()
        clients.wait_for_answers_of(1, 100)
    return Restart(listening, answer_fault, readyz_status, stop_status, clients.failures)


def test_server_answers_on_handed_in_sockets(held: list[socket.socket], restart: Restart) -> None:
    grpc_port, http_port = map(port_of, held)
    assert (restart.listening["host"], restart.listening["port"]) == ("127.0.0.1", grpc_port)
    assert restart.listening["http_port"] == http_port
    assert restart.answer_fault == ""
    assert restart.readyz_status == 200


def test_restart_on_handed_in_socket_fails_no_call(restart: Restart) -> None:
    assert restart.stop_status == 0
    assert restart.failures == []


def test_handed_in_unix_socket_serves_http_beside_tls(
    scale_model: ScaleModel, tmp_path: Path
) -> None:
    base_path, path = tmp_path / "scale", tmp_path / "held.sock"
    scale_model.write(base_path, 1)
    identity = make_identity(tmp_path, "server")
    (tmp_path / "tls.config").write_text(config_text(identity.key, identity.certificate))
    flags = [f"--rest_ssl_config_file={tmp_path / 'tls.config'}"]
    with (
        socket.create_server(("127.0.0.1", 0)) as grpc_socket,
        socket.socket(socket.AF_UNIX) as held,
    ):
        held.bind(str(path))
        held.listen()
        server = HandedInServer(tmp_path, base_path, [grpc_socket, held], flags)
        try:
            assert server.wait_until_listening()["http_port"] is None
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
                assert client.get("http://localhost/readyz").status_code == 200
            assert server.stop() == 0
        finally:
            server.close()
        # The next server has its clients.
        with socket.socket(socket.AF_UNIX) as client_socket:
            client_socket.connect(str(path))
