"""Clients of a fleet: the registry that they read, and how they follow its changes.

The servers are grpcio's, the registry is a file, and time is a fake clock.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from serving.base.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    MillpondError,
    NotFound,
    Unavailable,
)
from serving.base.protos import predict_pb2
from serving.client import AsyncClient, Client, RetryPolicy, fleet_connection
from serving.client.fleet_connection import REFRESH_SECONDS, FleetConnection, FleetList
from serving.client.fleet_registry import (
    FileRegistry,
    HttpRegistry,
    NotListedYet,
    RegisteredServer,
    Resolver,
    parse_registry,
    registry_of,
    routes_of,
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


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"servers": [1]}', '{"servers": [{"name": "a"}]}'),
        '{"servers": [{"name": "a", "grpc": 1}]}',
        '{"servers": [{"name": "a", "grpc": "h:1", "versions": ["m"]}]}',
    ],
)
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
    assert routes_of(servers, Resolver()).lists == (
        ("127.0.0.1:1", "10.0.0.2:1", "[fe80::1]:1", "unix:/run/e"),
    )


@pytest.mark.parametrize("host", ["gone.invalid", f"{'a' * 64}.example", "a\0b"])
def test_unresolvable_server_is_left_out(host: str):
    servers = [
        RegisteredServer(name="a", grpc="10.0.0.1:1"),
        RegisteredServer(name="b", grpc=f"{host}:1"),
    ]
    resolve = Resolver()
    with capture_logs() as logs:
        for _ in range(3):
            assert routes_of(servers, resolve).lists == (("10.0.0.1:1",),)
    assert [(row["event"], row["server"]) for row in logs] == [("fleet_server_skipped", "b")]


def server_with(number: int, *models: str, is_draining: bool = False) -> RegisteredServer:
    return RegisteredServer(
        name=f"s{number}",
        grpc=f"10.0.0.{number}:1",
        versions=dict.fromkeys(models, 1),
        is_draining=is_draining,
    )


def addresses(*numbers: int) -> tuple[str, ...]:
    return tuple(f"10.0.0.{number}:1" for number in numbers)


def places(*servers: RegisteredServer, models: str = "abz") -> list[tuple[str, ...]]:
    """Returns the addresses for the calls of each model."""
    routes = routes_of(servers, Resolver())
    return [routes.lists[routes.place(model)] for model in models]


def test_calls_of_a_model_go_to_servers_with_it():
    servers = [server_with(1, "a"), server_with(2, "b"), server_with(3, "a", "b")]
    assert places(*servers) == [addresses(1, 3), addresses(2, 3), addresses(1, 2, 3)]


def test_servers_with_the_same_models_have_one_list():
    routes = routes_of([server_with(1, "a", "b"), server_with(2, "b", "a")], Resolver())
    assert (routes.lists, routes.places) == ((addresses(1, 2),), {})


def test_server_whose_models_are_unknown_is_one_of_all():
    assert places(server_with(1, "a"), server_with(2)) == [addresses(1, 2)] * 3
    servers = (server_with(1, "a"), server_with(2), server_with(3, "b"))
    assert places(*servers) == [addresses(1), addresses(3), addresses(1, 2, 3)]


def test_model_whose_servers_drain_stays_there():
    servers = (server_with(1, "a", is_draining=True), server_with(2, "b"))
    assert places(*servers) == [addresses(1), addresses(2), addresses(2)]


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
    with capture_logs() as logs:
        for _ in range(3):
            assert servers.read().lists == (("10.0.0.1:1", "10.0.0.2:1"),)
    assert [row["event"] for row in logs] == ["fleet_list_is_old"]


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


def of_models(*servers: tuple[GrpcServer, str]) -> str:
    """Returns the registry's document of servers with one model each."""
    return registry_document(
        RegisteredServer(name=f"s{place}", grpc=server.target, versions={model: 1})
        for place, (server, model) in enumerate(servers)
    )


