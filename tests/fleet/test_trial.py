"""The judgement of a version in waves, if servers are lost, silent, restarted or lack its files."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fleet.rollout.figures import VersionFigures, total
from fleet.rollout.operations import aborted, allowed
from fleet.rollout.reports import VersionReport
from fleet.rollout.state import FleetState, ModelState, fleet_state_from_json
from fleet.rollout.trial import Trial
from fleet.rollout.view import model_views
from fleet.rollout.wave_settings import WaveSize
from serving.base.clock import NS_PER_SECOND
from serving.core.servable import LOADING, GateVerdict
from tests.fleet.worlds.fleet import (
    LAST_WAVE_ONLY,
    MODEL,
    NO_MEMORY,
    REFUSED,
    SETTINGS,
    FleetWorld,
    requests,
    serving,
)


def in_first_wave(**values: object) -> FleetWorld:
    """Returns a fleet in which one server serves version 2, and all answer."""
    world = FleetWorld(**values)  # type: ignore[arg-type]
    world.step()
    world.take()
    world.step()
    return world


def with_new_coordinator(world: FleetWorld, *, silent: set[str]) -> None:
    """Replaces the coordinator by one to which `silent` servers have not reported yet."""
    world.state = fleet_state_from_json(world.state.as_json()).taken_over()
    world.watches = {}
    world.unseen = dict.fromkeys(silent, world.second)


def test_first_reports_of_a_new_coordinator_blame_none() -> None:
    world = FleetWorld()
    world.step()
    first = world.members[0]
    world.take(until="loading")
    world.fail(first, 2, NO_MEMORY)
    world.step()
    assert world.rollout.failed_servers == {first}
    others = {*world.reports} - {first}
    with_new_coordinator(world, silent=others - {min(others)})
    world.step()
    assert 2 not in world.model.blocked


def test_wave_is_a_share_of_silent_servers_too() -> None:
    settings = replace(SETTINGS, sizes=(WaveSize(1), WaveSize(share=0.4)), judged_seconds=10)
    world = in_first_wave(settings=settings)
    member = world.members[0]
    silent = {name for name in world.reports if name != member}
    silent.remove(min(silent))
    with_new_coordinator(world, silent=silent)
    world.step()
    world.step(10)
    assert world.rollout.wave_index <= 1


def test_servers_that_end_in_the_last_wave_are_blamed() -> None:
    world = FleetWorld(settings=LAST_WAVE_ONLY)
    world.step()
    taken = world.granted(2)
    assert taken
    world.take(until="loading")
    world.step()
    world.silent |= {*taken[:2]}
    world.step(31)
    world.step(1)
    assert 2 in world.model.blocked
    assert world.granted(1)


def test_server_that_ends_before_it_reports_is_blamed() -> None:
    world = FleetWorld(settings=LAST_WAVE_ONLY)
    world.step()
    world.silent |= {*world.granted(2)[:2]}
    world.step(31)
    assert 2 in world.model.blocked


def test_lost_server_that_vanishes_stays_failed() -> None:
    world = in_first_wave()
    first = world.members[0]
    world.silent.add(first)
    world.step(31)
    del world.reports[first]
    world.step()
    assert first in world.rollout.failed_servers


def test_new_fleet_waits_for_each_silent_server() -> None:
    world = FleetWorld(found=frozenset({1, 2}))
    last = max(world.reports)
    world.change(last, granted=None, default_version=None, versions={})
    served = {name: report for name, report in world.reports.items() if name != last}
    world.reports = {last: world.reports[last]}
    world.unseen = dict.fromkeys(served, world.second)
    world.step()
    assert (world.model.stable, world.model.rollout) == (None, None)
    world.unseen = {}
    world.reports |= served
    world.step()
    assert world.model.stable == 1


def test_late_reports_show_a_predecessor() -> None:
    world = FleetWorld(found=frozenset({1, 2}))
    last = max(world.reports)
    world.change(last, granted=None, default_version=None, versions={})
    world.silent = {*world.reports} - {last}
    world.seen_at = dict.fromkeys(world.silent, world.second - 100)
    world.step()
    assert (world.model.stable, world.rollout.version) == (None, 2)
    world.silent = set()
    world.step()
    assert (world.model.stable, world.rollout.version) == (1, 2)


def test_version_needs_controls_without_restarts() -> None:
    world = in_first_wave()
    member = world.members[0]
    others = [name for name in world.reports if name != member]
    for name in others:
        world.answer(name, 1, requests(100))
    world.step()
    # Each server with the old version restarts: its counts begin again.
    for name in others:
        world.incarnations[name] = 2
        world.answer(name, 1, requests(1))
    world.answer(member, 2, requests(2_000, latency_ns=90_000_000))
    world.step()
    assert world.model.verdicts == ()
    for further in (1, 2):
        for name in others:
            world.answer(name, 1, requests(1_000 * further + 1))
        world.answer(member, 2, requests(2_000 + 2_000 * further, latency_ns=90_000_000))
        world.step()
    assert "times the stable version's p90 or" in world.model.blocked[2].reason


def test_allowed_version_of_old_grants_is_stable() -> None:
    """A first version was blocked, its servers restarted, and an operator allowed it before they served."""
    world = FleetWorld(server_count=4, found=frozenset({1}))
    world.state = FleetState(order=5, models={MODEL: ModelState()})
    for name in world.reports:
        world.change(name, default_version=None, order=1, versions={})
    world.step()
    assert (world.model.stable, world.rollout.version) == (None, 1)
    for number, name in enumerate(world.reports):
        world.answer(name, 1, requests(0))
        world.change(name, default_version=1)
        world.step()
        # Half of the servers are not most of them.
        assert world.model.stable == (1 if number >= 2 else None)
    assert world.model.rollout is None
    for name in world.reports:
        world.change(name, found=frozenset({1, 2}))
    world.step()
    assert (world.model.stable, world.rollout.version) == (1, 2)


@pytest.mark.parametrize("count", [0, 99])
def test_slow_wave_needs_requests_to_pass(count: int) -> None:
    world = in_first_wave()
    (member,) = world.members
    world.answer_stable(requests(1_000))
    world.answer(member, 2, requests(0))
    world.step()
    slow = requests(1_000, latency_ns=90_000_000)
    world.answer_stable(requests(2_000))
    world.answer(member, 2, slow)
    world.step()
    world.answer(member, 2, total([slow, requests(count)]))
    world.state = operated(world.state, lambda model: replace(model, is_paused=True))
    world.step(int(SETTINGS.judged_seconds) + 1)
    world.step()
    # Clients may come as long as an operator waits for them.
    assert (world.rollout.wave_index, world.model.verdicts) == (0, ())
    world.state = operated(world.state, lambda model: replace(model, is_paused=False))
    world.step()
    assert "45.25 times" in world.model.blocked[2].reason


def operated(state: FleetState, change: Callable[[ModelState], ModelState]) -> FleetState:
    return replace(state, models={MODEL: change(state.models[MODEL])})


@pytest.mark.parametrize("is_slow_again", [True, False])
def test_slow_wave_is_compared_once_more(*, is_slow_again: bool) -> None:
    world = in_first_wave()
    (member,) = world.members
    world.answer(member, 2, requests(0))
    world.step()

    def verdicts() -> list[GateVerdict]:
        return [*world.model.verdicts]

    def answer(count: int, new: VersionFigures) -> None:
        world.answer_stable(requests(count))
        world.answer(member, 2, new)
        world.step()

    slow = requests(1_000, latency_ns=90_000_000)
    answer(1_000, slow)
    assert verdicts() == []
    assert "times the stable version's" in world.watches[MODEL].comparison.doubt
    # The slow requests of before do not count any more, nor does the time.
    answer(1_000, slow)
    world.step(int(SETTINGS.judged_seconds) - 2)
    assert verdicts() == []
    answer(2_000, total([slow, slow if is_slow_again else requests(1_000)]))
    (verdict,) = verdicts()
    assert verdict.is_passed is not is_slow_again
    assert verdict.figures["request_count"] == 1_000
    # The next wave begins without a doubt.
    assert world.watches[MODEL].comparison.doubt == ""


def test_version_waits_for_servers_to_compare_with() -> None:
    world = in_first_wave()
    member = world.members[0]
    world.silent = {*world.reports} - {member}
    world.answer(member, 2, requests(5_000, latency_ns=90_000_000))
    for _ in range(5):
        world.step(31)
    assert world.rollout.wave_index == 0
    assert "no server with version 1 can be compared with" in world.watches[MODEL].waits_for


@pytest.mark.parametrize("counts", [requests(0), requests(10, failed=3), type(requests(0))()])
def test_control_whose_counts_shrink_is_left_out(counts: object) -> None:
    world = FleetWorld()
    world.step()
    world.answer_stable(requests(50, failed=1))
    world.take()
    world.step()
    control = next(name for name, report in world.reports.items() if report.granted == 1)
    world.answer(control, 1, counts)  # type: ignore[arg-type]
    sightings = world.sightings()
    world.step()
    view = model_views(sightings, world.state.models, 30, world.second * NS_PER_SECOND)[MODEL]
    now_ns = world.second * NS_PER_SECOND
    trial = Trial(world.model, world.rollout, view, SETTINGS, now_ns)
    old = world.watches[MODEL].comparison.figures(trial)[1]
    assert (old.request_count, old.failed_count) == (0, 0)


def test_refusal_before_it_was_allowed_does_not_count() -> None:
    world = FleetWorld()
    world.step()
    first = world.members[0]
    world.take(until="loading")
    world.fail(first, 2, REFUSED)
    world.step()
    assert 2 in world.model.blocked
    # The rollback has not reached the server, and an operator has mended the files.
    world.state = allowed(world.state, MODEL, 2)
    world.step()
    world.step()
    assert 2 not in world.model.blocked
    assert world.granted(1) == [first]


def test_old_refusal_does_not_count_in_the_last_wave() -> None:
    world = FleetWorld(settings=replace(LAST_WAVE_ONLY, load_count_max=1))
    world.step()
    first = world.granted(2)[0]
    world.take(until="loading")
    world.fail(first, 2, REFUSED)
    world.step()
    world.state = allowed(world.state, MODEL, 2)
    world.step()
    assert 2 not in world.model.blocked
    assert world.granted(1) == [first]


def test_version_without_files_is_superseded() -> None:
    world = in_first_wave()
    for name in world.reports.keys() - {*world.members}:
        world.change(name, found=frozenset({1}))
    world.pass_wave()
    world.step()
    assert world.watches[MODEL].waits_for == "1 of 10 servers have the files of 2"
    for name in world.reports:
        world.change(name, found=world.reports[name].found | {3})
    world.step()
    assert world.rollout.version == 3
    assert 2 not in world.model.blocked


def test_rollout_goes_on_beside_lost_servers() -> None:
    world = FleetWorld(settings=LAST_WAVE_ONLY, server_count=4)
    world.step()
    world.silent = {"s2", "s3"}
    world.seen_at |= dict.fromkeys(world.silent, world.second - 100)
    world.state = world.state.changed({MODEL: replace(world.model, loading={})})
    for name in ("s0", "s1"):
        world.reports[name] = serving(2, found=frozenset({1, 2, 3}), order=world.state.order)
    world.step()
    world.step()
    assert world.rollout.version == 2
    assert world.watches[MODEL].waits_for == "2 of 4 servers are lost"


def test_load_that_cannot_be_ended_gives_its_slot_back() -> None:
    world = FleetWorld(settings=replace(SETTINGS, load_count_max=1))
    world.step()
    first = world.members[0]
    world.take(until="loading")
    world.step()
    world.state = aborted(world.state, MODEL, "no", 0)
    world.step()
    # The server takes the rollback, and its load goes on.
    world.change(first, granted=1, order=world.grants[0].order)
    for name in world.reports:
        world.change(name, found=frozenset({1, 2, 3}))
    world.step()
    assert world.reports[first].versions[2] == VersionReport(state=LOADING)
    assert world.granted(3) == []
    assert world.watches[MODEL].waits_for == "as many servers swap as may"
    world.step(201)
    world.step()
    assert world.granted(3) not in ([], [first])


def test_draining_member_that_is_late_is_replaced() -> None:
    world = FleetWorld()
    world.step()
    first = world.members[0]
    world.draining.add(first)
    world.step()
    world.take()
    world.step()
    assert [name for name in world.members if name != first]
