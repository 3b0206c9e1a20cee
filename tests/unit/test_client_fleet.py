"""Clients of a fleet: the registry that they read, and how they follow its changes.

The servers are grpcio's, the registry is a file, and time is a fake clock.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from serving.base.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    MillpondError,
    NotFound,
    Unavailable,
)
from serving.base.protos import predict_pb2
from serving.client import AsyncClient, Client, RetryPolicy
from serving.client.fleet_connection import REFRESH_SECONDS, FleetConnection, FleetList
from serving.client.fleet_registry import (
    FileRegistry,
    HttpRegistry,
    RegisteredServer,
    addresses_of,
    parse_registry,
    registry_of,
)
from serving.fleet.registry import registry_document, write_text
from tests.unit.fakes.client import UNAVAILABLE, GrpcServer, Refusal
from tests.unit.fakes.clocks import FakeClock

ANSWER = predict_pb2.PredictResponse().SerializeToString()
SHORT_PAUSES = RetryPolicy(attempt_count_max=2, pause_seconds_first=0.01)
PATIENCE_SECONDS = 60


def of(*servers: GrpcServer, draining: GrpcServer | None = None) -> str:
    """Returns the registry's document of servers, which are named by their place."""
    return registry_document(
        RegisteredServer(name=f"s{place}", grpc=server.target, is_draining=server is draining)
        for place, server in enumerate(servers)
    )


