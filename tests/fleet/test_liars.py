"""A member whose reports are untrue, or huge, does not keep the other members from their versions."""

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.lead.coordinator import (
    MODEL_COUNT_MAX,
    ORDER_FOLLOWED_MAX,
    Coordinator,
    with_room,
)
from fleet.rollout.operations import aborted
from fleet.rollout.reports import Grant, ModelReport, ServerReport, Sighting
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from loadtest.measure.fleet_simulation import MODEL, FleetSimulation, Kind, SimulatedServer
from tests.fleet.fakes.state_stores import MemoryStore
from tests.fleet.worlds.fleet import FleetWorld
from tests.unit.fakes.clocks import FakeClock

HIGHEST = 2**63 - 1
SETTLED_SECONDS_MAX = 3_000


class LiedTo(FleetSimulation):
    """A fleet of which one server reports versions that it does not have, and an order of its own."""

    liar = ""
    lies: frozenset[int] = frozenset()
    order = 0

    def report(self, server: SimulatedServer) -> ServerReport:
        report = super().report(server)
        if server.name != self.liar:
            return report
        model = report.models[MODEL]
        lied = replace(model, found=model.found | self.lies, order=max(model.order, self.order))
        return replace(report, models={MODEL: lied})


@settings(max_examples=60)
@given(
    server_count=st.integers(2, 6),
    liar=st.integers(0, 5),
    lies=st.sets(st.integers(3, HIGHEST) | st.just(HIGHEST), max_size=3),
    order=st.integers(0, HIGHEST) | st.sampled_from([ORDER_FOLLOWED_MAX, HIGHEST]),
    sizes=st.sampled_from([(), (WaveSize(1),), (WaveSize(1), WaveSize(share=0.4))]),
    kills=st.lists(st.integers(1, 40), max_size=3),
    seed=st.integers(0, 1_000),
)
def test_liar_holds_up_no_version(
    server_count: int,
    liar: int,
    lies: set[int],
    order: int,
    sizes: tuple[WaveSize, ...],
    kills: list[int],
    seed: int,
) -> None:
    wave_settings = WaveSettings(
        sizes=sizes, load_count_max=2, judged_seconds=25, lost_seconds=6, load_seconds_max=60
    )
    fleet = LiedTo(server_count, wave_settings, seed=seed, load_seconds=6)
    fleet.liar = [*fleet.servers][liar % server_count]
    fleet.lies, fleet.order = frozenset(lies), order
    fleet.drop(1, Kind.GOOD)
    fleet.step(60)
    fleet.drop(2, Kind.GOOD)
    for seconds in kills:
        fleet.step(seconds)
        fleet.kill_coordinator()
    honest = [server for name, server in fleet.servers.items() if name != fleet.liar]
    for _ in range(SETTLED_SECONDS_MAX):
        if all(server.serving == 2 for server in honest):
            return
        fleet.step()
    raise AssertionError(fleet.describe())


def test_version_of_one_server_is_not_tried() -> None:
    world = FleetWorld(found=frozenset({1}))
    world.change("s3", found=frozenset({1, HIGHEST}))
    for _ in range(5):
        world.step()
    assert world.model.rollout is None
    assert world.grants == ()
    assert f"only s3 has version {HIGHEST}" in world.watches["ctr"].waits_for


def test_version_of_two_servers_is_tried_on_one() -> None:
    world = FleetWorld(found=frozenset({1}))
    world.change("s3", found=frozenset({1, 2}))
    world.step()
    assert world.model.rollout is None
    world.change("s4", found=frozenset({1, 2}))
    world.step()
    assert (world.rollout.version, world.grants[0].server in ("s3", "s4")) == (2, True)


def test_lone_server_needs_no_second_one() -> None:
    world = FleetWorld(server_count=1)
    world.step()
    assert world.rollout.version == 2


def test_lost_server_counts_with_its_last_report() -> None:
    world = FleetWorld(server_count=3, found=frozenset({1}))
    world.change("s2", found=frozenset({1, 2}))
    world.step()
    world.silent.add("s2")
    for _ in range(4):
        world.step(10)
    assert world.model.rollout is None
    world.change("s0", found=frozenset({1, 2}))
    world.step()
    assert world.rollout.version == 2


