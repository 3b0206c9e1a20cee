"""The coordinator on Ray, with a cluster of fakes."""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleet.files.registry import RegisteredServer, parse_registry
from fleet.lead.lead import FleetLead
from fleet.replicas.placement import ServerRoom
from fleet.replicas.replicas import LEAVING, UP, Replica
from fleet.rollout.reports import ModelReport, ServerReport
from serving.base.errors import FailedPrecondition
from tests.fleet.fakes.ray_store import FakeStore
from tests.unit.fakes.clocks import FakeClock

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray.cluster import ActorAnswer
from fleet.ray.engine import CONFIG_KEY, RayCoordinator, ray_coordinator
from fleet.ray.operator_token import TOKEN_HEADER, TOKEN_KEY

CONFIG = """
[coordinator]
poll_seconds = 0.01
[waves]
sizes = []
[ray]
leave_seconds = 5
[ray.models.m]
base_path = "/models/m"
replicas = 2
memory_bytes = 1
"""


REPORT = ServerReport(
    incarnation=1,
    models={"m": ModelReport(granted=1, default_version=1, found=frozenset({1}))},
)
"""A server that serves its model."""


class NoClient:
    """A server that is never called: the tests bring its reports."""

    def close(self) -> None:
        """Closes nothing."""


class FakeServers:
    """Launches that are there at once, and end when they are stopped."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.stopped: list[str] = []
        self.is_silent = False
        self.ended: list[str] = []
        self.node_bytes = 10**12
        self.reason = ""

    def rooms(self) -> list[ServerRoom]:
        return [ServerRoom(name=name, memory_bytes=self.node_bytes) for name in "ab"]

    def start(self, replica: Replica) -> None:
        self.running.add(replica.launch)

    def look(self, replicas: Sequence[Replica]) -> dict[str, ActorAnswer]:
        if self.is_silent:
            return {row.name: ActorAnswer() for row in replicas}
        return {
            row.name: ActorAnswer(
                grpc=f"{row.node}:{row.launch}",
                is_gone=row.launch not in self.running,
                reason="" if row.launch in self.running else self.reason,
            )
            for row in replicas
        }

    def stop(self, replica: Replica) -> None:
        self.stopped.append(replica.name)
        self.running.discard(replica.launch)

    def end(self, replica: Replica) -> None:
        self.ended.append(replica.name)
        self.running.discard(replica.launch)

    def orphans(self, replicas: Sequence[Replica]) -> list[str]:
        known = {row.launch for row in replicas}
        return [f"m-x/{launch}" for launch in sorted(self.running - known)]

    def end_orphan(self, actor_name: str) -> None:
        self.running.discard(int(actor_name.rpartition("/")[2]))

    def client(self, actor_name: str) -> Any:
        return NoClient()

    def actor_name(self, replica: Replica) -> str:
        return f"{replica.name}/{replica.launch}"


def lead_of(coordinator: RayCoordinator) -> FleetLead:
    """Returns the lead of a coordinator, which begins its term if it has none."""
    lead = coordinator.service._lead()
    assert lead is not None
    return lead


def configured_store() -> FakeStore:
    return FakeStore({CONFIG_KEY: CONFIG})


class World:
    def __init__(self) -> None:
        self.store, self.servers, self.clock = configured_store(), FakeServers(), FakeClock()
        self.made: list[RayCoordinator] = []
        self.take_over()

    @property
    def coordinator(self) -> RayCoordinator:
        return self.made[-1]

    @property
    def lead(self) -> FleetLead:
        return lead_of(self.coordinator)

    def take_over(self) -> None:
        store: Any = self.store
        servers: Any = self.servers
        made = ray_coordinator(store, "127.0.0.1", self.clock, servers)
        self.made.append(made)
        made.service.start()

    def close(self) -> None:
        for made in self.made:
            made.service.close()

    def step(self, *, ready: Sequence[str] = ("m-0", "m-1"), seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        for name in ready:
            self.report(name, REPORT)
        self.coordinator.service.step()

    def report(self, name: str, report: ServerReport, launch: int = 0) -> None:
        """Brings a report of a launch; 0: of the present one."""
        row = self.replicas().get(name)
        self.lead.receive(name, f"{name}/{launch or (row.launch if row else 0)}", report)

    def replicas(self) -> Mapping[str, Replica]:
        return self.coordinator.replicas.state.replicas

    def restart(self) -> None:
        self.coordinator.replicas.restart("m")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.coordinator.service.port}"

    def registered(self) -> dict[str, RegisteredServer]:
        return {row.name: row for row in parse_registry(self.coordinator.service._outputs.registry)}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self.answer(method, path, body)[1]

    def answer(
        self, method: str, path: str, body: object = None, token: str | None = None
    ) -> tuple[int, Any]:
        """Returns the status and the reply to a request with an operator's token."""
        connection = http.client.HTTPConnection(self.address, timeout=10)
        headers = {TOKEN_HEADER: self.store.values[TOKEN_KEY] if token is None else token}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        reply = json.loads(response.read())
        connection.close()
        return response.status, reply


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.step(ready=())
    made.step(ready=())
    yield made
    made.close()


