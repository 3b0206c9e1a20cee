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
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving.base.clock import SystemClock
from serving.base.protos import predict_pb2
from serving.server.server_log import LogReader
from tests.integration.clients import PREDICT, TIMEOUT_SECONDS, caller_to, channel_to
from tests.integration.exports import ScaleModel
from tests.integration.steady_clients import SteadyThreads, scale_exchange

# The process that bash becomes has its id. The sockets become its descriptors 3 and 4.
HAND_IN = 'exec 3<&"$1" 4<&"$2"; export LISTEN_PID=$$; shift 2; exec "$@"'


class HandedInServer:
    """`millpond serve` with a socket for gRPC and one for HTTP. Port 1 in its flags is not used."""

    def __init__(self, directory: Path, base_path: Path, sockets: Sequence[socket.socket]) -> None:
        # Above the numbers that bash assigns.
        copies = [fcntl.fcntl(held.fileno(), fcntl.F_DUPFD, 10) for held in sockets]
        command = [
            *(sys.executable, "-m", "serving", "serve", "--model_name=scale", "--log_format=json"),
            *(f"--model_base_path={base_path}", "--host=192.0.2.1", "--port=1"),
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


@pytest.fixture
def held() -> Iterator[list[socket.socket]]:
    """The sockets of gRPC and of HTTP, which listen for as long as the test runs."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            for _ in range(2)
        ]


@pytest.fixture
def start_next(
    held: list[socket.socket],
    scale_model: ScaleModel,
    base_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], HandedInServer]]:
    """Starts a server of `scale` version 1 on the sockets."""
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


def test_server_answers_on_handed_in_sockets(
    held: list[socket.socket], start_next: Callable[[], HandedInServer]
) -> None:
    grpc_port, http_port = map(port_of, held)
    listening = start_next().wait_until_listening()
    assert (listening["host"], listening["port"]) == ("127.0.0.1", grpc_port)
    assert listening["http_port"] == http_port
    with caller_to(f"127.0.0.1:{grpc_port}") as caller:
        request, fault = scale_exchange(np.array([3.0], np.float32))
        assert fault(caller.predict(request)) == ""
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/readyz", timeout=30) as reply:
        assert reply.status == 200


def test_restart_on_handed_in_socket_fails_no_call(
    held: list[socket.socket], start_next: Callable[[], HandedInServer]
) -> None:
    clients = WaitingClients(f"127.0.0.1:{port_of(held[0])}")
    first = start_next()
    with clients.running():
        clients.wait_for_answers_of(1, 100)
        assert first.stop() == 0
        for between in held:
            socket.create_connection(between.getsockname(), timeout=5).close()
        start_next().wait_until_listening()
        clients.wait_for_answers_of(1, 100)
    assert clients.failures == []
