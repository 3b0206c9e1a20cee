import json
from asyncio import AbstractEventLoop, Transport
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from serving.http.connections import (
    FIRST_REQUEST_SECONDS,
    ConnectionLimits,
    GuardedConnection,
    connection_class,
    longest_idle,
)

LIMITS = ConnectionLimits(
    head_bytes_max=200,
    head_seconds=10,
    keep_alive_seconds=75,
    write_stall_seconds=30,
    connection_count_max=2,
)
REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


@dataclass
class FakeTimer:
    due: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeTask:
    """A request that is being answered; a test ends it."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Ignores the callback: the task never ends by itself."""

    def run(self) -> None:
        with pytest.raises(StopIteration):
            self.coroutine.send(None)


class FakeLoop:
    """An event loop with a time that stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.tasks: list[FakeTask] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + delay, callback))
        return self.timers[-1]

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> FakeTask:
        self.tasks.append(FakeTask(coroutine))
        return self.tasks[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in list(self.timers):
            if timer.due <= self.now and not timer.is_cancelled:
                timer.cancel()
                timer.callback()


@dataclass
class FakeTransport:
    """A client's view: the received bytes, and True once the server has closed the connection."""

    written: bytes = b""
    is_closed: bool = False
    is_aborted: bool = False
    buffer_limits: dict[str, int] = field(default_factory=dict)

    def get_extra_info(self, name: str) -> None:
        """Returns no information: the fake connection has none."""

    def set_write_buffer_limits(self, **limits: int) -> None:
        self.buffer_limits = limits

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Uvicorn's flow control calls this."""

    def resume_reading(self) -> None:
        """Uvicorn's flow control calls this."""

    @property
    def status(self) -> int | None:
        return int(self.written.split()[1]) if self.written else None

    @property
    def error(self) -> str:
        text: str = json.loads(self.written.partition(b"\r\n\r\n")[2])["error"]
        return text


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """The application: answers everything with 204."""
    del scope, receive
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Connections:
    """The connections of one server."""

    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        self.loop = FakeLoop()
        self._is_stopping = False
        self._class = connection_class(limits, lambda: self._is_stopping)
        self._state = ServerState()
        self._config = uvicorn.Config(
            answer,
            http=self._class,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            timeout_keep_alive=limits.keep_alive_seconds,
        )
        self._config.load()

    def connect(self) -> tuple[GuardedConnection, FakeTransport]:
        connection = self._class(
            config=self._config,
            server_state=self._state,
            app_state={},
            _loop=cast(AbstractEventLoop, self.loop),
        )
        transport = FakeTransport()
        connection.connection_made(cast(Transport, transport))
        return connection, transport

    def answer(self) -> None:
        """Runs the pending requests."""
        for task in self.loop.tasks:
            task.run()
        self.loop.tasks.clear()

    def stop(self, connection: GuardedConnection) -> None:
        """Stops the server, which has this connection."""
        self._is_stopping = True
        connection.shutdown()

    def close(self) -> None:
        """Closes the coroutines that a test has not run."""
        for task in self.loop.tasks:
            task.coroutine.close()


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()


def test_connection_answers_and_stays_open(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST)
    assert not connection.is_idle
    connections.answer()
    assert (transport.status, transport.is_closed, connection.is_idle) == (204, False, True)


# --- Time -----------------------------------------------------------------------------------------


def test_silent_connection_is_closed_without_reply(connections: Connections) -> None:
    _, transport = connections.connect()
    connections.loop.advance(9.9)
    assert not transport.is_closed
    connections.loop.advance(0.2)
    assert (transport.is_closed, transport.written) == (True, b"")


def test_slow_head_is_answered_408(
    connections: Connections,
) -> None:
    connection, transport = connections.connect()
    for byte in REQUEST[:10]:
        connections.loop.advance(0.9)
        connection.data_received(bytes([byte]))
    assert not transport.is_closed
    connections.loop.advance(1.1)
    assert (transport.status, transport.is_closed) == (408, True)
    assert transport.error == "no complete request in 10 s"


