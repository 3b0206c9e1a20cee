"""A version about which a gate has only warned waits for an operator."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.http.status import fleet_status
from fleet.rollout.changes import changes
from fleet.rollout.operations import aborted, promoted
from fleet.rollout.reports import VersionReport
from fleet.rollout.state import GateWarning, fleet_state_from_json
from fleet.rollout.trial import Trial
from fleet.rollout.view import model_views
from fleet.rollout.warned_gates import WARNED_COUNT_MAX, WARNED_LENGTH_MAX, is_held, noted_warnings
from fleet.rollout.wave_settings import PASS, WaveSettings
from serving.core.servable import AVAILABLE
from serving.gates.gates import Gate
from tests.fleet.worlds.fleet import LAST_WAVE_ONLY, MODEL, SETTINGS, FleetWorld, requests

WARNING = {"drift": "output 'y': NaN in 100 of 100 values"}


def warn(world: FleetWorld, name: str, version: int = 2) -> None:
    world.set_version(name, version, VersionReport(state=AVAILABLE, warned=WARNING))


def warned_in_first_wave(settings: WaveSettings = SETTINGS) -> FleetWorld:
    world = FleetWorld(settings=settings)
    world.step()
    world.take()
    warn(world, world.members[0])
    world.step()
    return world


def test_warned_version_waits_for_an_operator() -> None:
    world = warned_in_first_wave()
    for _ in range(20):
        world.step(100)
        assert world.grants == ()
    assert (world.rollout.wave_index, world.model.stable) == (0, 1)
    waits_for = world.watches[MODEL].waits_for
    assert f"warned on {world.members[0]}: gate drift: output 'y': NaN" in waits_for
    assert "millpond fleet promote or abort" in waits_for


def test_warned_version_passes_if_the_settings_say_so() -> None:
    world = warned_in_first_wave(replace(SETTINGS, warned_gates=PASS))
    world.step(100)
    assert world.rollout.wave_index == 1
    assert world.rollout.warned


SHOWN_ONLY = {"golden", "shapes", "latency", "convergence"}


@pytest.mark.parametrize(
    "gate", [*(gate.value for gate in Gate), "of_a_later_release", "golden: as a name"]
)
def test_gate_holds_what_is_never_meant(gate: str) -> None:
    world = FleetWorld()
    world.step()
    world.take()
    row = VersionReport(state=AVAILABLE, warned={gate: "it differs"})
    world.set_version(world.members[0], 2, row)
    world.step()
    warning = world.rollout.warned[world.members[0]]
    assert warning == GateWarning(f"gate {gate}: it differs", may_hold=gate not in SHOWN_ONLY)
    world.step(100)
    assert world.rollout.wave_index == (1 if gate in SHOWN_ONLY else 0)


ALONE = VersionReport(
    state=AVAILABLE,
    warned={"finite": "output 'y' is -inf, and it has no predecessor"},
    warned_alone=frozenset({"finite"}),
)
EXCUSED = VersionReport(state=AVAILABLE, excused=frozenset({"finite"}))


@pytest.mark.parametrize("is_excused", [False, True])
def test_member_that_restarts_holds_no_sound_version(is_excused: bool) -> None:
    """It has no predecessor then, and may warn of a mask that its predecessor had too."""
    world = FleetWorld()
    world.step()
    world.take()
    (member,) = world.members
    if is_excused:
        world.set_version(member, 2, EXCUSED)
        world.step()
        world.state = fleet_state_from_json(world.state.as_json())
    world.set_version(member, 2, ALONE)
    world.step()
    assert world.rollout.warned
    assert is_held(world.rollout, SETTINGS) != is_excused
    world.step(100)
    assert world.rollout.wave_index == is_excused


rows = st.sampled_from(
    [
        VersionReport(state=AVAILABLE),
        EXCUSED,
        ALONE,
        VersionReport(state=AVAILABLE, warned=WARNING),
        VersionReport(state=AVAILABLE, warned={"finite": "NaN"}),
        VersionReport(state=AVAILABLE, warned={"golden": "it differs"}),
        replace(ALONE, warned={**ALONE.warned, "drift": "NaN"}),
        replace(EXCUSED, excused=frozenset({"constant"})),
        replace(EXCUSED, excused=frozenset({"made up"})),
    ]
)


@given(st.lists(st.tuples(st.integers(0, 9), rows), max_size=30))
def test_held_version_follows_the_stated_rule(looks: list[tuple[int, VersionReport]]) -> None:
    """In any order: a warning that was compared holds.

    A warning without a predecessor holds unless it was excused.
    """
    world = FleetWorld(settings=LAST_WAVE_ONLY)
    world.step()
    world.take()
    for server, row in looks:
        world.set_version(f"s{server}", 2, row)
        noted = noted_warnings(trial_of(world), world.rollout)
        world.state = world.state.changed({MODEL: replace(world.model, rollout=noted)})
    found = [row for _, row in looks]
    is_compared = any(row.warned.keys() - row.warned_alone - SHOWN_ONLY for row in found)
    is_alone = any(row.warned_alone for row in found)
    is_excused = any("finite" in row.excused for row in found)
    assert is_held(world.rollout, LAST_WAVE_ONLY) == (is_compared or (is_alone and not is_excused))
    assert world.rollout.excused <= {"finite", "constant"}


def trial_of(world: FleetWorld) -> Trial:
    now_ns = world.second * 10**9
    view = model_views(world.sightings(), world.state.models, 30, now_ns)[MODEL]
    return Trial(world.model, world.rollout, view, world.settings, now_ns)


def test_warning_that_holds_is_the_one_that_is_named() -> None:
    world = FleetWorld(server_count=40, settings=replace(LAST_WAVE_ONLY, load_count_max=40))
    world.step()
    world.take()
    for name in world.reports:
        row = VersionReport(state=AVAILABLE, warned={"golden": "it differs"})
        world.set_version(name, 2, row)
    world.step()
    world.set_version("s9", 2, VersionReport(state=AVAILABLE, warned={"golden": "x", **WARNING}))
    world.step()
    assert len(world.rollout.warned) == WARNED_COUNT_MAX
    assert "s9" in world.rollout.warned
    waits_for = world.watches[MODEL].waits_for
    assert waits_for.startswith("warned on s9 and 9 more: gate drift: output 'y': NaN")


def test_warning_on_any_server_holds() -> None:
    """Few are kept for people, and the one that matters may come last."""
    world = FleetWorld(server_count=40, settings=replace(LAST_WAVE_ONLY, load_count_max=40))
    world.step()
    world.take()
    for name in world.reports:
        slow = VersionReport(state=AVAILABLE, warned={"convergence": "it is cold"})
        world.set_version(name, 2, slow)
    world.step()
    before = world.rollout
    assert (len(before.warned), before.is_doubtful) == (WARNED_COUNT_MAX, False)
    warn(world, "s9")
    world.step(100)
    world.step(100)
    assert world.rollout.is_doubtful
    assert world.model.stable == 1


def test_promoted_version_is_not_held() -> None:
    world = warned_in_first_wave()
    world.state = promoted(world.state, MODEL, SETTINGS)
    for _ in range(20):
        world.step(10)
        world.take()
    assert (world.model.stable, world.model.rollout) == (2, None)


def test_aborted_version_goes_back_everywhere() -> None:
    world = warned_in_first_wave()
    member = world.members[0]
    world.state = aborted(world.state, MODEL, "NaN", 0)
    world.step()
    assert world.granted(1) == [member]
    assert 2 in world.model.blocked


def test_warning_outlives_server_and_coordinator() -> None:
    """A server that restarts has no version to compare with, so its gate does not warn again."""
    world = warned_in_first_wave()
    member = world.members[0]
    world.state = fleet_state_from_json(world.state.as_json())
    world.watches = {}
    world.set_version(member, 2, VersionReport(state=AVAILABLE))
    world.step(100)
    world.step(100)
    assert world.rollout.wave_index == 0
    assert [*world.rollout.warned] == [member]


def test_bad_version_is_stopped_while_it_is_held() -> None:
    world = warned_in_first_wave()
    world.answer(world.members[0], 2, requests(1_000, failed=500))
    world.answer_stable(requests(1_000))
    world.step()
    assert (world.model.stable, world.model.rollout) == (1, None)
    assert 2 in world.model.blocked


def test_last_wave_stops_at_the_first_warning() -> None:
    world = FleetWorld(settings=replace(LAST_WAVE_ONLY, load_count_max=2))
    world.step()
    first = world.granted(2)
    assert len(first) == 2
    world.take()
    warn(world, first[0])
    for _ in range(20):
        world.step(100)
        assert world.grants == ()
    assert world.model.stable == 1
    assert world.model.rollout is not None


def test_warning_of_another_version_holds_nothing() -> None:
    world = FleetWorld()
    world.step()
    world.take()
    warn(world, world.members[0], version=1)
    world.step(100)
    world.step(100)
    assert world.rollout.wave_index == 1


def test_warnings_that_are_kept_are_few_and_short() -> None:
    world = FleetWorld(server_count=40, settings=replace(LAST_WAVE_ONLY, load_count_max=40))
    world.step()
    world.take()
    for name in world.reports:
        world.set_version(name, 2, VersionReport(state=AVAILABLE, warned={"drift": "x" * 4_000}))
    world.step()
    assert len(world.rollout.warned) == WARNED_COUNT_MAX
    reasons = [warning.reason for warning in world.rollout.warned.values()]
    assert max(map(len, reasons)) == WARNED_LENGTH_MAX


def test_warning_is_a_change_and_in_the_status() -> None:
    world = FleetWorld()
    world.step()
    world.take()
    warn(world, world.members[0])
    before = world.state
    world.step()
    (change,) = (row for row in changes(before, world.state) if row.event == "fleet_gate_warned")
    assert change.is_warning
    assert change.values == {
        "version": 2,
        "server": world.members[0],
        "reason": "gate drift: output 'y': NaN in 100 of 100 values",
    }
    status = fleet_status(
        world.state, world.watches, world.sightings(), SETTINGS, world.second * 10**9
    )
    rollout = status["models"][MODEL]["rollout"]
    assert rollout["is_held"]
    assert rollout["warned"] == {
        world.members[0]: "gate drift: output 'y': NaN in 100 of 100 values"
    }


@pytest.mark.parametrize("count", [1, 3])
def test_reason_to_wait_counts_the_servers(count: int) -> None:
    world = FleetWorld(settings=replace(LAST_WAVE_ONLY, load_count_max=3))
    world.step()
    world.take()
    for name in world.granted(2)[:count]:
        warn(world, name)
    world.step()
    more = "" if count == 1 else " and 2 more"
    assert (
        f"warned on {min(world.rollout.warned)}{more}: gate drift" in world.watches[MODEL].waits_for
    )
