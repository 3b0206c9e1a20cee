"""Strangers over HTTP: upgrades, smuggled requests, endless parts, and floods."""

import http.client
import json
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.server.http_parts import HTTP_CONNECTION_COUNT_MAX
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, predict_request, wait_until
from tests.integration.processes import CORES
from tests.integration.raw_http import address_of, socket_to
from tests.integration.rest_clients import RestClient

JAVA_SOURCE = Path(__file__).parent / "java" / "DefaultClient.java"
PREDICT = "/v1/models/scale:predict"
BODY = b'{"inputs": [1, 2]}'
ANSWER = {"outputs": {"y": [2, 3], "version": 1}}
HEAD = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n".encode()
POST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
# As many as --rest_api_num_threads has by default.
THREAD_COUNT = 4 * len(CORES)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {"allow_repository_control": True}


@pytest.fixture(scope="module")
def server(slow_and_scale: ModelServer) -> ModelServer:
    return slow_and_scale


def answers(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Reads responses, of which each has a Content-Length, until the server closes."""
    with connection.makefile("rb") as file:
        while line := file.readline():
            fields = http.client.parse_headers(file)
            yield int(line.split()[1]), file.read(int(fields["content-length"]))


def answers_to(server: ModelServer, sent: bytes, count: int) -> list[tuple[int, Any]]:
    """Sends bytes, and returns up to `count` responses."""
    with socket_to(server) as connection:
        connection.sendall(sent)
        found = islice(answers(connection), count)
        return [(status, json.loads(body)) for status, body in found]


def is_probed(server: ModelServer, path: str = "/healthz") -> bool:
    """Returns True if a probe that opens a connection of its own gets 200."""
    with closing(http.client.HTTPConnection(*address_of(server), timeout=TIMEOUT_SECONDS)) as probe:
        probe.request("GET", path)
        return probe.getresponse().status == 200


# --- Upgrade --------------------------------------------------------------------------------------


def test_java_client_is_answered(server: ModelServer) -> None:
    """Java's HttpClient asks for h2c in the first request of each connection."""
    ended = subprocess.run(
        ["java", JAVA_SOURCE, f"{server.url}{PREDICT}", BODY],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    first, probe, again = ended.stdout.splitlines()
    assert first == again
    assert (first[:4], json.loads(first[4:])) == ("200 ", ANSWER)
    assert probe == "200 ok"


def test_curl_with_http2_is_answered(server: ModelServer) -> None:
    command = ["curl", "--silent", "--show-error", "--fail", "--http2"]
    ended = subprocess.run(
        [*command, "--data-binary", BODY, f"{server.url}{PREDICT}"],
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    assert json.loads(ended.stdout) == ANSWER


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("upgrade", [UPGRADE, b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
def test_upgrade_smuggles_no_request(server: ModelServer, is_chunked: bool, upgrade: bytes) -> None:
    """A proxy that lets only predicts pass must not carry an unload within the body of one."""
    inner = (
        b"POST /v2/repository/models/scale/unload HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )
    if is_chunked:
        framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
    else:
        framed = b"Content-Length: %d\r\n\r\n%s" % (len(inner), inner)
    found = answers_to(server, HEAD + upgrade + framed + POST, 2)
    assert [status for status, _ in found] == [400, 200]
    assert "JSON Parse error" in found[0][1]["error"]
    assert found[1][1] == ANSWER
    assert answers_to(server, POST, 1) == [(200, ANSWER)]


# --- Parts without an end -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (CHUNKED + b"0\r\n", b"a: b\r\n" * 1_000),
        (CHUNKED + b"0\r\na: ", b"b" * 10_000),
        (CHUNKED + b"2;", b"x" * 10_000),
        (CHUNKED, b"0" * 10_000),
        (HEAD, b"a: b\r\n" * 1_000),
        (HEAD + b"a: ", b"b" * 10_000),
    ],
)
def test_endless_parts_are_refused(server: ModelServer, begin: bytes, endless: bytes) -> None:
    with socket_to(server) as connection:
        connection.sendall(begin)
        # Enough to fill the buffers on the way, so that a server that reads on would be seen.
        with suppress(ConnectionError):
            for _ in range(2_000):
                connection.sendall(endless)
            pytest.fail("the server took 20 MB")
    assert is_probed(server)


def test_bad_chunk_is_answered_400_and_closed(server: ModelServer) -> None:
    found = answers_to(server, CHUNKED + b"zz\r\n" + POST, 9)
    assert [status for status, _ in found] == [400]


@pytest.mark.parametrize(
    "hosts",
    [
        b"",
        b"Host: localhost:80@evil.com\r\n",
        b"Host: localhost\r\nHost: localhost\r\n",
        b"Host: local host\r\n",
    ],
)
def test_unclear_host_is_answered_400_and_closed(server: ModelServer, hosts: bytes) -> None:
    for path in (b"/healthz", b"/v1/models"):
        head = b"GET " + path + b" HTTP/1.1\r\n" + hosts + b"\r\n"
        found = answers_to(server, head + POST, 9)
        assert [status for status, _ in found] == [400]


# --- Floods ---------------------------------------------------------------------------------------


@contextmanager
def client_of(server: ModelServer, sent: bytes) -> Iterator[socket.socket]:
    """Sends at once, because a connection that says nothing may lose its place to another client."""
    with socket_to(server) as client:
        client.sendall(sent)
        yield client


def test_half_sent_requests_keep_no_probe_out(server: ModelServer) -> None:
    places = HTTP_CONNECTION_COUNT_MAX
    with ExitStack() as clients:
        half = HEAD + b"Content-Length: 100\r\n\r\n{"
        halves = [clients.enter_context(client_of(server, half)) for _ in range(places + 100)]
        for path in ("/healthz", "/readyz?model=scale", "/metrics", "/v2/health/live"):
            assert is_probed(server, path), path
        assert is_probed(server, "/v1/models/scale")
        for _ in range(20):
            assert answers_to(server, POST, 1) == [(200, ANSWER)]
        # The bodies that come slowest lose their places, once they had a little time.
        answered = select.poll()
        by_number = {client.fileno(): client for client in halves}
        for number in by_number:
            answered.register(number, select.POLLIN)
        wait_until(
            lambda: answers_to(server, POST, 1) == [(200, ANSWER)] and bool(answered.poll(0)),
            "a place of a slow body",
        )
        ended = [next(iter(answers(by_number[number]))) for number, _ in answered.poll(0)]
        assert any(code == 408 and b"came slowest" in answer for code, answer in ended), ended


@pytest.mark.parametrize("sent", [POST, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_burst_of_new_connections_loses_none(server: ModelServer, sent: bytes) -> None:
    with ExitStack() as clients:
        burst = [clients.enter_context(client_of(server, sent)) for _ in range(400)]
        assert [client.recv(15) for client in burst] == [b"HTTP/1.1 200 OK"] * len(burst)


def test_tiny_chunks_keep_no_probe_out(server: ModelServer) -> None:
    is_over = threading.Event()

    def send() -> None:
        tiny = b"1\r\n \r\n" * 10_000
        while not is_over.is_set():
            with socket_to(server) as client, suppress(OSError):
                client.sendall(CHUNKED)
                while not is_over.is_set():
                    client.sendall(tiny)

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    try:
        for _ in range(10):
            assert is_probed(server)
    finally:
        is_over.set()
        for sender in senders:
            sender.join()


def test_pipelined_requests_are_all_answered(server: ModelServer) -> None:
    count = 3_000
    with socket_to(server) as connection:
        sender = threading.Thread(target=connection.sendall, args=(POST * count,))
        sender.start()
        found = list(islice(answers(connection), count))
        sender.join()
    assert [status for status, _ in found] == [200] * count
    assert {body for _, body in found} == {found[0][1]}


@contextmanager
def endless_requests(server: ModelServer) -> Iterator[list[socket.socket]]:
    """Sends more requests of one model that never end than there are threads."""
    body = b'{"inputs": {"seconds": Infinity}}'
    head = b"POST /v1/models/slow:predict HTTP/1.1\r\nHost: localhost\r\n"
    endless = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with ExitStack() as clients:
        yield [clients.enter_context(client_of(server, endless)) for _ in range(THREAD_COUNT + 8)]


@contextmanager
def flood_of_pages(server: ModelServer) -> Iterator[None]:
    """Keeps the queue of what Python answers full, but for the probes."""
    is_over = threading.Event()

    def ask() -> None:
        with socket_to(server) as client:
            # It ends with the last test, if the server reads no more.
            client.settimeout(TIMEOUT_SECONDS)
            while not is_over.is_set():
                client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 8)
                list(islice(answers(client), 8))

    askers = [threading.Thread(target=ask) for _ in range(8)]
    for asker in askers:
        asker.start()
    try:
        yield
    finally:
        is_over.set()
        for asker in askers:
            asker.join()


def test_endless_requests_of_one_model_stop_no_other(server: ModelServer) -> None:
    with endless_requests(server) as endless:
        for _ in range(20):
            assert answers_to(server, POST, 1) == [(200, ANSWER)]
        answered, _, _ = select.select(endless, [], [], 0)
        assert not answered


@pytest.mark.parametrize(
    "path",
    [
        *("/healthz", "/readyz", "/readyz?model=scale", "/v2/health/ready", "/metrics"),
        *("/v1/models/scale", "/v1/models/scale/metadata"),
        *("/v2/models/scale", "/v2/models/scale/ready"),
    ],
)
def test_question_is_answered_however_busy(server: ModelServer, path: str) -> None:
    with endless_requests(server), flood_of_pages(server):
        for _ in range(5):
            assert is_probed(server, path)


# --- Clients of OpenVINO's server -----------------------------------------------------------------


def test_version_zero_is_the_default_version(server: ModelServer) -> None:
    """OpenVINO's ovmsclient sends 0 if its caller names no version."""
    http_ = RestClient(server)
    status, answer, headers = http_.ask(
        "POST", "/v1/models/scale/versions/0:predict", {"inputs": [1, 2]}
    )
    assert (status, answer, headers["x-millpond-model-version"]) == (200, ANSWER, "1")
    assert http_.ask("GET", "/v1/models/scale/versions/0")[0] == 200
    assert http_.ask("GET", "/v1/models/scale/versions/0/metadata")[0] == 200
    request = predict_request("scale", {"x": np.array([1], np.float32)}, version=0)
    with caller_to(server.target) as caller:
        assert caller.predict(request).model_spec.version.value == 1
