"""The HTTP server of a real process: probes, the drain, the ports, and hostile clients."""

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.base.clock import NS_PER_SECOND, SystemClock
from tests.integration.clients import caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop
from tests.integration.logs import logged, wait_for_log

# The limit in ConnectionLimits.
HEAD_SECONDS = 10
HEAD_BYTES_MAX = 32 * 2**10

ANSWER_SECONDS = 30
_clock = SystemClock()


def http_port(server: ModelServer) -> int:
    return int(server.url.rpartition(":")[2])


def get(server: ModelServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    address = ("127.0.0.1", http_port(server))
    with closing(http.client.HTTPConnection(*address, timeout=ANSWER_SECONDS)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()


def readyz(server: ModelServer, query: str = "") -> tuple[int, Any]:
    status, body = get(server, f"/readyz{query}")
    return status, json.loads(body)


@contextmanager
def socket_to(server: ModelServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", http_port(server)), ANSWER_SECONDS) as connection:
        yield connection


def why(server: ModelServer) -> str:
    """Returns the reason why the model `scale` has no version."""
    return str(readyz(server)[1]["models"]["scale"]["reason"])


def received(connection: socket.socket) -> bytes:
    """Returns all bytes until the server closes the connection."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


# --- Probes ---------------------------------------------------------------------------------------


def test_readyz_is_503_with_reason_before_version(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    server = start_server(model_name="scale", base_path=base_path)
    assert get(server, "/healthz") == (200, b"ok\n")
    status, document = readyz(server)
    assert (status, document["is_ready"]) == (503, False)
    assert document["models"]["scale"]["reason"] == "no version has been found in its base path"
    scale_model.write(base_path, 1)
    server.wait_until_available("scale", 1)
    wait_until(lambda: readyz(server)[0] == 200, "readiness after a version")
    assert readyz(server, "?model=scale") == (
        200,
        {"is_ready": True, "models": {"scale": {"is_ready": True}}},
    )
    assert readyz(server, "?model=other")[0] == 404


def test_readyz_names_missing_parts_of_version(start_server: StartServer, base_path: Path) -> None:
    (base_path / "1" / "variables").mkdir(parents=True)
    (base_path / "1" / "variables" / "variables.index").touch()
    server = start_server(model_name="scale", base_path=base_path)
    wait_until(lambda: "has neither saved_model.pb" in why(server), "why it is incomplete")
    (base_path / "1" / "saved_model.pb").write_bytes(b"no graph")
    wait_until(lambda: "saved_model.pb (or .pbtxt) does not parse" in why(server), "why it failed")


def test_drain_is_reported_until_last_answer(
    start_server: StartServer, slow_export: Path, base_path: Path
) -> None:
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, drain_seconds=60)
    server.wait_until_available("slow", 1)
    request = predict_request("slow", {"seconds": np.float64(3)})
    with caller_to(server.target) as caller, socket_to(server) as idle:
        # Connects: a connection that is begun after the signal is refused.
        caller.start_predict(
            predict_request("slow", {"seconds": np.float64(0)}), timeout=60
        ).result()
        call = caller.start_predict(request, timeout=60)
        wait_until(lambda: not call.done() and get(server, "/readyz")[0] == 200, "a running call")
        os.kill(server.process_id, signal.SIGTERM)
        wait_until(lambda: readyz(server)[0] == 503, "the report of the drain")
        assert "draining" in readyz(server)[1]["reason"]
        assert get(server, "/healthz") == (200, b"ok\n")
        assert not call.done()
        assert call.code() is grpc.StatusCode.OK
        assert received(idle) == b""
    stopped = wait_for_log(server, "stopped")
    assert stopped["is_complete"]
    server.kill()  # The server has ended by itself, which the fixture would report as a crash.


# --- Ports ----------------------------------------------------------------------------------------


def test_server_without_http_has_no_thread_for_it(
    start_server: StartServer, base_path: Path
) -> None:
    server = start_server(base_path=base_path, rest_api_port=0)
    assert wait_for_log(server, "listening")["http_port"] is None


# --- Hostile clients ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelServer:
    base_path = tmp_path_factory.mktemp("base")
    scale_model.write(base_path, 1)
    started = start_module_server(model_name="scale", base_path=base_path)
    started.wait_until_available("scale", 1)
    return started


def test_slow_heads_are_cut_off_and_block_no_client(server: ModelServer) -> None:
    start_ns = _clock.now_ns()
    with ExitStack() as stack:
        slow = [stack.enter_context(socket_to(server)) for _ in range(100)]
        for connection in slow:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert get(server, "/healthz")[0] == 200
        answers = {received(connection).partition(b"\r\n")[0] for connection in slow}
    seconds = (_clock.now_ns() - start_ns) / NS_PER_SECOND
    assert answers == {b"HTTP/1.1 408 Request Timeout"}
    assert HEAD_SECONDS - 1 < seconds < HEAD_SECONDS + 10


def test_idle_connections_keep_no_probe_away(server: ModelServer) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(socket_to(server))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert readyz(server)[0] == 200


def test_excess_connections_replace_idle_ones(server: ModelServer) -> None:
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(socket_to(server))
        assert readyz(server)[0] == 200


def test_large_head_is_refused(server: ModelServer) -> None:
    with socket_to(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX-Large: " + b"x" * HEAD_BYTES_MAX)
        assert received(connection).startswith(b"HTTP/1.1 431 ")


def test_large_body_is_refused_before_it_is_sent(server: ModelServer) -> None:
    with socket_to(server) as connection:
        connection.sendall(b"POST /healthz HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 413 ")


def test_junk_is_answered_and_not_logged(server: ModelServer) -> None:
    before = len(server.events())
    for junk in (b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket_to(server) as connection:
            connection.sendall(junk)
            assert received(connection).startswith(b"HTTP/1.1 400 ")
    assert len(server.events()) == before


def test_probe_is_answered_while_cores_are_busy(server: ModelServer) -> None:
    is_over = threading.Event()

    def load() -> None:
        with caller_to(server.target) as caller:
            while not is_over.is_set():
                caller.outputs("scale", {"x": np.ones(100_000, np.float32)})

    threads = [threading.Thread(target=load) for _ in range(4 * (os.cpu_count() or 1))]
    for thread in threads:
        thread.start()
    try:
        start_ns = _clock.now_ns()
        for _ in range(20):
            assert readyz(server)[0] == 200
        seconds = (_clock.now_ns() - start_ns) / NS_PER_SECOND
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert seconds < 20
    assert not logged(server, "on_http_server_log")