def test_version_of_a_server_that_was_alone_gives_way() -> None:
    """All other servers were lost when it lied, and come back."""
    world = FleetWorld(server_count=3)
    world.step()
    world.step()
    world.state = aborted(world.state, "ctr", "not of interest", 0)
    world.change("s0", found=frozenset({1, 2, HIGHEST}))
    world.silent.update(("s1", "s2"))
    for _ in range(4):
        world.step(10)
    assert world.rollout.version == HIGHEST
    world.silent.clear()
    found = frozenset({1, 2, 3})
    for name in ("s1", "s2"):
        world.change(name, found=found)
    for _ in range(20):
        world.take(until="loading")
        world.step(10)
        if world.model.rollout is not None and world.rollout.version == 3:
            return
    raise AssertionError(world.model)


def test_models_that_are_made_up_do_not_fill_the_state() -> None:
    coordinator = Coordinator(MemoryStore(), lambda grants: None, WaveSettings(), FakeClock())
    coordinator.set_servers(["honest", "liar"])
    known = ServerReport(models={"m": ModelReport(found=frozenset({1}))})
    coordinator.receive("honest", known)
    coordinator.step()
    for look in range(4):
        names = (f"{look}-{number}" for number in range(2_000))
        coordinator.receive("liar", ServerReport(models={name: ModelReport() for name in names}))
        coordinator.receive("honest", known)
        coordinator.step()
    assert len(coordinator.state.models) == MODEL_COUNT_MAX
    assert coordinator.sightings["honest"].report == known


def reports_of(*names: str) -> ServerReport:
    return ServerReport(models={name: ModelReport(found=frozenset({1})) for name in names})


def test_reports_between_two_steps_share_the_room() -> None:
    store = MemoryStore()
    coordinator = Coordinator(store, lambda grants: None, WaveSettings(), FakeClock())
    coordinator.set_servers(["a", "b", *map(str, range(4))])
    coordinator.receive("a", reports_of("old"))
    coordinator.step()
    for liar in map(str, range(4)):
        names = (f"{liar}-{number}" for number in range(2_000))
        coordinator.receive(liar, reports_of("old", *names))
    # Two servers have these, whose names come last.
    for name in ("a", "b"):
        coordinator.receive(name, reports_of("old", "z1", "z2"))
    assert len({*chain(*(row.report.models for row in seen(coordinator)))}) == MODEL_COUNT_MAX
    coordinator.step()
    assert len(coordinator.state.models) == MODEL_COUNT_MAX
    assert {"old", "z1", "z2"} <= coordinator.state.models.keys()
    coordinator.step()
    assert len(coordinator.state.models) == MODEL_COUNT_MAX


def seen(coordinator: Coordinator) -> list[Any]:
    return [row for row in coordinator.sightings.values() if row.report is not None]


names_of_reports = st.lists(st.frozensets(st.sampled_from("abcdefgh")), max_size=5)


@given(names_of_reports, st.frozensets(st.sampled_from("abcdefgh"), max_size=4), st.integers(0, 8))
def test_room_goes_to_names_of_two_servers_first(
    reports: list[frozenset[str]], known: frozenset[str], room: int
) -> None:
    sightings = {str(index): Sighting(reports_of(*names), 0) for index, names in enumerate(reports)}
    kept = with_room(sightings, known, room)
    left = {name: set(row.report.models) for name, row in kept.items() if row.report}
    new = set().union(*left.values()) - known
    assert len(new) <= max(0, room - len(known))
    lost = set().union(*reports) - known - new
    # A name is kept or lost on all servers, and room is left empty only if no name was lost.
    assert all(left[str(index)] == names - lost for index, names in enumerate(reports))
    assert not lost or len(new) == max(0, room - len(known))

    def is_of_two(name: str) -> bool:
        return sum(name in names for names in reports) > 1

    assert all(map(is_of_two, new)) or not any(map(is_of_two, lost))


@pytest.mark.parametrize(
    ("order", "expected"),
    [(40, 41), (ORDER_FOLLOWED_MAX, ORDER_FOLLOWED_MAX + 1), (ORDER_FOLLOWED_MAX + 1, 1)],
)
def test_order_of_a_report_leaves_higher_ones(order: int, expected: int) -> None:
    sent: list[Grant] = []
    coordinator = Coordinator(MemoryStore(), sent.extend, WaveSettings(), FakeClock())
    coordinator.set_servers(["a"])
    coordinator.receive("a", ServerReport(models={"m": ModelReport(order=order)}))
    coordinator.step()
    # The model of the report is a change of its own.
    assert coordinator.state.order in (expected, expected + 1)