def test_server_is_registered_once_it_is_ready(world: World) -> None:
    assert world.registered() == {}
    world.step()
    assert {name: row.grpc for name, row in world.registered().items()} == {
        "m-0": "a:1",
        "m-1": "b:2",
    }
    assert all(row.is_ready for row in world.registered().values())


def test_restart_drains_in_the_registry_first(world: World) -> None:
    world.step()
    world.ask("POST", "/fleet/replicas", {"model": "m"})
    world.step()
    assert world.registered()["m-0"].is_draining
    assert not world.registered()["m-1"].is_draining
    assert world.servers.stopped == []
    world.step(seconds=5)
    assert world.servers.stopped == ["m-0"]
    world.step()
    world.step(ready=["m-1"])
    # The new launch has not reported: clients do not get it, and the other one waits.
    assert [*world.registered()] == ["m-1"]
    world.step(seconds=5, ready=["m-1"])
    assert world.servers.stopped == ["m-0"]
    world.step()
    assert world.registered()["m-0"].grpc == "a:3"
    world.step()
    assert world.registered()["m-1"].is_draining


def test_ended_server_leaves_the_registry(world: World) -> None:
    world.step()
    world.servers.running.discard(1)
    world.step(ready=["m-1"])
    assert [*world.registered()] == ["m-1"]
    # The next launch is seen to run, and reports after that.
    world.step(ready=["m-1"])
    world.step()
    assert world.registered()["m-0"].grpc == "a:3"


def test_next_coordinator_keeps_the_servers(world: World) -> None:
    world.step()
    first = world.coordinator
    world.take_over()
    world.servers.is_silent = True
    world.step(ready=())
    # Not an empty registry: a proxy would lose its servers.
    assert world.coordinator.service._outputs.registry == ""
    world.servers.is_silent = False
    world.step(ready=())
    world.step()
    assert {row.grpc for row in world.registered().values()} == {"a:1", "b:2"}
    assert world.servers.ended == []
    # The first one was cut off, and does not know yet.
    with pytest.raises(OSError, match="another coordinator"):
        first.replicas.restart("m")


def test_deposed_coordinator_is_over(world: World) -> None:
    world.step()
    first = world.coordinator
    world.take_over()
    world.step()
    was_over = first.service._engine.is_over
    with pytest.raises(OSError, match="another coordinator"):
        first.replicas.restart("m")
    assert (was_over, first.service._engine.is_over) == (False, True)
    first.service.step()
    assert not first.service.leads


def test_launch_that_was_never_ready_stays_unknown(world: World) -> None:
    world.step(ready=["m-0"])
    world.take_over()
    world.step(ready=())
    world.step(ready=["m-0"])
    # A proxy would take it for a healthy one.
    assert [*world.registered()] == ["m-0"]


def test_server_that_leaves_gets_no_new_version(world: World) -> None:
    world.step()
    world.restart()
    world.step()
    sightings = world.lead.coordinator.sightings
    assert [name for name, row in sightings.items() if row.is_draining] == ["m-0"]


def test_restart_waits_for_a_server_that_is_cut_off(world: World) -> None:
    world.step()
    # Ray has not noticed yet, and for the waves m-1 is not lost yet.
    for _ in range(4):
        world.step(ready=["m-0"])
    world.restart()
    world.step(ready=["m-0"])
    assert [row.phase for row in world.replicas().values()] == [UP, LEAVING]


def test_report_of_an_earlier_launch_is_dropped(world: World) -> None:
    world.step()
    world.servers.running.discard(1)
    world.step(ready=["m-1"])
    world.step(ready=["m-1"])
    world.report("m-0", REPORT, launch=1)
    world.step(ready=["m-1"])
    assert [*world.registered()] == ["m-1"]
    world.report("m-0", REPORT, launch=3)
    world.step(ready=["m-1"])
    assert [*world.registered()] == ["m-0", "m-1"]


def test_store_that_is_down_changes_nothing(world: World) -> None:
    world.step()
    world.store.is_down = True
    with pytest.raises(OSError, match="no answer"):
        world.restart()
    assert not any(row["is_to_restart"] for row in world.ask("GET", "/fleet/replicas")["replicas"])


def test_restart_without_the_store_is_unavailable(world: World) -> None:
    world.step()
    world.store.is_down = True
    status, reply = world.answer("POST", "/fleet/replicas", {"model": "m"})
    assert status == 503
    assert "nothing is changed" in reply["error"]


@pytest.mark.parametrize("path", ["/fleet/replicas", "/fleet/operations"])
@pytest.mark.parametrize("token", ["", "0" * 64, "\xe4"])
def test_request_without_the_token_changes_nothing(world: World, path: str, token: str) -> None:
    body = {"model": "m", "operation": "pause"}
    status, reply = world.answer("POST", path, body, token)
    assert (status, "[coordinator] operators" in reply["error"]) == (403, True)
    assert world.answer("GET", "/fleet/replicas", token=token)[0] == 200


