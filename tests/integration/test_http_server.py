"""The HTTP server of a real process: probes, the drain, and hostile clients."""

import http.client
import json
import os
import signal
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop
from tests.integration.held import LONG_SECONDS, Held
from tests.integration.logs import MARK, catch_up, logged, wait_for_log
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import CORES
from tests.integration.raw_http import address_of, socket_to

# The limit in ConnectionLimits.
HEAD_BYTES_MAX = 32 * 2**10


def get(server: ModelServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connecting = http.client.HTTPConnection(*address_of(server), timeout=TIMEOUT_SECONDS)
    with closing(connecting) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()


def readyz(server: ModelServer, query: str = "") -> tuple[int, Any]:
    status, body = get(server, f"/readyz{query}")
    return status, json.loads(body)


def why(model: HostedModel) -> str:
    """Returns the reason why the model has no version."""
    models = readyz(model.server)[1]["models"]
    return str(models.get(model.name, {}).get("reason"))


def received(connection: socket.socket) -> bytes:
    """Returns all bytes until the server closes the connection."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


# --- Probes ---------------------------------------------------------------------------------------


def test_readyz_is_503_with_reason_before_version(
    host: ModelHost, server: ModelServer, scale_model: ScaleModel
) -> None:
    model = host.model()
    no_version = "no version has been found in its base path"
    wait_until(lambda: why(model) == no_version, "the reason")
    assert readyz(server, f"?model={model.name}")[0] == 503
    assert get(server, "/healthz") == (200, b"ok\n")
    scale_model.write(model.base_path, 1)
    wait_until(lambda: readyz(server, f"?model={model.name}")[0] == 200, "the version")
    assert readyz(server, f"?model={model.name}") == (
        200,
        {"is_ready": True, "models": {model.name: {"is_ready": True}}},
    )
    assert readyz(server, "?model=other")[0] == 404


def test_readyz_names_missing_parts_of_version(host: ModelHost) -> None:
    model = host.model()
    version = model.base_path / "1"
    (version / "variables").mkdir(parents=True)
    (version / "variables" / "variables.index").touch()
    wait_until(lambda: "has neither saved_model.pb" in why(model), "why it is incomplete")
    (version / "saved_model.pb").write_bytes(b"no graph")
    wait_until(lambda: "saved_model.pb (or .pbtxt) does not parse" in why(model), "why it failed")


def test_drain_is_reported_until_last_answer(
    start_server: StartServer, slow_export: Path, held: Held, base_path: Path
) -> None:
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, drain_seconds=LONG_SECONDS)
    server.wait_until_available("slow", 1)
    with caller_to(server.target) as caller, socket_to(server) as idle:
        # Connects: a connection that is begun after the signal is refused.
        caller.start_predict(
            predict_request("slow", {"seconds": np.float64(0)}), timeout=TIMEOUT_SECONDS
        ).result()
        call = held.start(caller)
        pages = ServerPages(server.url)
        wait_until(lambda: pages.metrics().total("serving_servable_handles") > 0, "a running call")
        assert get(server, "/readyz")[0] == 200
        os.kill(server.process_id, signal.SIGTERM)
        wait_until(lambda: readyz(server)[0] == 503, "the report of the drain")
        assert "draining" in readyz(server)[1]["reason"]
        assert get(server, "/healthz") == (200, b"ok\n")
        assert not call.done()
        held.release()
        assert call.code() is grpc.StatusCode.OK
        assert received(idle) == b""
    stopped = wait_for_log(server, "stopped")
    assert stopped["is_complete"]
    server.kill()  # The server has ended by itself, which the fixture would report as a crash.


# --- Hostile clients ------------------------------------------------------------------------------


def is_ready(server: ModelServer) -> bool:
    """Returns True if a probe is answered that asks for `scale` alone."""
    return readyz(server, "?model=scale")[0] == 200


def test_slow_heads_block_no_client(server: ModelServer) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(socket_to(server))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert get(server, "/healthz")[0] == 200


def test_idle_connections_keep_no_probe_away(server: ModelServer) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(socket_to(server))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert is_ready(server)


def test_excess_connections_replace_idle_ones(server: ModelServer) -> None:
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(socket_to(server))
        assert is_ready(server)


def test_large_head_is_refused(server: ModelServer) -> None:
    with socket_to(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX-Large: " + b"x" * HEAD_BYTES_MAX)
        assert received(connection).startswith(b"HTTP/1.1 431 ")


def test_large_body_is_refused_before_it_is_sent(server: ModelServer) -> None:
    with socket_to(server) as connection:
        connection.sendall(
            b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n"
        )
        assert received(connection).startswith(b"HTTP/1.1 413 ")


def test_junk_is_answered_and_not_logged(server: ModelServer) -> None:
    catch_up(server)
    before = len(server.events())
    for junk in (b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket_to(server) as connection:
            connection.sendall(junk)
            assert received(connection).startswith(b"HTTP/1.1 400 ")
    catch_up(server)
    logged_since = [event for event in server.events()[before:] if event["event"] != MARK]
    assert [event for event in logged_since if "model" not in event] == []


def test_probe_is_answered_while_cores_are_busy(server: ModelServer) -> None:
    is_over = threading.Event()

    def load() -> None:
        with caller_to(server.target) as caller:
            while not is_over.is_set():
                caller.outputs("scale", {"x": np.ones(100_000, np.float32)})

    threads = [threading.Thread(target=load) for _ in range(4 * len(CORES))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert is_ready(server)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not logged(server, "on_http_server_log")
