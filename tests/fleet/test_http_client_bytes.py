"""All that a client can hold over HTTP counts in the server's budget while it exists.

`tests/native/client_bytes_test.cc` has what it can hold over gRPC.
"""

import inspect
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.http.connections import (
    CONNECTION_BYTES,
    FIELD_BYTES,
    NO_MEMORY,
    REQUEST_BYTES,
    ConnectionLimits,
    GuardedConnection,
)
from fleet.http.entrance import EntranceConnection, entrance_class
from serving.rpc.request_memory import MemoryHold
from tests.fleet.fakes.http_connections import Connections, FakeTransport
from tests.unit.fakes.requests import FakeByteBudget, FakeByteShare

MIB = 2**20
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: h\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FIELDS = b"".join(b"a%d:\r\n" % number for number in range(100))
LIMITS = ConnectionLimits(connection_count_max=4)


@dataclass
class Client:
    connection: GuardedConnection
    transport: FakeTransport
    is_gone: bool = False

    def send(self, data: bytes) -> None:
        """Sends unless the server has closed the connection, or does not read."""
        if not self.transport.is_closed and self.transport.is_reading:
            self.connection.data_received(data)

    def take_nothing_of(self, answer_bytes: int) -> None:
        if not self.transport.is_closed:
            self.transport.unsent_bytes += answer_bytes
            self.connection.pause_writing()

    def take_all(self) -> None:
        if self.transport.unsent_bytes:
            self.transport.unsent_bytes = 0
            self.connection.resume_writing()

    def leave(self) -> None:
        self.is_gone = True
        self.connection.connection_lost(None)


@dataclass
class Clients:
    """The clients of one server."""

    budget: FakeByteBudget
    made: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connections = Connections(LIMITS, self.budget)

    def connect(self) -> Client:
        self.made.append(Client(*self.connections.connect()))
        return self.made[-1]

    def settle(self) -> None:
        """Tells closed connections that they are lost, as the event loop does."""
        for client in self.made:
            if client.transport.is_closed and not client.is_gone:
                client.leave()
        self.made = [client for client in self.made if not client.is_gone]

    def answer(self) -> None:
        for client in self.made:
            client.take_all()
        self.connections.answer()

    def leave(self) -> None:
        for client in self.made:
            client.leave()
        self.made.clear()
        self.connections.close()


def kept_bytes(connections: Connections, client: Client) -> int:
    """Returns what Python says that the objects of a connection's requests take."""
    connection = client.connection
    running = [
        inspect.getcoroutinelocals(task.coroutine)["self"] for task in connections.loop.tasks
    ]
    cycles = {cycle for cycle in running if cycle.transport is client.transport}
    cycles |= {cycle for cycle, _ in connection.pipeline}
    if connection.cycle is not None:
        cycles.add(connection.cycle)
    scopes = {id(cycle.scope): cycle.scope for cycle in cycles}
    if connection.scope is not None:
        scopes[id(connection.scope)] = connection.scope
    total = client.transport.unsent_bytes + sum(sys.getsizeof(cycle.body) for cycle in cycles)
    for scope in scopes.values():
        total += sys.getsizeof(scope) + sys.getsizeof(scope["headers"])
        total += sum(sys.getsizeof(scope.get(key, b"")) for key in ("path", "raw_path"))
        for pair in scope["headers"]:
            total += sys.getsizeof(pair) + sum(sys.getsizeof(text) for text in pair)
    return total


# --- Each thing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hold", "least_bytes"),
    [
        (lambda client: None, 0),
        (lambda client: client.send(HEAD + b"a: " + b"x" * 5_000), 5_000),
        (lambda client: client.send(HEAD + FIELDS), 100 * FIELD_BYTES),
        (lambda client: client.send(b"GET /" + b"x" * 5_000), 5_000),
        (lambda client: client.send(HEAD + b"Content-Length: 90000\r\n\r\n" + b"x" * 9_000), 9_000),
        (lambda client: client.send(CHUNKED + b"1\r\nx\r\n" * 500), 500),
        (lambda client: client.send(CHUNKED + b"0\r\na: " + b"x" * 5_000), 5_000),
        (lambda client: client.send(GET * 10), 10 * REQUEST_BYTES),
        (lambda client: client.send(GET * 1_000), 20_000),
        (lambda client: client.take_nothing_of(50_000), 50_000),
    ],
    ids=[
        "connection",
        "value of a field",
        "fields",
        "target",
        "half a body",
        "half a chunked body",
        "trailer",
        "pipelined requests",
        "pipelined bytes",
        "unread answer",
    ],
)
def test_what_a_client_holds_counts_until_it_leaves(
    hold: Callable[[Client], None], least_bytes: int
) -> None:
    clients = Clients(FakeByteBudget(64 * MIB))
    for _ in range(3):
        hold(clients.connect())
    assert clients.budget.in_use_bytes >= 3 * (CONNECTION_BYTES + least_bytes)
    clients.leave()
    assert clients.budget.in_use_bytes == 0


def test_answered_request_keeps_no_bytes_of_its_own() -> None:
    clients = Clients(FakeByteBudget(64 * MIB))
    client = clients.connect()
    before_bytes = clients.budget.in_use_bytes
    client.send(HEAD + FIELDS + b"Content-Length: 9000\r\n\r\n" + b"x" * 9_000)
    clients.answer()
    client.send(GET)
    clients.answer()
    # uvicorn keeps the last request.
    assert clients.budget.in_use_bytes < before_bytes + REQUEST_BYTES + 2 * FIELD_BYTES
    clients.leave()