def test_token_stays_from_coordinator_to_coordinator(world: World) -> None:
    token = world.store.values[TOKEN_KEY]
    world.take_over()
    assert world.store.values[TOKEN_KEY] == token
    assert len(token) == 64


def test_restart_of_an_unknown_model_is_refused(world: World) -> None:
    status, reply = world.answer("POST", "/fleet/replicas", {"model": "x"})
    assert status == 404
    assert "models: m" in reply["error"]


def test_restart_that_waits_delays_no_other_request(world: World) -> None:
    restarted = threading.Event()

    def restart() -> None:
        world.ask("POST", "/fleet/replicas", {"model": "m"})
        restarted.set()

    # As during a step whose calls to the cluster take long.
    with world.coordinator.replicas._lock:
        thread = threading.Thread(target=restart)
        thread.start()
        for _ in range(20):
            assert world.answer("GET", "/fleet/status")[0] == 200
        assert not restarted.is_set()
    thread.join()


def test_registry_before_a_look_is_unavailable(world: World) -> None:
    world.step()
    world.take_over()
    assert world.answer("GET", "/fleet/servers")[0] == 503
    world.servers.is_silent = True
    world.step(ready=())
    status, reply = world.answer("GET", "/fleet/servers")
    assert status == 503
    assert "not all servers have reported" in reply["error"]


def test_grants_of_a_term_have_higher_orders(world: World) -> None:
    before = world.lead.coordinator.state.order
    world.take_over()
    # Also above those that the first coordinator may still decide on.
    assert world.lead.coordinator.state.order > before + 10**6


def test_grants_of_a_late_coordinator_are_dropped(world: World) -> None:
    first = world.lead
    assert first._links._may_send()
    world.take_over()
    assert world.lead._links._may_send()
    world.clock.advance(1)
    assert not first._links._may_send()
    assert world.lead._links._may_send()


def test_shut_down_stops_every_server(world: World) -> None:
    world.step()
    world.coordinator.replicas.shut_down()
    for _ in range(4):
        world.step(seconds=5)
    assert sorted(world.servers.stopped) == ["m-0", "m-1"]
    assert world.registered() == {}


def test_status_shows_servers_that_do_not_start(world: World) -> None:
    world.step()
    assert world.ask("GET", "/fleet/status")["problems"] == []
    world.servers.reason = "its process ended with status 2"
    for _ in range(3):
        world.servers.running.clear()
        world.step(ready=())
        world.step(ready=())
    problems = world.ask("GET", "/fleet/status")["problems"]
    assert [text.partition(" ended")[0] for text in problems] == [
        "server m-0 has",
        "server m-1 has",
    ]
    assert problems[0].endswith("because: its process ended with status 2")
    # The reason is that of the last launch.
    world.servers.reason = ""
    world.servers.running.clear()
    world.step(ready=(), seconds=60)
    world.step(ready=())
    assert world.ask("GET", "/fleet/status")["problems"][0].endswith("its actor was lost")
    # A stop by the fleet is none.
    for _ in range(3):
        world.step(seconds=60)
    world.servers.reason = "its process ended with status 0"
    world.restart()
    world.step(seconds=60)
    for _ in range(3):
        world.step(seconds=5)
    assert world.coordinator.replicas._reasons["m-0"].endswith("its actor was lost")


def test_only_started_launches_are_asked(world: World) -> None:
    links: Any = world.lead._links
    targets: list[dict[str, str]] = []
    links.set_targets = targets.append
    world.step()
    assert targets[-1] == {"m-0": "m-0/1", "m-1": "m-1/2"}
    world.servers.running.discard(1)
    world.step(ready=["m-1"])
    assert targets[-1] == {"m-1": "m-1/2"}


def test_status_shows_replicas_without_room() -> None:
    world = World()
    world.servers.node_bytes = 1
    with capture_logs() as logs:
        world.step(ready=())
    (text,) = world.ask("GET", "/fleet/status")["problems"]
    world.close()
    assert text.startswith("model m: 2 of 2 replicas find no node with room")
    (row,) = [row for row in logs if row["event"] == "fleet_replicas_missing"]
    assert row["problems"] == [text]


def test_next_launch_gets_the_ports_of_before(world: World) -> None:
    world.step()
    world.take_over()
    world.servers.running.discard(1)
    world.step(ready=["m-1"])
    world.step(ready=["m-1"])
    # The port of the fake is the number of the launch.
    assert (world.replicas()["m-0"].launch, world.replicas()["m-0"].ports) == (3, (1, 0))


def test_configuration_without_ray_is_refused() -> None:
    store: Any = configured_store()
    servers: Any = FakeServers()
    store.values[CONFIG_KEY] = '[coordinator]\nstate_directory = "/s"\n[servers.a]\nadmin = "h:1"\n'
    with pytest.raises(FailedPrecondition, match=r"no table \[ray\]"):
        ray_coordinator(store, "127.0.0.1", FakeClock(), servers)
