"""The process of `millpond fleet start` on Ray, with a deployment that is not there."""

import asyncio
import gc
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fleet.config.config import FleetConfig, parse_fleet_config
from fleet.files.registry import RegisteredServer, parse_registry, registry_document
from serving.base.clock import Now, SystemClock
from serving.base.errors import FailedPrecondition, Unavailable

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray.deployment import NoFleet
from fleet.ray.event_list import LoggedEvent
from fleet.ray.follower import Follower
from fleet.ray.front import Front

CLOCK = SystemClock()
FAR = 10**30
"""A wall time after the start of each front."""


def event(number: int, boot: str = "a", wall_ns: int = FAR) -> LoggedEvent:
    return LoggedEvent(boot, number, wall_ns, "warning", "fleet_verdict", {"version": number})


class FakeDeployment:
    """A coordinator with a registry, at an address or not at all."""

    def __init__(self) -> None:
        self.document = registry_document([RegisteredServer(name="m-0", grpc="h:1")])
        self.at = ""
        self.has_ended = False
        self.was_stopped = False
        self.was_forgotten = False
        self.problems: Sequence[str] = ()
        self.logged: list[LoggedEvent] = []

    def registry(self) -> str:
        if self.has_ended:
            raise NoFleet("none of this name")
        if not self.document:
            raise Unavailable("it is dead")
        return self.document

    def address(self) -> str:
        if not self.at:
            raise Unavailable("it is dead")
        return self.at

    def operator_token(self) -> str:
        return "secret"

    def is_stopped(self) -> bool:
        return self.was_stopped

    def is_forgotten(self) -> bool:
        return self.was_forgotten

    def events(
        self, after: LoggedEvent | None, front: str = "", problems: Sequence[str] = ()
    ) -> list[LoggedEvent]:
        self.problems = problems
        is_first = after is None or after.boot != self.logged[-1].boot
        return [row for row in self.logged if is_first or row.number > after.number]  # type: ignore[union-attr]


@pytest.fixture
def deployment() -> FakeDeployment:
    return FakeDeployment()


def config(tmp_path: Path, listen: str = "127.0.0.1:0") -> FleetConfig:
    return parse_fleet_config(
        f'[coordinator]\nlisten = "{listen}"\npoll_seconds = 0.01\n'
        f'registry_file = "{tmp_path / "servers.json"}"\n'
        f'operators = "unix:{tmp_path / "door"}"\n'
        '[ray.models.m]\nbase_path = "/m"\nmemory_bytes = 1\n'
    )


@pytest.fixture
def front(deployment: FakeDeployment, tmp_path: Path) -> Front:
    return Front(config(tmp_path), lambda: deployment, SystemClock())  # type: ignore[arg-type, return-value]


@pytest.fixture
def follower(deployment: FakeDeployment, tmp_path: Path) -> Follower:
    return Follower(config(tmp_path), deployment, "front", Now.of(CLOCK), CLOCK)  # type: ignore[arg-type]


def written(tmp_path: Path) -> list[str]:
    return [row.grpc for row in parse_registry((tmp_path / "servers.json").read_text())]


def test_front_keeps_files_of_a_dead_coordinator(
    follower: Follower, deployment: FakeDeployment, tmp_path: Path
) -> None:
    follower.update()
    deployment.document = ""
    follower.update()
    assert written(tmp_path) == ["h:1"]


def test_front_waits_for_the_first_registry_silently(
    follower: Follower, deployment: FakeDeployment
) -> None:
    document, deployment.document = deployment.document, ""
    with capture_logs() as logs:
        follower.update()
        deployment.document = document
        follower.update()
    assert logs == []


def test_front_reports_each_loss_and_return_once(
    follower: Follower, deployment: FakeDeployment
) -> None:
    follower.update()
    document, deployment.document = deployment.document, ""
    with capture_logs() as logs:
        follower.update()
        follower.update()
        deployment.document = document
        follower.update()
        follower.update()
    events = ["fleet_coordinator_unreachable", "fleet_coordinator_reached"]
    assert [row["event"] for row in logs] == events


def test_front_logs_each_event_of_the_coordinator_once(
    follower: Follower, deployment: FakeDeployment
) -> None:
    deployment.logged = [event(1, wall_ns=0), event(2)]
    with capture_logs() as logs:
        follower.update()
        deployment.logged.append(event(3))
        follower.update()
        # The next coordinator, on a node whose clock is late.
        deployment.logged = [event(1, "b", wall_ns=0)]
        follower.update()
        follower.update()
    row = {"event": "fleet_verdict", "log_level": "warning"}
    assert logs == [{**row, "version": version} for version in (2, 3, 1)]


def test_front_writes_files_without_events(
    follower: Follower, deployment: FakeDeployment, tmp_path: Path
) -> None:
    def fail(*values: object) -> list[LoggedEvent]:
        raise Unavailable("the coordinator is of another release")

    deployment.events = fail  # type: ignore[method-assign, assignment]
    follower.update()
    assert written(tmp_path) == ["h:1"]