def test_answer_that_a_request_counts_counts_once() -> None:
    clients = Clients(FakeByteBudget(64 * MIB))
    client = clients.connect()
    before_bytes = clients.budget.in_use_bytes
    hold = MemoryHold(clients.budget)
    hold.grow(30_000)
    client.connection.answer_hold = hold
    client.take_nothing_of(30_100)
    assert clients.budget.in_use_bytes == before_bytes + 30_100
    client.take_all()
    hold.release()
    assert clients.budget.in_use_bytes == before_bytes
    clients.leave()


# --- Without memory -------------------------------------------------------------------------------


def test_connection_without_memory_is_refused() -> None:
    clients = Clients(FakeByteBudget(CONNECTION_BYTES))
    first, second = clients.connect(), clients.connect()
    assert not first.transport.is_closed
    assert (second.transport.status, second.transport.is_closed) == (429, True)
    assert second.transport.error == NO_MEMORY
    clients.leave()


def test_head_without_memory_is_refused() -> None:
    clients = Clients(FakeByteBudget(CONNECTION_BYTES + 2 * REQUEST_BYTES))
    client = clients.connect()
    client.send(HEAD + FIELDS)
    assert (client.transport.status, client.transport.is_closed) == (429, True)
    clients.settle()
    assert clients.budget.in_use_bytes == 0


@pytest.mark.parametrize(
    "hold",
    [
        lambda client: client.send(GET * 10),
        lambda client: client.send(HEAD + b"Content-Length: 90000\r\n\r\n" + b"x" * 30_000),
        lambda client: client.take_nothing_of(50_000),
    ],
)
def test_what_gets_no_memory_is_not_kept(hold: Callable[[Client], None]) -> None:
    clients = Clients(FakeByteBudget(CONNECTION_BYTES + 3 * REQUEST_BYTES))
    client = clients.connect()
    hold(client)
    assert client.transport.is_aborted
    clients.settle()
    assert clients.budget.in_use_bytes == 0
    clients.leave()


# --- From the entrance to the other loop ----------------------------------------------------------


def test_handed_over_bytes_count_on_the_way() -> None:
    budget = FakeByteBudget(64 * MIB)
    adopted: list[tuple[socket.socket, bytes, FakeByteShare]] = []
    at_entrance = Connections(LIMITS, budget)
    at_entrance.connection_class = entrance_class(
        LIMITS, lambda: False, lambda *given: adopted.append(given), (), budget.connection_share
    )
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        entrance, transport = at_entrance.connect(theirs)
        assert isinstance(entrance, EntranceConnection)
        entrance.data_received(HEAD + b"Content-Length: 9000\r\n\r\n" + b"x" * 5_000)
        entrance.connection_lost(None)
        ((connection, received, share),) = adopted
        connection.close()
    assert transport.is_aborted
    assert budget.in_use_bytes == share.bytes == CONNECTION_BYTES + len(received)
    inner = Connections(LIMITS, budget)
    taken, _ = inner.connect(begin_with=(received, share))
    assert share.bytes == 0
    assert budget.in_use_bytes == taken.held_bytes > CONNECTION_BYTES + 5_000
    taken.connection_lost(None)
    assert budget.in_use_bytes == 0
    inner.close()


# --- Any sequence ---------------------------------------------------------------------------------

SENT = st.sampled_from(
    [
        GET,
        GET * 40,
        GET[:20],
        HEAD,
        FIELDS,
        b"Content-Length: 3000\r\n\r\n",
        b"x" * 1_500,
        b"\r\n",
        CHUNKED,
        b"5\r\nhello\r\n",
        b"0\r\n",
        b"0\r\n\r\n",
        b"t: " + b"y" * 3_000,
        b"\x16\x03\x01",
    ]
)
STEP = st.one_of(
    st.tuples(st.just("send"), SENT),
    st.tuples(st.just("send"), SENT),
    st.tuples(st.sampled_from(["connect", "answer", "leave", "unread", "read"]), st.just(b"")),
    st.tuples(st.sampled_from(["wait 1 s", "wait 40 s"]), st.just(b"")),
)


def perform(clients: Clients, step: str, sent: bytes, chosen: int) -> None:
    client = clients.made[chosen % len(clients.made)] if clients.made else None
    if step == "connect" or client is None:
        clients.connect()
    elif step == "send":
        client.send(sent)
    elif step == "answer":
        clients.answer()
    elif step == "leave":
        client.leave()
    elif step == "unread":
        client.take_nothing_of(7_000)
    elif step == "read":
        client.take_all()
    else:
        clients.connections.loop.advance(float(step.split()[1]))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(STEP, st.integers(0, 9)), max_size=60),
    st.sampled_from([64 * MIB, 200_000, 60_000]),
)
def test_any_sequence_counts_all_and_gives_all_back(
    steps: list[tuple[tuple[str, bytes], int]], limit_bytes: int
) -> None:
    budget = FakeByteBudget(limit_bytes, reserve_bytes=10_000)
    clients = Clients(budget)
    for (step, sent), chosen in steps:
        perform(clients, step, sent, chosen)
        clients.settle()
        assert budget.in_use_bytes <= limit_bytes + budget.reserve_bytes
        assert budget.in_use_bytes == sum(one.connection.held_bytes for one in clients.made)
        for client in clients.made:
            kept = kept_bytes(clients.connections, client)
            assert client.connection.held_bytes >= CONNECTION_BYTES + kept
    clients.leave()
    assert budget.in_use_bytes == 0