def test_slow_second_head_is_answered_408(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST)
    connections.answer()
    transport.written = b""
    connections.loop.advance(50)
    assert not transport.is_closed
    connection.data_received(REQUEST[:5])
    connections.loop.advance(10)
    assert (transport.status, transport.is_closed) == (408, True)


def test_request_that_is_being_answered_is_not_hurried(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST)
    connections.loop.advance(1_000)
    assert not transport.is_closed
    connections.answer()
    assert transport.status == 204


def test_partial_next_head_keeps_response_whole(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST + REQUEST[:5])
    connections.loop.advance(1_000)
    assert not transport.is_closed
    connections.answer()
    assert transport.status == 204


def test_idle_connection_is_kept_for_while_then_closed(
    connections: Connections,
) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST)
    connections.answer()
    connections.loop.advance(74)
    assert not transport.is_closed
    connections.loop.advance(2)
    assert transport.is_closed


@pytest.mark.parametrize("trickle", [b"x", b"\r\n"])
def test_unread_bytes_do_not_keep_connection(connections: Connections, trickle: bytes) -> None:
    connection, transport = connections.connect()
    body = b"Content-Length: 1000\r\n" if trickle == b"x" else b""
    connection.data_received(b"POST / HTTP/1.1\r\nHost: h\r\n" + body + b"\r\n")
    connections.answer()
    for _ in range(10):
        connection.data_received(trickle)
        connections.loop.advance(1)
    assert transport.is_closed


def test_client_that_reads_nothing_is_cut_off(connections: Connections) -> None:
    connection, transport = connections.connect()
    assert transport.buffer_limits == {"high": 0}
    connection.pause_writing()
    connections.loop.advance(29)
    connection.resume_writing()
    connections.loop.advance(29)
    assert not transport.is_aborted
    connection.pause_writing()
    connections.loop.advance(30)
    assert transport.is_aborted


def test_connection_that_is_lost_leaves_no_timer(connections: Connections) -> None:
    connection, _ = connections.connect()
    connection.data_received(REQUEST[:5])
    connection.pause_writing()
    connection.connection_lost(None)
    assert all(timer.is_cancelled for timer in connections.loop.timers)


