import asyncio
import errno
import gc
import http.client
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from structlog.testing import capture_logs

from fleet.http.server import HttpServer, LoopErrorLog, StructlogHandler
from serving.base.errors import InvalidConfig, Unavailable
from serving.http.app import HttpSettings, make_http_app
from serving.http.listeners import accept_waiting, bind, refuse_handshakes


async def hello(request: Request) -> Response:
    del request
    return Response(b"hello")


MakeServer = Callable[..., HttpServer]


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    servers: list[HttpServer] = []

    def make(*routes: Route, host: str = "127.0.0.1") -> HttpServer:
        app = make_http_app([Route("/hello", hello), *routes], HttpSettings())
        servers.append(HttpServer(app, lambda: bind(host, 0)))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()
        assert server.join(10)


def connect(server: HttpServer, host: str = "127.0.0.1") -> "closing[http.client.HTTPConnection]":
    return closing(http.client.HTTPConnection(host, server.port, timeout=30))


def get(server: HttpServer, path: str = "/hello", host: str = "127.0.0.1") -> tuple[int, bytes]:
    with connect(server, host) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


# --- Start and stop -------------------------------------------------------------------------------


def test_http_server_answers_once_it_is_started(make_server: MakeServer) -> None:
    server = make_server()
    assert server.port is None
    server.start()
    assert get(server) == (200, b"hello")


def test_http_server_leaks_no_thread_or_descriptor(make_server: MakeServer) -> None:
    threads = set(threading.enumerate())
    descriptors = os.listdir("/proc/self/fd")
    server = make_server(Route("/blocking", lambda request: Response(b"")))
    server.start()
    get(server, "/blocking")
    with connect(server) as idle:
        idle.connect()
        server.stop()
        assert server.join(10)
    # The thread of a blocking handler is notified of the end, and the server does not wait for it.
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_http_server_stop_completes_long_responses(make_server: MakeServer) -> None:
    may_end = threading.Event()

    async def long(request: Request) -> Response:
        del request

        async def parts() -> AsyncIterator[bytes]:
            yield b"first "
            assert await asyncio.to_thread(may_end.wait, 60)
            yield b"last"

        return StreamingResponse(parts())

    server = make_server(Route("/long", long))
    server.start()
    with connect(server) as connection:
        connection.request("GET", "/long")
        response = connection.getresponse()
        assert response.read(6) == b"first "
        server.stop(60)
        may_end.set()
        assert response.read() == b"last"
    assert server.join(10)


def test_http_server_stop_refuses_new_connections(make_server: MakeServer) -> None:
    server = make_server()
    server.start()
    server.stop()
    assert server.join(10)
    with pytest.raises(ConnectionRefusedError):
        get(server)


def test_http_server_stop_answers_unaccepted(
    make_server: MakeServer,
) -> None:
    is_held, may_go_on = threading.Event(), threading.Event()

    async def hold(request: Request) -> Response:
        """Blocks the whole event loop, so that no connection is accepted meanwhile."""
        del request
        is_held.set()
        may_go_on.wait(60)
        return Response(b"held")

    server = make_server(Route("/hold", hold))
    server.start()
    with ExitStack() as clients:
        holder = clients.enter_context(connect(server))
        holder.request("GET", "/hold")
        assert is_held.wait(60)
        waiting = [clients.enter_context(connect(server)) for _ in range(5)]
        for client in waiting:
            client.request("GET", "/hello")
        server.stop(60)
        may_go_on.set()
        responses = [client.getresponse() for client in waiting]
        assert [response.read() for response in responses] == [b"hello"] * 5
        assert [response.headers["Connection"] for response in responses] == ["close"] * 5
    assert server.join(60)


def test_listener_refuses_handshakes_keeps_connections() -> None:
    listener = bind("127.0.0.1", 0)[0]
    listener.setblocking(False)
    with closing(listener), socket.socket() as early, socket.socket() as late:
        early.connect(listener.getsockname())
        try:
            refuse_handshakes(listener)
        except OSError:
            pytest.skip("this kernel has no socket filters")
        late.setblocking(False)
        assert late.connect_ex(listener.getsockname()) == errno.EINPROGRESS
        accepted = accept_waiting(listener)
        assert [item.getpeername() for item in accepted] == [early.getsockname()]
        with closing(accepted[0]):
            early.sendall(b"heard")
            assert wait_readable(accepted[0])
            assert accepted[0].recv(16) == b"heard"


def wait_readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 60)[0])


def test_http_server_cuts_endless_response_logs_once(
    make_server: MakeServer,
) -> None:
    async def endless(request: Request) -> Response:
        del request

        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.Event().wait()

        return StreamingResponse(parts())

    server = make_server(Route("/endless", endless))
    server.start()
    with capture_logs() as logs, connect(server) as connection:
        connection.request("GET", "/endless")
        assert connection.getresponse().read(5) == b"first"
        server.stop(0)
        assert server.join(10)
    assert [log["event"] for log in logs] == ["on_http_server_log"]
    assert "running task" in logs[0]["message"]


