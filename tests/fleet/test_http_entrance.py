import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleet.http.connections import ConnectionLimits
from fleet.http.entrance import Kind, kind_of
from fleet.http.server import ENTRANCE_CONNECTION_COUNT_MAX, HttpServer
from serving.base.clock import SystemClock, seconds_since
from serving.http.app import HttpSettings, make_http_app
from serving.http.listeners import bind

LIMITS = ConnectionLimits(connection_count_max=8)
TIMEOUT_SECONDS = 60
BURST_COUNT = 400
PROBE = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
OTHER = b"GET /thread HTTP/1.1\r\nHost: h\r\n\r\n"


# --- What is a probe ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("received", "kind"),
    [
        (b"", Kind.UNKNOWN),
        (b"G", Kind.UNKNOWN),
        (b"HEAD", Kind.UNKNOWN),
        (b"GET /healthz HTTP/1.1\r\nHost: h\r\n", Kind.UNKNOWN),
        (b"GET /fleet/status HTTP/1.1", Kind.UNKNOWN),
        (PROBE, Kind.PROBE),
        (PROBE + b"POST", Kind.PROBE),
        (PROBE.replace(b"GET", b"HEAD"), Kind.PROBE),
        (PROBE.replace(b"/healthz", b"/metrics?a=b"), Kind.PROBE),
        (PROBE.replace(b"/healthz", b"/healthz/more"), Kind.OTHER),
        (PROBE.replace(b"/healthz", b"/"), Kind.OTHER),
        (PROBE.replace(b"/healthz", b"/fleet/page"), Kind.OTHER),
        (PROBE.replace(b"Host", b"Content-Length: 3\r\nHost"), Kind.OTHER),
        (PROBE.replace(b"Host", b"transfer-encoding : chunked\r\nHost"), Kind.OTHER),
        (b"P", Kind.OTHER),
        (b"\x16\x03", Kind.OTHER),
        (b"\r\n" + PROBE, Kind.OTHER),
        (b"GET /" + b"x" * 2_000, Kind.OTHER),
        (PROBE[:-2] + b"a: " + b"b" * 500, Kind.OTHER),
    ],
)
def test_kind_of_request_is_known_by_its_head(received: bytes, kind: Kind) -> None:
    assert kind_of(received, 400) is kind


# --- A server -------------------------------------------------------------------------------------


class Held:
    """A handler that holds its whole event loop until `let_go`, of whichever thread."""

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.let_go = threading.Event()

    async def __call__(self, request: Request) -> Response:
        await request.body()
        self.is_held.set()
        self.let_go.wait(TIMEOUT_SECONDS)
        return Response(b"held")


async def healthz(request: Request) -> Response:
    del request
    return Response(threading.current_thread().name)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.let_go.set()


@pytest.fixture
def limits() -> ConnectionLimits:
    return LIMITS


@pytest.fixture
def server(held: Held, limits: ConnectionLimits) -> Iterator[HttpServer]:
    async def hold(request: Request) -> Response:
        return await held(request)

    async def wait(request: Request) -> Response:
        del request
        while not held.let_go.is_set():
            await asyncio.sleep(0.01)
        return Response(b"waited")

    routes = [
        Route("/hold", hold, methods=["POST"]),
        Route("/wait", wait),
        Route("/healthz", healthz),
        Route("/metrics", hold),
        Route("/thread", healthz, methods=["GET", "POST"]),
    ]
    made = HttpServer(
        make_http_app(routes, HttpSettings()),
        lambda: bind("127.0.0.1", 0),
        limits,
    )
    made.start()
    yield made
    held.let_go.set()
    made.stop()
    assert made.join(TIMEOUT_SECONDS)


def connect(server: HttpServer) -> "closing[http.client.HTTPConnection]":
    return closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_SECONDS))


def socket_to(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port or 0), TIMEOUT_SECONDS)


def ask(connection: http.client.HTTPConnection, path: str, method: str = "GET") -> str:
    connection.request(method, path)
    return connection.getresponse().read().decode()


def probe(server: HttpServer) -> str:
    with connect(server) as connection:
        return ask(connection, "/healthz")


def status_of_another(server: HttpServer) -> int:
    """Returns the status of a request on a new connection, which the second loop answers."""
    with connect(server) as connection:
        connection.request("GET", "/thread")
        return connection.getresponse().status


def responses(connection: socket.socket, count: int) -> bytes:
    received = b""
    while received.count(b"HTTP/1.1 ") < count or not received.endswith((b"http", b"entrance")):
        part = connection.recv(65_536)
        assert part, received
        received += part
    return received


def test_probes_have_a_thread_of_their_own(server: HttpServer) -> None:
    with connect(server) as connection:
        assert ask(connection, "/healthz") == "http-entrance"
    with connect(server) as connection:
        assert ask(connection, "/thread") == "http"


def test_connection_may_mix_probes_and_others(server: HttpServer) -> None:
    with connect(server) as connection:
        first = [ask(connection, path) for path in ("/healthz", "/thread", "/healthz")]
        used = connection.sock
        again = ask(connection, "/thread", "POST")
        assert connection.sock is used
    # A connection that was handed over stays there.
    assert [*first, again] == ["http-entrance", "http", "http", "http"]