# --- Size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", REQUEST[:10]])
def test_stop_answers_first_request_of_connection(connections: Connections, sent: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(sent)
    connections.stop(connection)
    connection.data_received(REQUEST[len(sent) :])
    connections.answer()
    assert transport.status == 204
    assert b"connection: close\r\n" in transport.written
    assert transport.is_closed


def test_stop_answers_a_later_request_that_has_begun(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST)
    connections.answer()
    connection.data_received(REQUEST[:10])
    connections.stop(connection)
    assert not transport.is_closed
    transport.written = b""
    connection.data_received(REQUEST[10:])
    connections.answer()
    assert transport.status == 204
    assert transport.is_closed


def test_stop_closes_an_idle_connection_at_once(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST)
    connections.answer()
    connections.stop(connection)
    assert transport.is_closed


def test_stop_closes_silent_new_connection(connections: Connections) -> None:
    connection, transport = connections.connect()
    connections.stop(connection)
    are_closed = []
    for seconds in (FIRST_REQUEST_SECONDS - 0.01, 0.02):
        connections.loop.advance(seconds)
        are_closed.append(transport.is_closed)
    assert are_closed == [False, True]
    assert transport.written == b""


def test_stop_lets_a_first_request_take_its_time(connections: Connections) -> None:
    connection, transport = connections.connect()
    connections.stop(connection)
    connection.data_received(REQUEST)
    connections.loop.advance(FIRST_REQUEST_SECONDS + 0.01)
    assert not transport.is_closed
    connections.answer()
    assert transport.status == 204


def test_connection_lost_at_a_stop_leaves_no_timer(connections: Connections) -> None:
    connection, _ = connections.connect()
    connections.stop(connection)
    connection.connection_lost(None)
    assert all(timer.is_cancelled for timer in connections.loop.timers)


def head_of(byte_count: int) -> bytes:
    """Returns a head with so many bytes of line, names and values."""
    return b"GET / HTTP/1.1\r\na: " + b"x" * (byte_count - len("/a")) + b"\r\n\r\n"


@pytest.mark.parametrize(("byte_count", "status"), [(200, 204), (201, 431)])
def test_complete_head_is_taken_up_to_the_limit(
    connections: Connections, byte_count: int, status: int
) -> None:
    connection, transport = connections.connect()
    connection.data_received(head_of(byte_count))
    connections.answer()
    assert transport.status == status
    assert transport.is_closed is (status == 431)


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\na: ", b"GET / HTTP/1.1\r\n"])
def test_head_without_end_is_refused_at_the_limit(connections: Connections, begin: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(begin)
    for _ in range(20):
        connection.data_received(b"x" * 10)
    assert (transport.status, transport.is_closed) == (431, True)
    assert transport.error == "the request line and headers are longer than 200 bytes; shorten them"
    assert connections.loop.tasks == []


def test_heads_in_pieces_are_each_measured_alone(connections: Connections) -> None:
    connection, transport = connections.connect()
    for _ in range(20):
        connection.data_received(REQUEST[:15])
        connection.data_received(REQUEST[15:])
        connections.answer()
    assert not transport.is_closed
    assert transport.written.count(b" 204 ") == 20


def test_large_next_head_keeps_response_whole(
    connections: Connections,
) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST)
    connection.data_received(head_of(300)[:-4])
    assert (transport.written, transport.is_closed) == (b"", True)


def test_refused_head_takes_its_body_with_it(
    connections: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    connection, transport = connections.connect()
    large = head_of(300).replace(b"GET", b"POST")[:-2] + b"Content-Length: 3\r\n\r\nabc"
    connection.data_received(large)
    connection.data_received(REQUEST)
    assert transport.status == 431
    assert connections.loop.tasks == []
    assert caplog.records == []


def test_large_body_does_not_count_as_head(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(9):
        connection.data_received(b"x" * 100)
    # The end of the body and the start of the next head arrive together.
    connection.data_received(b"x" * 100 + b"GET /" + b"x" * 150)
    assert not transport.is_closed


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n"])
def test_foreign_protocol_is_answered_400_with_json(connections: Connections, junk: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(junk)
    assert (transport.status, transport.is_closed) == (400, True)
    assert transport.error == "Invalid HTTP request received."


# --- Number ---------------------------------------------------------------------------------------


def test_new_connection_replaces_longest_idle(connections: Connections) -> None:
    used, used_transport = connections.connect()
    connections.loop.advance(1)
    _, silent_transport = connections.connect()
    connections.loop.advance(1)
    used.data_received(REQUEST)
    connections.answer()
    _, new_transport = connections.connect()
    assert silent_transport.is_closed
    assert not used_transport.is_closed
    assert not new_transport.is_closed


def test_new_connection_is_refused_if_all_are_busy(connections: Connections) -> None:
    transports = []
    for _ in range(3):
        connection, transport = connections.connect()
        connection.data_received(REQUEST)
        transports.append(transport)
    assert [transport.is_closed for transport in transports] == [False, False, True]
    assert transports[2].status == 503
    assert transports[2].error == "all 2 connections are busy; try again later"


def test_longest_idle_of_busy_connections_is_none(connections: Connections) -> None:
    connection, _ = connections.connect()
    assert longest_idle([connection]) is connection
    connection.data_received(REQUEST)
    assert longest_idle([connection]) is None


# --- Bodies with an ambiguous end -----------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, gzip",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked",
    ],
)
def test_odd_transfer_encoding_is_answered_400(connections: Connections, headers: bytes) -> None:
    connection, transport = connections.connect()
    head = b"POST / HTTP/1.1\r\nHost: h\r\n" + headers + b"\r\n\r\n"
    connection.data_received(head + b"3\r\nabc\r\n0\r\n\r\n")
    assert (transport.status, transport.is_closed) == (400, True)
    assert "Transfer-Encoding" in transport.error
    assert "send 'chunked' alone" in transport.error
    assert not connections.loop.tasks


def test_chunked_body_is_answered(connections: Connections) -> None:
    connection, transport = connections.connect()
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
    connection.data_received(head + b"3\r\nabc\r\n0\r\n\r\n")
    connections.answer()
    assert transport.status == 204