def test_http_server_stop_leaves_unreading_client(make_server: MakeServer) -> None:
    gc.collect()  # Closes the leftovers of earlier tests.
    descriptors = os.listdir("/proc/self/fd")
    server = make_server(Route("/large", lambda request: Response(bytes(32 * 2**20))))
    server.start()
    with connect(server) as connection:
        connection.request("GET", "/large")
        connection.getresponse().read(1)
        server.stop(0)
        assert server.join(10)
        connection.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_death_of_the_loop_turns_probes_red(make_server: MakeServer) -> None:
    """Probes have another loop, which must not say that all is well."""

    async def die(request: Request) -> Response:
        del request
        asyncio.get_running_loop().call_soon(sys.exit)
        return Response(b"")

    server = make_server(Route("/healthz", hello), Route("/die", die))
    server.start()
    assert get(server, "/healthz") == (200, b"hello")
    with connect(server) as kept, capture_logs() as lines:
        kept.request("GET", "/healthz")
        assert kept.getresponse().read() == b"hello"
        assert get(server, "/die") == (200, b"")
        assert server.join(30)
        with pytest.raises(ConnectionRefusedError):
            get(server, "/healthz")
        # A probe that keeps its connection sees it too.
        assert kept.sock is not None
        assert kept.sock.recv(1) == b""
    assert [line["event"] for line in lines] == ["http_server_died"]


def test_http_server_that_was_never_started_stops(make_server: MakeServer) -> None:
    server = make_server()
    server.stop()
    assert server.join()


def test_http_server_keeps_signals_lowers_own_thread(
    make_server: MakeServer,
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    own_nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    nice: list[int] = []

    async def own_priority(request: Request) -> Response:
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return Response(b"")

    server = make_server(Route("/nice", own_priority))
    server.start()
    get(server, "/nice")
    assert nice == [10]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own_nice
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


# --- The port -------------------------------------------------------------------------------------


def test_bind_taken_port_names_address_and_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            Unavailable,
            match=rf"HTTP on 127\.0\.0\.1:{port}: Address already in use; .* --rest_api_port",
        ):
            bind("127.0.0.1", port)


def test_bind_unknown_host_is_refused() -> None:
    with pytest.raises((InvalidConfig, Unavailable), match=r"HTTP on no\.such\.host\.invalid:0: "):
        bind("no.such.host.invalid", 0)


def test_bind_forbidden_port_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **options: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(InvalidConfig, match=r"127\.0\.0\.1:80: Permission denied"):
        bind("127.0.0.1", 80)


def test_bind_listens_without_delayed_acks() -> None:
    (listener,) = bind("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_http_server_on_a_wildcard_takes_ipv4_and_ipv6(make_server: MakeServer, host: str) -> None:
    server = make_server(host=host)
    server.start()
    assert get(server)[0] == 200
    if socket.has_dualstack_ipv6():
        assert get(server, host="::1")[0] == 200


def test_http_server_listens_on_all_addresses_of_name(make_server: MakeServer) -> None:
    server = make_server(host="localhost")
    server.start()
    assert get(server, host="localhost") == (200, b"hello")


# --- The log --------------------------------------------------------------------------------------


def record(message: str, level: int, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, None) if error else None
    return logging.LogRecord("uvicorn.error", level, "", 0, message, (), exc_info)


def test_log_handler_passes_errors_on_with_their_cause() -> None:
    error = ValueError("halfway")
    with capture_logs() as logs:
        StructlogHandler().emit(record("Exception in ASGI application\n", logging.ERROR, error))
    assert logs == [
        {
            "event": "on_http_server_log",
            "log_level": "error",
            "message": "Exception in ASGI application",
            "exc_info": error,
        }
    ]


def test_log_handler_is_silent_about_clients_faults(make_server: MakeServer) -> None:
    server = make_server()
    server.start()
    with capture_logs() as logs:
        with socket.create_connection(("127.0.0.1", server.port or 0)) as junk:
            junk.sendall(b"junk\r\n\r\n")
            assert junk.recv(12) == b"HTTP/1.1 400"
        get(server)
    assert logs == []


def test_client_commands_do_not_import_the_http_server() -> None:
    code = (
        "import sys\n"
        "import serving.commands.cli, serving.client, serving.server.model_server, serving.config.flags\n"
        "import serving.commands.status, serving.commands.serve\n"
        "sys.exit(any(name in sys.modules for name in ('uvicorn', 'starlette', 'httptools')))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


class Loop:
    """An event loop that only has a time."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


def test_lack_of_descriptors_is_logged_once_a_second() -> None:
    log, loop = LoopErrorLog(), cast("Any", Loop())
    lack = {"message": "socket.accept() out of system resource", "exception": OSError(24, "EMFILE")}
    with capture_logs() as lines:
        for now in (100.0, 100.0, 100.9, 101.0, 101.5):
            loop.now = now
            log(loop, lack)
    assert [line["event"] for line in lines] == ["connection_not_accepted"] * 2


def test_other_loop_errors_are_all_logged() -> None:
    log, loop = LoopErrorLog(), cast("Any", Loop())
    with capture_logs() as lines:
        for _ in range(2):
            log(loop, {"message": "a bug", "exception": ValueError("x")})
    assert [line["message"] for line in lines] == ["a bug"] * 2