def test_front_tells_its_problems(
    follower: Follower, deployment: FakeDeployment, tmp_path: Path
) -> None:
    (tmp_path / "servers.json").mkdir()
    follower.update()
    (text,) = deployment.problems
    assert text.startswith(f"{tmp_path}/servers.json: ")


def test_front_counts_events_that_were_dropped(
    follower: Follower, deployment: FakeDeployment
) -> None:
    deployment.logged = [event(1)]
    follower.update()
    deployment.logged = [event(5), event(6)]
    with capture_logs() as logs:
        follower.update()
    dropped = [row["count"] for row in logs if row["event"] == "fleet_events_dropped"]
    assert dropped == [3]


def test_front_ends_with_its_fleet(
    front: Front, follower: Follower, deployment: FakeDeployment, tmp_path: Path
) -> None:
    assert follower.update()
    deployment.has_ended = True
    # Its coordinator may come back.
    assert follower.update()
    assert written(tmp_path) == ["h:1"]
    deployment.was_stopped = True
    with capture_logs() as logs:
        front.run()
    assert logs[-1]["event"] == "fleet_stopped"
    assert written(tmp_path) == []


def test_front_of_a_cluster_that_is_new_ends(front: Front, deployment: FakeDeployment) -> None:
    deployment.document, deployment.was_forgotten = "", True
    with pytest.raises(FailedPrecondition, match="started anew"):
        front.run()


def test_taken_port_changes_no_fleet(tmp_path: Path) -> None:
    deployed: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = config(tmp_path, f"127.0.0.1:{listener.getsockname()[1]}")
        front = Front(taken, lambda: deployed.append("it"), SystemClock())  # type: ignore[arg-type, return-value]
        with pytest.raises(Unavailable, match=r"listen in the table \[coordinator\]"):
            front.run()
    assert deployed == []


def test_fleet_that_is_not_deployed_ends_the_front(tmp_path: Path) -> None:
    def fail() -> None:
        raise FailedPrecondition("no Ray cluster")

    front = Front(config(tmp_path), fail, SystemClock())  # type: ignore[arg-type]
    with pytest.raises(FailedPrecondition, match="no Ray cluster"):
        front.run()
    with socket.create_server(("127.0.0.1", front.port or 0)):
        pass


def test_front_answers_while_the_fleet_is_deployed(tmp_path: Path) -> None:
    may_deploy = threading.Event()

    def deploy() -> FakeDeployment:
        assert may_deploy.wait(10)
        return FakeDeployment()

    front = Front(config(tmp_path), deploy, SystemClock())  # type: ignore[arg-type]
    thread = threading.Thread(target=front.run)
    thread.start()
    assert front.listens.wait(10)
    answer = asyncio.run(_exchange(front.port, b"GET / HTTP/1.1\r\n\r\n"))
    may_deploy.set()
    front.stop()
    thread.join()
    assert b"being put on its cluster" in answer


@pytest.fixture
def running(front: Front) -> Iterator[Front]:
    thread = threading.Thread(target=front.run)
    thread.start()
    assert front.listens.wait(10)
    yield front
    front.stop()
    thread.join()


async def _exchange(port: int | None, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def test_front_passes_connections_on(running: Front, deployment: FakeDeployment) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = await reader.read()
        # The connection is kept alive by the front alone.
        gc.collect()
        writer.write(b"got " + text)
        writer.close()

    async def exchange() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        deployment.at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        answer = await _exchange(running.port, b"this")
        server.close()
        return answer

    assert asyncio.run(exchange()) == b"got this"


def test_operators_door_adds_the_token(running: Front, deployment: FakeDeployment) -> None:
    request = b"POST /fleet/operations HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async def exchange() -> tuple[bytes, bytes]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        deployment.at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        path = running.operator_address.removeprefix("unix:")
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(request)
        writer.write_eof()
        operated = await reader.read()
        writer.close()
        passed = await _exchange(running.port, request)
        server.close()
        return operated, passed

    operated, passed = asyncio.run(exchange())
    assert operated == request.replace(b"1.1\r\n", b"1.1\r\nmillpond-operator-token: secret\r\n")
    assert passed == request


def test_front_without_coordinator_answers_why(running: Front) -> None:
    answer = asyncio.run(_exchange(running.port, b"GET / HTTP/1.1\r\n\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"].endswith("does not answer now: it is dead")


def test_front_logs_events_of_its_deployment(deployment: FakeDeployment, tmp_path: Path) -> None:
    def deploy() -> FakeDeployment:
        deployment.logged = [event(1, wall_ns=CLOCK.wall_ns())]
        deployment.has_ended = deployment.was_stopped = True
        return deployment

    def registry() -> str:
        deployment.registry = ended  # type: ignore[method-assign]
        return deployment.document

    ended, deployment.registry = deployment.registry, registry  # type: ignore[method-assign]
    front = Front(config(tmp_path), deploy, CLOCK)  # type: ignore[arg-type]
    with capture_logs() as logs:
        front.run()
    assert "fleet_verdict" in [row["event"] for row in logs]