class FakeRegistry:
    """Has a text or an error for each read, and repeats the last one."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = [*answers]

    def __str__(self) -> str:
        return "the registry"

    def read(self) -> str:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def start() -> Iterator[Callable[..., GrpcServer]]:
    with ExitStack() as stack:
        yield lambda *answers, **settings: stack.enter_context(
            GrpcServer(*(answers or (ANSWER,)), **settings)
        )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "servers.json"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def client_of(file: Path, clock: FakeClock, retries: RetryPolicy = SHORT_PAUSES) -> Client:
    return Client(f"fleet+file://{file}", clock=clock, retries=retries)


def predict_until(client: Client, is_so: Callable[[], object]) -> None:
    """Predicts until a condition holds: the registry is read beside the calls."""
    for _ in range(100_000):
        if is_so():
            return
        client.predict("m", {})
    raise AssertionError("the client does not follow its fleet")


# --- The registry -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "registry"),
    [
        ("fleet://10.0.0.9:8700", HttpRegistry("10.0.0.9:8700")),
        ("fleet://[::1]:8700/", HttpRegistry("[::1]:8700")),
        ("fleet://fleet.example:8700", HttpRegistry("fleet.example:8700")),
        ("fleet+file:///run/servers.json", FileRegistry(Path("/run/servers.json"))),
        ("fleet+file:servers.json", FileRegistry(Path("servers.json"))),
    ],
)
def test_target_names_a_registry(target: str, registry: object):
    assert registry_of(target) == registry


@pytest.mark.parametrize(
    "target",
    ["fleet://", "fleet://host", "fleet://host:x", "fleet://:1", "fleet://a:1/b", "fleet+file://"],
)
def test_other_fleet_targets_are_refused(target: str):
    with pytest.raises(InvalidArgument, match="names no fleet; give fleet://HOST:PORT"):
        Client(target)


def test_fleet_is_not_one_of_several_targets():
    with pytest.raises(InvalidArgument, match="give a fleet alone"):
        Client(["10.0.0.1:8500", "fleet://10.0.0.9:8700"])


def test_registry_of_newer_coordinator_is_read():
    text = '{"servers": [{"name": "a", "grpc": "10.0.0.1:1", "zone": "b"}], "more": 1}'
    assert parse_registry(text) == (RegisteredServer(name="a", grpc="10.0.0.1:1"),)


@pytest.mark.parametrize("text", ["", "[]", '{"servers": [1]}', '{"servers": [{"name": "a"}]}'])
def test_other_document_is_no_registry(text: str):
    with pytest.raises(DataLoss, match="not the registry of a fleet"):
        parse_registry(text)


def test_addresses_leave_out_draining_servers():
    servers = [
        RegisteredServer(name="b", grpc="10.0.0.2:1", is_ready=False),
        RegisteredServer(name="c", grpc="10.0.0.3:1", is_draining=True),
        RegisteredServer(name="a", grpc="localhost:1"),
        RegisteredServer(name="d", grpc="[fe80::1]:1"),
        RegisteredServer(name="e", grpc="unix:/run/e"),
    ]
    assert addresses_of(servers) == ("127.0.0.1:1", "10.0.0.2:1", "[fe80::1]:1", "unix:/run/e")


# --- The list ---------------------------------------------------------------------------------------------

TWO = registry_document(
    RegisteredServer(name=name, grpc=f"10.0.0.{name}:1", is_draining=False) for name in "12"
)
ALL_DRAIN = registry_document([RegisteredServer(name="1", grpc="10.0.0.1:1", is_draining=True)])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ConnectionRefusedError("refused"), "refused"),
        (Unavailable("HTTP 503"), "HTTP 503"),
        ("{}", "not the registry"),
        (registry_document([]), "it lists no server"),
    ],
)
def test_fleet_without_a_list_is_unavailable(answer: str | Exception, reason: str):
    servers = FleetList(FakeRegistry(answer), FakeClock())
    with pytest.raises(Unavailable, match=f"no servers of the fleet are known.*{reason}"):
        servers.read()


@pytest.mark.parametrize("later", [OSError("gone"), "{}", registry_document([]), ALL_DRAIN])
def test_last_list_outlives_its_registry(later: str | Exception):
    servers = FleetList(FakeRegistry(TWO, later), FakeClock())
    assert servers.read() == servers.read() == ("10.0.0.1:1", "10.0.0.2:1")


def test_list_ages():
    clock = FakeClock()
    servers = FleetList(FakeRegistry(TWO), clock)
    assert servers.is_older_than(1_000)
    servers.read()
    clock.advance(2)
    assert servers.is_older_than(2)
    assert not servers.is_older_than(2.1)


# --- Calls ------------------------------------------------------------------------------------------------


def test_servers_of_a_fleet_take_turns(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    servers = [start(), start(), start()]
    write_text(file, of(*servers))
    with client_of(file, clock) as client:
        predict_until(client, lambda: all(server.paths for server in servers))
        for server in servers:
            server.paths.clear()
        for _ in range(9):
            client.predict("m", {})
    assert [len(server.paths) for server in servers] == [3, 3, 3]


def test_draining_server_gets_no_call(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    servers = [start(), start(), start()]
    write_text(file, of(*servers, draining=servers[1]))
    with client_of(file, clock) as client:
        predict_until(client, lambda: servers[0].paths and servers[2].paths)
    assert servers[1].paths == []


def test_client_follows_its_registry_in_time(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    old, new = start(), start()
    write_text(file, of(old))
    with client_of(file, clock) as client:
        client.predict("m", {})
        write_text(file, of(new))
        client.predict("m", {})
        assert new.paths == []
        clock.advance(REFRESH_SECONDS)
        predict_until(client, lambda: new.paths)
        old.paths.clear()
        client.predict("m", {})
    assert old.paths == []


def test_call_moves_to_servers_that_are_new(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    old, new = start(ANSWER, UNAVAILABLE), start()
    write_text(file, of(old))
    with client_of(file, clock) as client:
        client.predict("m", {})
        write_text(file, of(new))
        # The list is not due, but too old for a call that no server has answered.
        clock.advance(1)
        client.predict("m", {})
    assert (len(old.paths), len(new.paths)) == (3, 1)


def test_call_without_retries_does_not_move(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    old, new = start(ANSWER, UNAVAILABLE), start()
    write_text(file, of(old))
    with client_of(file, clock, RetryPolicy(attempt_count_max=1)) as client:
        client.predict("m", {})
        write_text(file, of(new))
        clock.advance(1)
        with pytest.raises(Unavailable, match=f"no server answers at {old.target}"):
            client.predict("m", {})
    assert new.paths == []


def test_operators_call_is_never_repeated(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    old, new = start(UNAVAILABLE), start(b'{"version": 1}')
    write_text(file, of(old))
    with client_of(file, clock) as client:
        with pytest.raises(Unavailable):
            client.rollback("m")
        write_text(file, of(new))
        with pytest.raises(Unavailable):
            client.promote("m")
    assert (len(old.paths), new.paths) == (2, [])


def test_operators_call_to_several_is_refused(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    write_text(file, of(start(), start()))
    with (
        client_of(file, clock) as client,
        pytest.raises(InvalidArgument, match="make a client for one of them"),
    ):
        client.rollback("m")


def test_other_errors_do_not_move(file: Path, clock: FakeClock, start: Callable[..., GrpcServer]):

    server = start(Refusal(grpc.StatusCode.NOT_FOUND))
    write_text(file, of(server))
    with client_of(file, clock) as client, pytest.raises(NotFound):
        client.predict("m", {})
    assert len(server.paths) == 1


def test_running_call_ends_on_its_old_channel(file: Path, clock: FakeClock):
    """A server that is out of the list still answers what it has begun."""
    begun, may_end = threading.Event(), threading.Event()

    class SlowServer(GrpcServer):
        def _answer(self, path: str, context: object) -> bytes:
            begun.set()
            assert may_end.wait(PATIENCE_SECONDS)
            return bytes(ANSWER)

    with SlowServer(ANSWER) as slow, GrpcServer(ANSWER) as other:
        write_text(file, of(slow))
        with client_of(file, clock) as client:
            results: list[object] = []
            thread = threading.Thread(target=lambda: results.append(client.predict("m", {})))
            thread.start()
            assert begun.wait(PATIENCE_SECONDS)
            write_text(file, of(other))
            clock.advance(REFRESH_SECONDS)
            connection = client._connection
            assert isinstance(connection, FleetConnection)
            connection._start_reading(REFRESH_SECONDS).result(PATIENCE_SECONDS)
            client.predict("m", {})
            assert (len(other.paths), results) == (1, [])
            may_end.set()
            thread.join(PATIENCE_SECONDS)
            assert len(results) == 1
            assert connection._retired == set()


def test_closed_client_of_a_fleet_refuses_calls(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    write_text(file, of(start()))
    client = client_of(file, clock)
    client.predict("m", {})
    client.close()
    with pytest.raises(FailedPrecondition, match="the client is closed"):
        client.predict("m", {})


def test_client_waits_for_a_fleet_to_come(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    with client_of(file, clock) as client:
        with pytest.raises(Unavailable, match="no servers of the fleet are known"):
            client.predict("m", {})
        server = start()
        write_text(file, of(server))
        client.predict("m", {})
    assert len(server.paths) == 1


# --- With asyncio -----------------------------------------------------------------------------------------


def test_asyncio_client_follows_its_fleet(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    old, new = start(ANSWER, ANSWER, UNAVAILABLE), start()

    async def call() -> None:
        target = f"fleet+file://{file}"
        async with AsyncClient(target, clock=clock, retries=SHORT_PAUSES) as client:
            with pytest.raises(Unavailable, match="no servers of the fleet are known"):
                await client.predict("m", {})
            write_text(file, of(old))
            await asyncio.gather(client.predict("m", {}), client.predict("m", {}))
            write_text(file, of(new))
            clock.advance(1)
            await client.predict("m", {})
        with pytest.raises(FailedPrecondition):
            await client.predict("m", {})

    asyncio.run(call())
    assert (len(old.paths), len(new.paths)) == (4, 1)


def test_asyncio_call_ends_on_its_old_channel(file: Path, clock: FakeClock):
    begun, may_end = threading.Event(), threading.Event()

    class SlowServer(GrpcServer):
        def _answer(self, path: str, context: object) -> bytes:
            begun.set()
            assert may_end.wait(PATIENCE_SECONDS)
            return bytes(ANSWER)

    async def call(other: GrpcServer) -> None:
        async with AsyncClient(f"fleet+file://{file}", clock=clock) as client:
            slow_call = asyncio.ensure_future(client.predict("m", {}))
            await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
            write_text(file, of(other))
            clock.advance(REFRESH_SECONDS)
            await client._connection._start_reading(REFRESH_SECONDS)  # type: ignore[attr-defined]
            await client.predict("m", {})
            assert not slow_call.done()
            may_end.set()
            await slow_call

    with SlowServer(ANSWER) as slow, GrpcServer(ANSWER) as other:
        write_text(file, of(slow))
        asyncio.run(call(other))
    assert len(other.paths) == 1


def test_errors_of_a_fleet_are_millponds(file: Path, clock: FakeClock):
    with client_of(file, clock) as client, pytest.raises(MillpondError):
        client.wait_until_ready("m", timeout_seconds=0)