@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_pipelined_mix_is_answered_in_order(server: HttpServer, size: int) -> None:
    sent = PROBE + PROBE + OTHER + PROBE
    with socket_to(server) as connection:
        for at in range(0, len(sent), size):
            connection.sendall(sent[at : at + size])
        received = responses(connection, 4)
    bodies = [part.rpartition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200")[1:]]
    assert bodies == [b"http-entrance", b"http-entrance", b"http", b"http"]


def test_probe_is_answered_while_the_loop_is_held(server: HttpServer, held: Held) -> None:
    with connect(server) as connection:
        connection.request("POST", "/hold")
        assert held.is_held.wait(TIMEOUT_SECONDS)
        for _ in range(5):
            assert probe(server) == "http-entrance"
        held.let_go.set()
        assert connection.getresponse().read() == b"held"


@pytest.mark.parametrize(
    "half",
    [
        b"POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf",
        b"POST /hold HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: h\r\n",
        b"GET /he",
        b"",
    ],
)
def test_half_sent_requests_keep_no_probe_out(server: HttpServer, half: bytes) -> None:
    count = ENTRANCE_CONNECTION_COUNT_MAX + LIMITS.connection_count_max + 10
    with ExitStack() as clients:
        for _ in range(count):
            clients.enter_context(socket_to(server)).sendall(half)
        assert probe(server) == "http-entrance"
        # There are so many that they need places too. None is lost.
        whole = [clients.enter_context(socket_to(server)) for _ in range(count)]
        for client in whole:
            client.sendall(PROBE)
        assert {responses(client, 1)[-13:] for client in whole} == {b"http-entrance"}


@pytest.mark.parametrize("limits", [ConnectionLimits()])
@pytest.mark.parametrize("sent", [PROBE, OTHER, OTHER.replace(b"GET", b"POST"), PROBE + OTHER])
def test_burst_of_new_connections_loses_none(
    server: HttpServer, held: Held, sent: bytes, limits: ConnectionLimits
) -> None:
    """All requests are in the kernel before the loop accepts the first connection."""
    assert limits.connection_count_max > BURST_COUNT
    with ExitStack() as clients:
        holder = clients.enter_context(socket_to(server))
        holder.sendall(PROBE.replace(b"/healthz", b"/metrics"))
        assert held.is_held.wait(TIMEOUT_SECONDS)
        burst = [clients.enter_context(socket_to(server)) for _ in range(BURST_COUNT)]
        for client in burst:
            client.sendall(sent)
        held.let_go.set()
        for client in burst:
            responses(client, sent.count(b"HTTP/1.1"))


def test_answer_at_a_full_entrance_gives_the_place_up(server: HttpServer) -> None:
    with ExitStack() as clients:
        prober = clients.enter_context(socket_to(server))
        prober.sendall(PROBE)
        assert b"connection: close" not in responses(prober, 1)
        for _ in range(ENTRANCE_CONNECTION_COUNT_MAX - 2):
            clients.enter_context(socket_to(server))
        last = clients.enter_context(socket_to(server))
        last.sendall(PROBE + PROBE)
        received = responses(last, 2)
        # A request that has arrived would be lost with the connection.
        assert received.count(b"connection: close") == 1
        assert last.recv(1) == b""


def test_busy_server_refuses_others_with_a_reason(server: HttpServer) -> None:
    running = OTHER.replace(b"/thread", b"/wait")
    with ExitStack() as clients:
        for _ in range(LIMITS.connection_count_max):
            clients.enter_context(socket_to(server)).sendall(running)
        answer = b""
        refused = clients.enter_context(socket_to(server))
        refused.sendall(OTHER)
        while part := refused.recv(65_536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"all 8 connections are busy" in answer


def test_half_sent_bodies_keep_no_request_out(server: HttpServer) -> None:
    half = b"POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf"
    with ExitStack() as clients:
        for _ in range(LIMITS.connection_count_max):
            clients.enter_context(socket_to(server)).sendall(half)
        clock = SystemClock()
        begin_ns = clock.now_ns()
        # Until the others have had their time.
        while status_of_another(server) == 503:
            assert seconds_since(clock, begin_ns) < TIMEOUT_SECONDS
        for _ in range(3 * LIMITS.connection_count_max):
            assert status_of_another(server) == 200


def test_stop_answers_what_was_handed_over_late(server: HttpServer) -> None:
    with socket_to(server) as begun:
        begun.sendall(OTHER[:10])
        server.stop()
        begun.sendall(OTHER[10:])
        answer = b""
        while part := begun.recv(65_536):
            answer += part
    assert b"connection: close" in answer
    assert answer.endswith(b"\r\n\r\nhttp")


def test_stop_closes_silent_connections_in_time(server: HttpServer) -> None:
    with socket_to(server) as silent:
        server.stop()
        assert silent.recv(1) == b""
    assert server.join(TIMEOUT_SECONDS)
