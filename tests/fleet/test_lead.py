"""The work of a coordinator during one term, without a socket."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleet.config.config import FleetConfig, FleetServer, parse_fleet_config
from fleet.lead.coordinator import Coordinator
from fleet.lead.engine import Engine
from fleet.lead.lead import PAUSE_SECONDS_MAX, FleetLead
from fleet.lead.leadership import Term
from fleet.lead.places import Membership, ServerPlace
from fleet.lead.server_links import ServerClient
from fleet.rollout.reports import ServerReport
from serving.base.errors import Unavailable
from tests.fleet.fakes.state_stores import MemoryStore
from tests.fleet.worlds.fleet import MODEL, serving
from tests.fleet.worlds.leads import OtherLeads
from tests.unit.fakes.clocks import FakeClock

CONFIG: FleetConfig = parse_fleet_config(
    """[coordinator]
state_directory = "/nowhere"
[servers.a]
admin = "10.0.0.1:8599"
"""
)
MEMBERSHIP = Membership(
    (
        FleetServer(name="a", admin="10.0.0.1:8599", grpc="10.0.0.1:8500"),
        FleetServer(name="b", admin="10.0.0.2:8599", grpc="10.0.0.2:8500"),
    )
)


class SilentClient:
    """A server that reports nothing of a fleet."""

    def fleet_report(self, edges: Sequence[int], *, timeout_seconds: float = 10) -> dict[str, Any]:
        raise OSError("no server")

    def grant(
        self, name: str, version: int | None, order: int, *, timeout_seconds: float = 10
    ) -> int | None:
        raise OSError("no server")

    def close(self) -> None:
        """Has nothing open."""


class FakePlace:
    """A place whose servers the test chooses."""

    def __init__(self) -> None:
        self.servers: Membership | None = Membership(())

    def start(self) -> None:
        """Has nothing to start."""

    def membership(self) -> Membership | None:
        return self.servers

    def act(self, coordinator: Coordinator) -> None:
        """Starts no server."""

    def stop(self) -> None:
        """Has nothing to stop."""


class SilentEngine(Engine):
    """The engine of servers that never answer."""

    def __init__(self, place: ServerPlace) -> None:
        super().__init__(place, OtherLeads())

    def client(self, target: str) -> ServerClient:
        return SilentClient()


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.place = FakePlace()
        term = Term(1, self.store, lambda: True)
        self.lead = FleetLead(term, CONFIG, SilentEngine(self.place), self.clock)
        self.step_count = 0
        self.error: Exception | None = None
        decide = self.lead.coordinator.step

        def step() -> object:
            self.step_count += 1
            if self.error is not None:
                raise self.error
            return decide()

        self.lead.coordinator.step = step  # type: ignore[method-assign, assignment]


@pytest.fixture
def world() -> World:
    return World()


def test_bug_in_a_decision_is_logged_and_goes_on(world: World) -> None:
    world.error = ZeroDivisionError("a bug")
    with capture_logs() as logs:
        world.lead.step()
    assert [line["event"] for line in logs] == ["fleet_decision_failed"]
    world.error = None
    world.clock.advance(1)
    world.lead.step()
    assert world.step_count == 2


def test_pause_after_bugs_grows_to_its_limit(world: World) -> None:
    world.error = ZeroDivisionError("a bug")
    pauses = []
    for _ in range(8):
        world.lead.step()
        seconds, count = 0, world.step_count
        while world.step_count == count:
            world.clock.advance(1)
            seconds += 1
            world.lead.step()
        pauses.append(seconds)
        # The step above was one of the failures.
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1, PAUSE_SECONDS_MAX)


def test_decision_after_a_success_pauses_little_again(world: World) -> None:
    world.error = ZeroDivisionError("a bug")
    for _ in range(4):
        world.lead.step()
        world.clock.advance(PAUSE_SECONDS_MAX)
    world.error = None
    world.lead.step()
    world.error = ZeroDivisionError("a bug")
    world.lead.step()
    world.clock.advance(1)
    count = world.step_count
    world.lead.step()
    assert world.step_count == count + 1


def test_full_disk_pauses_nothing(world: World) -> None:
    world.error = OSError(28, "No space left on device")
    with capture_logs() as logs:
        world.lead.step()
        world.lead.step()
    assert world.step_count == 2
    # Logged once: the alert stays as long as writes fail.
    assert [line["event"] for line in logs] == ["fleet_state_not_written"]


def test_ended_lead_writes_nothing_more(world: World) -> None:
    world.lead.stop()
    text = world.store.text
    with capture_logs():
        world.lead.step()
    assert world.store.text == text


def test_silent_server_is_registered_as_not_ready(world: World) -> None:
    world.place.servers = MEMBERSHIP
    world.lead.poll()
    report = ServerReport(models={MODEL: serving(1, found=frozenset({1}))})
    for name in ("a", "b"):
        world.lead.coordinator.receive(name, report)
    world.clock.advance(CONFIG.waves.lost_seconds)
    world.lead.coordinator.receive("b", report)
    ready = {row.name: row.is_ready for row in world.lead.registered() or ()}
    assert ready == {"a": True, "b": True}
    world.clock.advance(1)
    ready = {row.name: row.is_ready for row in world.lead.registered() or ()}
    assert ready == {"a": False, "b": True}
    world.lead.stop()


def test_unknown_servers_are_no_empty_fleet(world: World) -> None:
    world.place.servers = None
    world.lead.step()
    assert world.step_count == 0
    assert world.lead.registered() is None


def test_report_of_an_earlier_server_is_dropped(world: World) -> None:
    world.place.servers = MEMBERSHIP
    world.lead.poll()
    moved = replace(MEMBERSHIP.servers[0], admin="10.0.0.9:8599")
    world.place.servers = replace(MEMBERSHIP, servers=(moved, MEMBERSHIP.servers[1]))
    world.lead.step()
    report = ServerReport(models={MODEL: serving(1, found=frozenset({1}))})
    reports = []
    for target in ("10.0.0.1:8599", "10.0.0.9:8599"):
        world.lead.receive("a", target, report)
        reports.append(world.lead.coordinator.sightings["a"].report)
    assert reports == [None, report]
    world.lead.stop()


def test_place_that_fails_lets_nothing_be_decided(world: World) -> None:
    def fail(coordinator: Coordinator) -> None:
        raise OSError("the store does not answer")

    world.place.act = fail  # type: ignore[method-assign]
    with capture_logs() as logs:
        world.lead.step()
    assert [line["event"] for line in logs] == ["fleet_state_not_written"]
    assert world.step_count == 0


def test_place_that_is_away_decides_no_version(world: World) -> None:
    world.place.servers = MEMBERSHIP
    world.lead.step()

    def fail(coordinator: Coordinator) -> None:
        raise Unavailable("the cluster does not answer")

    world.place.act = fail  # type: ignore[method-assign]
    world.lead.step()
    world.place.act = lambda coordinator: None  # type: ignore[method-assign]
    counts = [world.step_count]
    world.lead.step()
    assert [*counts, world.step_count] == [1, 2]