def test_each_model_is_called_at_its_servers(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    ctr, ads = start(), start()
    write_text(file, of_models((ctr, "ctr"), (ads, "ads")))
    with client_of(file, clock) as client:
        for _ in range(6):
            client.predict("ctr", {})
        assert (len(ctr.paths), ads.paths) == (6, [])
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "ads"
        client.predict_message(request)
        client.classify("ads", [{}])
    assert (len(ctr.paths), len(ads.paths)) == (6, 2)


def test_model_follows_its_servers(file: Path, clock: FakeClock, start: Callable[..., GrpcServer]):
    ctr, ads, other = start(), start(), start()
    write_text(file, of_models((ctr, "ctr"), (ads, "ads")))
    opened: list[tuple[str, ...]] = []

    def open_channel(targets: Sequence[str]) -> grpc.Channel:
        opened.append(tuple(targets))
        return grpc.insecure_channel(targets[0])

    with Client(f"fleet+file://{file}", clock=clock, open_channel=open_channel) as client:
        client.predict("ctr", {})
        client.predict("ads", {})
        write_text(file, of_models((ctr, "ctr"), (other, "ads")))
        clock.advance(REFRESH_SECONDS)
        connection = client._connection
        assert isinstance(connection, FleetConnection)
        connection._start_reading(REFRESH_SECONDS).result(PATIENCE_SECONDS)
        client.predict("ctr", {})
        client.predict("ads", {})
    # The channel of the model whose servers are the same stays.
    assert opened == [(ctr.target,), (ads.target,), (other.target,)]
    assert (len(ctr.paths), len(ads.paths), len(other.paths)) == (2, 1, 1)


def test_list_that_no_channel_can_hold_is_logged_once(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer]
):
    server = start(ANSWER, ANSWER, UNAVAILABLE)
    write_text(file, of(server))
    with client_of(file, clock) as client, capture_logs() as logs:
        client.predict("m", {})
        mixed = RegisteredServer(name="s1", grpc="unix:/run/b")
        write_text(
            file, registry_document([RegisteredServer(name="s0", grpc=server.target), mixed])
        )
        connection = client._connection
        assert isinstance(connection, FleetConnection)
        for _ in range(3):
            clock.advance(REFRESH_SECONDS)
            reading = connection._start_reading(REFRESH_SECONDS)
            assert isinstance(reading.exception(PATIENCE_SECONDS), InvalidArgument)
        client.predict("m", {})
        with pytest.raises(InvalidArgument, match="gRPC cannot mix"):
            client.predict("m", {})
    assert [row["event"] for row in logs] == ["fleet_list_not_followed"]


class NotYet(FakeRegistry):
    """The registry of a coordinator that has just started, and lists its servers at the third read."""

    def __init__(self, text: str) -> None:
        super().__init__(NotListedYet("HTTP 503"), NotListedYet("HTTP 503"), text)


def test_first_call_waits_for_a_new_coordinator(
    clock: FakeClock, start: Callable[..., GrpcServer], monkeypatch: pytest.MonkeyPatch
):
    server = start()
    monkeypatch.setattr(fleet_connection, "registry_of", lambda target: NotYet(of(server)))
    with Client("fleet://10.0.0.9:8700", clock=clock) as client:
        client.predict("m", {})
    assert len(server.paths) == 1


def test_first_call_waits_until_its_deadline(clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    never = FakeRegistry(NotListedYet("HTTP 503"))
    monkeypatch.setattr(fleet_connection, "registry_of", lambda target: never)
    with (
        Client("fleet://10.0.0.9:8700", clock=clock, timeout_seconds=3) as client,
        pytest.raises(Unavailable, match="HTTP 503"),
    ):
        client.predict("m", {})
    assert sum(clock.waits) == pytest.approx(3)


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


def test_asyncio_call_ends_on_its_old_channel(file: Path):
    asyncio_call_on_its_old_channel(file)


def asyncio_call_on_its_old_channel(file: Path) -> None:
    """Changes the list during a call. Raises the error of the call if it does not end well."""
    clock = FakeClock()
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


def test_asyncio_client_calls_models_at_their_servers(
    file: Path, clock: FakeClock, start: Callable[..., GrpcServer], monkeypatch: pytest.MonkeyPatch
):
    ctr, ads = start(), start()
    registry = NotYet(of_models((ctr, "ctr"), (ads, "ads")))
    monkeypatch.setattr(fleet_connection, "registry_of", lambda target: registry)

    async def call() -> None:
        async with AsyncClient("fleet://10.0.0.9:8700", clock=clock) as client:
            await asyncio.gather(*(client.predict("ctr", {}) for _ in range(4)))
            await client.predict("ads", {})

    asyncio.run(call())
    assert (len(ctr.paths), len(ads.paths)) == (4, 1)


def test_optimized_client_counts_its_calls(tmp_path: Path):
    """`python -O` drops assertions. A change of the list must still let a running call end."""
    program = tmp_path / "program.py"
    program.write_text(
        "import tests.unit.test_client_fleet as tests\n"
        "from pathlib import Path\n"
        "if __debug__: raise SystemExit('not optimized')\n"
        f"tests.asyncio_call_on_its_old_channel(Path({str(tmp_path / 'servers.json')!r}))\n"
        "print('answered')\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-O", str(program)],
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout == "answered\n", done.stderr


def test_errors_of_a_fleet_are_millponds(file: Path, clock: FakeClock):
    with client_of(file, clock) as client, pytest.raises(MillpondError):
        client.wait_until_ready("m", timeout_seconds=0)
