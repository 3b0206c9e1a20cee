import asyncio
import itertools
import socket
from asyncio import Transport
from collections.abc import Iterator
from typing import Any, cast

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from fleet.http.connections import (
    FIRST_REQUEST_SECONDS,
    PIECE_BYTES,
    PIPELINED_COUNT_MAX,
    SILENT_SECONDS,
    ConnectionLimits,
    GuardedConnection,
    connection_class,
    longest_idle,
)
from tests.fleet.fakes.http_connections import LIMITS, Connections, FakeTransport

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


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
    """Returns a head with so many bytes of target, names and values."""
    named = byte_count - len("/hosth" + "a")
    return b"GET / HTTP/1.1\r\nHost: h\r\na: " + b"x" * named + b"\r\n\r\n"


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


def test_large_next_head_is_refused_after_the_answer(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST)
    connection.data_received(head_of(300)[:-4])
    assert (transport.written, transport.is_closed) == (b"", False)
    connections.answer()
    assert transport.statuses == [204, 431]
    assert transport.is_closed


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
    connection.data_received(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")
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


def test_new_connection_replaces_no_other_new_one(connections: Connections) -> None:
    """The kernel may have their requests already, and closing them would lose these."""
    transports = []
    for _ in range(3):
        transports.append(connections.connect()[1])
        connections.loop.advance(SILENT_SECONDS / 10)
    assert [transport.is_closed for transport in transports] == [False, False, True]
    assert transports[2].status == 503
    connections.loop.advance(2 * SILENT_SECONDS)
    assert not connections.connect()[1].is_closed
    assert [transport.is_closed for transport in transports] == [True, False, True]


def half_sent(
    connections: Connections, body: bytes = b""
) -> tuple[GuardedConnection, FakeTransport]:
    """Returns a connection that waits for the rest of a body, of which a part has come."""
    connection, transport = connections.connect()
    connection.data_received(POST.replace(b"5", b"1000").removesuffix(b"hello") + body)
    return connection, transport


def test_new_connection_replaces_the_slowest_body(connections: Connections) -> None:
    _, fast = half_sent(connections, b"x" * 500)
    _, slow = half_sent(connections, b"x" * 10)
    connections.loop.advance(2 * SILENT_SECONDS)
    taken, transport = connections.connect()
    assert (fast.is_closed, slow.is_closed, slow.statuses) == (False, True, [408])
    assert "came slowest while all 2 connections were busy" in slow.error
    taken.data_received(REQUEST)
    connections.answer()
    assert transport.statuses == [204]


def test_new_connection_replaces_no_new_body(connections: Connections) -> None:
    """The rest of it may be on its way."""
    halves = [half_sent(connections)[1] for _ in range(2)]
    assert connections.connect()[1].status == 503
    assert not any(half.is_closed for half in halves)


def test_body_that_the_server_has_not_read_is_kept(connections: Connections) -> None:
    client, server_end = socket.socketpair()
    with client, server_end:
        connection, transport = connections.connect(server_end)
        connection.data_received(POST.removesuffix(b"hello"))
        busy, _ = connections.connect()
        busy.data_received(REQUEST)
        connections.loop.advance(2 * SILENT_SECONDS)
        client.sendall(b"hello")
        assert connections.connect()[1].status == 503
        assert not transport.is_closed


def test_request_that_runs_keeps_its_place(connections: Connections) -> None:
    for _ in range(2):
        connections.connect()[0].data_received(REQUEST + POST[:-2])
    connections.loop.advance(2 * SILENT_SECONDS)
    assert connections.connect()[1].status == 503


def test_connection_with_unread_bytes_is_kept(connections: Connections) -> None:
    client, server_end = socket.socketpair()
    with client, server_end:
        connection, transport = connections.connect(server_end)
        connection.data_received(REQUEST)
        connections.answer()
        connections.connect()
        connections.loop.advance(2 * SILENT_SECONDS)
        client.sendall(REQUEST)
        connections.connect()
        assert not transport.is_closed
        server_end.recv(len(REQUEST))
        connections.connect()
        assert transport.is_closed


def test_longest_idle_of_busy_connections_is_none(connections: Connections) -> None:
    connection, _ = connections.connect()
    assert longest_idle([connection]) is None
    connections.loop.advance(2 * SILENT_SECONDS)
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


def test_bare_line_feeds_are_no_http(connections: Connections) -> None:
    """The entrance finds the end of a head by its empty line, so the parser must agree on that."""
    connection, transport = connections.connect()
    connection.data_received(b"GET / HTTP/1.1\nHost: h\n\nPOST / HTTP/1.1\nHost: h\n\n\r\n\r\n")
    assert (transport.statuses, connections.loop.tasks) == ([400], [])


@pytest.mark.parametrize(
    "chunk",
    [
        b"xyz\r\nabc\r\n",
        b"-3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"3\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
    ],
)
def test_bad_chunk_is_answered_400_and_closed(connections: Connections, chunk: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(CHUNKED)
    connection.data_received(chunk + REQUEST)
    assert (transport.statuses, transport.is_closed) == ([400], True)
    assert "RFC 9112, 7.1" in transport.error


def test_bad_chunk_waits_for_answers_before(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(REQUEST + CHUNKED + b"xyz\r\n" + REQUEST)
    assert transport.written == b""
    connections.answer()
    assert (transport.statuses, transport.is_closed) == ([204, 400], True)
    assert connections.loop.tasks == []


def test_bad_chunk_after_the_answer_closes(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(CHUNKED)
    connections.answer()
    connection.data_received(b"xyz\r\n")
    assert (transport.statuses, transport.is_closed) == ([204], True)


# --- Upgrade --------------------------------------------------------------------------------------

UPGRADES = [
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    b"UPGRADE: websocket\r\nconnection: keep-alive, uPgRaDe\r\n",
    b"Upgrade: a\r\nUpgrade: b\r\nConnection: upgrade\r\n",
]
INNER = b"POST /inner HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"


def targets_of(connections: Connections) -> list[str]:
    """Returns the paths of the requests that the application got."""
    return [scope["path"] for scope in connections.scopes]


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("is_chunked", [True, False])
def test_body_of_an_upgrade_is_no_request(
    connections: Connections, upgrade: bytes, size: int, is_chunked: bool
) -> None:
    connection, transport = connections.connect()
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(INNER)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(INNER), INNER) if is_chunked else INNER
    sent = b"POST /outer HTTP/1.1\r\nHost: h\r\n" + upgrade + framing + b"\r\n\r\n" + body
    sent += sent.replace(b"/outer", b"/second")
    for at in range(0, len(sent), size):
        connection.data_received(sent[at : at + size])
    connections.answer()
    assert targets_of(connections) == ["/outer", "/second"]
    assert connections.bodies == [INNER, INNER]
    assert transport.statuses == [204, 204]
    assert not transport.is_closed


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH"])
def test_upgrade_is_ignored_for_each_method(connections: Connections, method: str) -> None:
    connection, transport = connections.connect()
    head = f"{method} / HTTP/1.1\r\nHost: h\r\nX: y\r\n".encode() + UPGRADES[0] + b"\r\n"
    connection.data_received(head * 2)
    connections.answer()
    assert transport.statuses == [204, 204]
    assert dict(connections.scopes[0]["headers"]) == {
        b"host": b"h",
        b"x": b"y",
        b"connection": b"Upgrade",
    }


def test_connect_is_refused(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n" + REQUEST)
    assert (transport.statuses, transport.is_closed) == ([501], True)
    assert connections.loop.tasks == []


# --- Bytes beside bodies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endless",
    [
        b"a: b\r\n",
        b"a" * 50,
        b"a: " + b"b" * 50,
    ],
)
def test_endless_trailers_are_refused(connections: Connections, endless: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(CHUNKED + b"3\r\nabc\r\n0\r\n")
    sent = 0
    while not transport.is_closed and sent < 10_000:
        connection.data_received(endless)
        sent += len(endless)
    assert transport.statuses == [431]
    assert sent <= LIMITS.head_bytes_max + 200


@pytest.mark.parametrize("begin", [b"3;", b"0" * 20])
def test_endless_chunk_head_is_refused(connections: Connections, begin: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(CHUNKED + begin)
    for _ in range(100):
        connection.data_received(begin[-1:].replace(b";", b"e") * 10)
    assert transport.statuses == [431]


def test_trailers_within_the_limit_are_dropped(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(CHUNKED + b"3\r\nabc\r\n0\r\nX-Check: 1\r\n\r\n" + REQUEST)
    connections.answer()
    assert transport.statuses == [204, 204]
    assert b"x-check" not in dict(connections.scopes[0]["headers"])


def test_many_small_chunks_are_a_body(connections: Connections) -> None:
    """Clients that write number by number send so."""
    connection, _ = connections.connect()
    connection.data_received(CHUNKED)
    for _ in range(300):
        connection.data_received(b"1\r\nx\r\n" * 10)
    connection.data_received(b"0\r\n\r\n")
    connections.answer()
    assert connections.bodies == [b"x" * 3_000]


def test_too_many_headers_are_refused(connections: Connections) -> None:
    limits = ConnectionLimits(field_count_max=20)
    allowed, refused = Connections(limits), Connections(limits)
    for made, count in ((allowed, 19), (refused, 20)):
        connection, transport = made.connect()
        connection.data_received(REQUEST[:-2] + b"a:\r\n" * count + b"\r\n")
        made.answer()
        assert transport.status == (204 if made is allowed else 431)
    assert refused.scopes == []


# --- Pipelining -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 1_000, 10**6])
def test_pipelined_requests_are_all_answered(connections: Connections, size: int) -> None:
    connection, transport = connections.connect()
    sent, most_waiting = POST * 3_000, 0
    for at in range(0, len(sent), size):
        connection.data_received(sent[at : at + size])
        most_waiting = max(most_waiting, len(connection.pipeline))
        if not transport.is_reading:
            connections.answer()
    connections.answer()
    assert transport.statuses == [204] * 3_000
    # This application answers before the rest of a body has come.
    assert set(connections.bodies) == {b"hello"}
    assert most_waiting < PIPELINED_COUNT_MAX + PIECE_BYTES / len(POST)


def test_pipelined_bytes_wait_unread(connections: Connections) -> None:
    connection, transport = connections.connect()
    connection.data_received(POST * 100)
    was_reading = transport.is_reading
    connections.answer()
    assert (was_reading, transport.is_reading) == (False, True)
    assert len(transport.statuses) == 100


# --- Host -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        b"h",
        b"h:80",
        b"h:",
        b"",
        b"a-b.c_d:1",
        b"127.0.0.1:8501",
        b"[::1]:8501",
        b"[fe80::1%25eth0]",
        b"%41",
    ],
)
def test_host_of_the_rfc_is_taken(connections: Connections, host: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    connections.answer()
    assert transport.statuses == [204]


@pytest.mark.parametrize(
    "host",
    [
        b"localhost:80@evil.com",
        b"user@localhost",
        b"localhost/evil.com",
        b"localhost?x",
        b"localhost#x",
        b"localhost\\evil.com",
        b"localhost evil.com",
        b"h:80:90",
        b"h:http",
        b"::1",
        b"[::1",
        b"[::1]x",
        b"%4",
        b"h\xff",
    ],
)
def test_bad_host_is_answered_400_and_closed(connections: Connections, host: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert (transport.statuses, transport.is_closed) == ([400], True)
    assert connections.loop.tasks == []


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "without a Host header"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "2 Host headers"),
        (b"GET http://other/ HTTP/1.1\r\nHost: h\r\n\r\n", "names the host 'other'"),
        (b"GET FTP://other/ HTTP/1.1\r\nHost: h\r\n\r\n", "names the host 'other'"),
        (b"GET http://h@other/ HTTP/1.1\r\nHost: h\r\n\r\n", "names the host 'h@other'"),
    ],
)
def test_unclear_host_is_answered_400(connections: Connections, head: bytes, reason: str) -> None:
    connection, transport = connections.connect()
    connection.data_received(head)
    assert transport.statuses == [400]
    assert reason in transport.error


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.0\r\n\r\n", b"GET http://h:1/ HTTP/1.1\r\nHost: H:1\r\n\r\n"],
)
def test_clear_host_is_taken(connections: Connections, head: bytes) -> None:
    connection, transport = connections.connect()
    connection.data_received(head)
    connections.answer()
    assert transport.statuses == [204]


# --- Any requests, in any pieces ------------------------------------------------------------------

Sent = tuple[bytes, str, bytes]
"""The bytes of a request, and the target and body that they mean."""


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """Returns a request of any method, framing and length, which may ask for an upgrade."""
    target = draw(st.sampled_from(["/", "/a", "/v1/models/m:predict"]))
    # A body may look like a request itself.
    body = draw(
        st.sampled_from([b"", b"x", INNER, REQUEST * 3, b"0\r\n\r\n"]) | st.binary(max_size=99)
    )
    fields = draw(st.sampled_from([b"", *UPGRADES]))
    framing = draw(st.sampled_from(["none", "length", "chunked"]))
    if framing == "none":
        method, body, after = draw(st.sampled_from([b"GET", b"POST", b"DELETE"])), b"", b""
    elif framing == "length":
        method, after = b"POST", body
        fields += b"Content-Length: %d\r\n" % len(body)
    else:
        method = b"PUT"
        fields += b"Transfer-Encoding: chunked\r\n"
        size = draw(st.integers(1, 40))
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        extension = draw(st.sampled_from([b"", b";a=b"]))
        chunks = [b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces]
        trailers = draw(
            st.sampled_from([b"", b"X: y\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n"])
        )
        after = b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"
    head = b"%s %s HTTP/1.1\r\nHost: h\r\n%s\r\n" % (method, target.encode(), fields)
    return head + after, target, body


@settings(max_examples=300, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=25), st.lists(st.integers(1, 400), min_size=1))
def test_any_requests_in_any_pieces_are_answered(sent: list[Sent], sizes: list[int]) -> None:
    got: list[tuple[str, bytes]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body += message["body"]
            has_more = message["more_body"]
        got.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> FakeTransport:
        config = uvicorn.Config(
            application, ws="none", lifespan="off", interface="asgi3", log_config=None
        )
        config.load()
        connection = connection_class(ConnectionLimits(), lambda: False)(
            config=config, server_state=ServerState(), app_state={}
        )
        transport = FakeTransport()
        connection.connection_made(cast(Transport, transport))
        left, lengths = b"".join(data for data, _, _ in sent), itertools.cycle(sizes)
        while left:
            size = next(lengths)
            connection.data_received(left[:size])
            left = left[size:]
            await asyncio.sleep(0)
        while len(got) < len(sent) and not transport.is_closed:
            await asyncio.sleep(0)
        connection.connection_lost(None)
        return transport

    transport = asyncio.run(run())
    assert got == [(target, body) for _, target, body in sent]
    assert transport.statuses == [204] * len(sent)
