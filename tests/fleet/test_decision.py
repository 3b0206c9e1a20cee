"""Steps of a fleet whose servers a test moves one by one."""

from dataclasses import replace

import pytest

from fleet.rollout.operations import aborted, paused, rolled_back
from fleet.rollout.reports import VersionReport
from fleet.rollout.state import FleetRollout, FleetState, ModelState, fleet_state_from_json
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.servable import AVAILABLE, LOADING
from tests.fleet.worlds.fleet import (
    MODEL,
    NO_MEMORY,
    REFUSED,
    SETTINGS,
    FleetWorld,
    requests,
    serving,
)


def in_first_wave(**values: int) -> FleetWorld:
    world = FleetWorld(**values)  # type: ignore[arg-type]
    world.step()
    return world


def test_fleet_adopts_the_version_that_serves() -> None:
    world = FleetWorld(found=frozenset({1}))
    world.step()
    assert (world.model.stable, world.model.rollout, world.grants) == (1, None, ())


def test_new_version_begins_on_one_server() -> None:
    world = in_first_wave()
    assert world.rollout.version == 2
    assert world.granted(2) == world.members
    assert len(world.members) == 1


def test_grant_is_repeated_until_it_is_taken() -> None:
    world = in_first_wave()
    first = world.grants
    world.step()
    assert world.grants == first
    world.take(until="loading")
    world.step()
    assert world.grants == ()


def test_wave_waits_for_requests_or_time() -> None:
    world = in_first_wave()
    world.take()
    world.step()
    world.step(58)
    assert world.rollout.wave_index == 0
    world.step(2)
    assert world.rollout.wave_index == 1


def test_enough_requests_end_a_wave_at_once() -> None:
    world = in_first_wave()
    world.take()
    world.step()
    world.answer(world.members[0], 2, requests(1_000))
    world.answer_stable(requests(1_000))
    world.step()
    assert world.rollout.wave_index == 1
    assert world.model.verdicts[-1].gate == "wave 1"


def test_second_wave_loads_at_most_two_at_once() -> None:
    world = in_first_wave()
    world.pass_wave()
    assert len(world.granted(2)) == 2
    world.take(until="loading")
    world.step()
    assert world.grants == ()


def test_version_that_passes_all_waves_is_stable() -> None:
    world = in_first_wave()
    while world.model.rollout is not None:
        if world.rollout.wave_index < 2:
            world.pass_wave()
        else:
            world.take()
            world.step(10)
    assert (world.model.stable, world.model.previous) == (2, 1)
    assert all(report.default_version == 2 for report in world.reports.values())


def test_slow_version_is_rolled_back_in_one_step() -> None:
    world = in_first_wave()
    world.pass_wave()
    for _ in range(3):
        world.take()
        world.step()
    for name in world.members:
        world.answer(name, 2, requests(1_000, latency_ns=50_000_000))
    world.answer_stable(requests(1_000))
    members = world.members
    world.step()
    # It may have been the machines: other requests must show it again.
    assert world.members == members
    for name in world.members:
        world.answer(name, 2, requests(2_000, latency_ns=50_000_000))
    world.answer_stable(requests(2_000))
    world.step()
    assert world.granted(1) == members
    assert world.model.rollout is None
    assert "times the stable version's p90 or" in world.model.blocked[2].reason


def test_slow_hours_before_a_wave_are_not_compared() -> None:
    world = FleetWorld()
    # The old version had slow requests before: they must not excuse the new one.
    world.answer_stable(requests(5_000, latency_ns=80_000_000))
    world.step()
    world.take()
    world.step()
    counts = requests(5_000, latency_ns=80_000_000).latency_counts
    fast = requests(5_000).latency_counts
    both = requests(10_000)
    world.answer_stable(type(both)(10_000, 0, tuple(a + b for a, b in zip(counts, fast))))
    world.answer(world.members[0], 2, requests(1_000, latency_ns=20_000_000))
    world.step()
    fast = requests(10_000).latency_counts
    world.answer_stable(type(both)(15_000, 0, tuple(a + b for a, b in zip(counts, fast))))
    world.answer(world.members[0], 2, requests(2_000, latency_ns=20_000_000))
    world.step()
    assert 2 in world.model.blocked


def test_refused_version_ends_at_its_first_server() -> None:
    world = in_first_wave()
    world.take(until="loading")
    world.fail(world.members[0], 2, REFUSED)
    world.step()
    assert "output 'y' is gone" in world.model.blocked[2].reason
    assert len(world.granted(1)) == 1


def test_one_server_without_memory_is_replaced() -> None:
    world = in_first_wave()
    world.take(until="loading")
    first = world.members[0]
    world.fail(first, 2, NO_MEMORY)
    world.step()
    assert world.rollout.failed_servers == {first}
    assert world.granted(1) == [first]
    assert world.granted(2) == world.members != [first]


def test_second_failure_in_the_first_wave_ends_it() -> None:
    world = in_first_wave()
    for _ in range(2):
        world.take(until="loading")
        world.fail(world.members[0], 2, NO_MEMORY)
        world.step()
    assert "2 servers" in world.model.blocked[2].reason


def test_server_that_restarts_with_the_version_fails() -> None:
    world = in_first_wave()
    world.take()
    world.step()
    first = world.members[0]
    world.incarnations[first] = 2
    world.step()
    assert first in world.rollout.failed_servers


def test_load_that_takes_too_long_goes_back() -> None:
    world = in_first_wave()
    first = world.members[0]
    world.take(until="loading")
    world.step()
    world.step(101)
    assert first in world.rollout.failed_servers
    assert world.granted(1) == [first]
    # Its slot is in use until its load has ended.
    assert first in world.model.loading


def test_lost_member_is_replaced_and_its_slot_returned() -> None:
    world = in_first_wave()
    world.take(until="loading")
    first = world.members[0]
    world.silent.add(first)
    world.step(31)
    assert first not in world.model.loading
    assert len(world.granted(2)) == 1
    assert world.granted(2) != [first]


def test_lost_member_gets_a_missed_grant_again() -> None:
    world = in_first_wave()
    first = world.members[0]
    world.silent.add(first)
    world.step(31)
    world.silent.clear()
    world.take()
    world.step()
    world.reports[first] = serving(1, found=world.found)
    world.step()
    assert first in world.members
    assert world.granted(2) == [first]


def test_load_of_a_returned_server_can_be_late() -> None:
    world = in_first_wave()
    first = world.members[0]
    world.take(until="loading")
    world.silent.add(first)
    world.step(31)
    world.take()
    world.silent.clear()
    world.step()
    assert first in world.model.loading
    world.step(101)
    assert first in world.rollout.failed_servers


def test_lost_network_blames_no_version() -> None:
    world = in_first_wave()
    world.take()
    world.step()
    world.silent |= {*world.reports} - {"s0"}
    for _ in range(5):
        world.step(31)
    assert world.rollout.version == 2
    assert world.rollout.wave_index == 0


def test_one_reachable_server_is_not_the_fleet() -> None:
    world = FleetWorld()
    world.step(0)
    world.silent |= {*world.reports} - {"s0"}
    for _ in range(20):
        world.take()
        world.step(40)
    assert world.model.stable == 1


def test_server_that_comes_back_with_a_bad_version() -> None:
    world = in_first_wave()
    world.take(until="loading")
    first = world.members[0]
    world.fail(first, 2, REFUSED)
    world.step()
    # The rollback has not reached it, and it serves the version meanwhile.
    world.answer(first, 2, requests(10))
    world.change(first, default_version=2)
    world.step()
    assert world.granted(1) == [first]


def test_server_that_comes_back_with_an_older_version() -> None:
    world = FleetWorld(found=frozenset({1, 2}))
    for name in world.reports:
        world.reports[name] = serving(2, found=frozenset({1, 2}))
    for name in ("s1", "s2", "s3"):
        world.reports[name] = serving(1, found=frozenset({1, 2}))
    world.step()
    # They swap forward, so only two at once.
    assert len(world.granted(2)) == 2
    world.take()
    world.step()
    assert len(world.granted(2)) == 1


def test_unknown_newer_grant_is_taken_back() -> None:
    world = FleetWorld(found=frozenset({1}))
    world.reports["s4"] = serving(7, found=frozenset({1}))
    world.step()
    assert world.granted(1) == ["s4"]


def test_new_server_gets_the_stable_version_at_once() -> None:
    world = in_first_wave()
    world.change("s9", granted=None, default_version=None, versions={})
    for name in ("s7", "s8"):
        world.change(name, granted=None, default_version=None, versions={})
    world.step()
    assert world.granted(1) == ["s7", "s8", "s9"]


def test_draining_server_gets_no_new_version() -> None:
    world = FleetWorld(server_count=3)
    world.draining = {"s0", "s1"}
    world.step()
    assert world.members == ["s2"]


def test_stale_grant_under_way_is_overtaken() -> None:
    world = in_first_wave()
    first = world.members[0]
    # The grant of version 2 is still under way when an operator rolls back.
    world.state = rolled_back(world.state, MODEL, "no", 0)
    world.step()
    assert world.granted(1) == [first]
    assert world.grants[0].order > world.reports[first].order
    world.take()
    world.step()
    assert (world.grants, dict(world.model.loading)) == ((), {})


def test_returned_server_that_loads_uses_a_slot() -> None:
    world = FleetWorld()
    for name in ("s0", "s1"):
        world.set_version(name, 2, VersionReport(state=LOADING))
    world.step()
    assert world.grants == ()
    assert world.watches[MODEL].waits_for == "as many servers swap as may"


def test_paused_fleet_begins_nothing_and_rolls_back() -> None:
    world = in_first_wave()
    world.state = paused(world.state, MODEL)
    world.take()
    world.step()
    world.step(100)
    assert world.rollout.wave_index == 0
    world.fail(world.members[0], 2, REFUSED)
    world.step()
    assert len(world.granted(1)) == 1


def test_version_that_vanishes_from_all_disks_ends() -> None:
    world = in_first_wave()
    for name in world.reports:
        world.change(name, found=frozenset({1}))
    world.step()
    assert (world.model.rollout, dict(world.model.blocked)) == (None, {})


def test_version_on_two_disks_does_not_pass_its_wave() -> None:
    world = FleetWorld(found=frozenset({1}))
    for name in ("s0", "s1"):
        world.change(name, found=frozenset({1, 2}))
    world.step()
    world.pass_wave()
    world.take()
    world.step(500)
    assert world.rollout.wave_index == 1
    assert world.granted(2) == []


def test_new_coordinator_waits_for_first_reports() -> None:
    world = FleetWorld()
    world.state = fleet_state_from_json(world.state.as_json())
    world.unseen = {"s3": world.second}
    world.step()
    assert (world.model.stable, world.model.rollout) == (None, None)
    world.step(31)
    assert (world.model.stable, world.rollout.version) == (1, 2)


def test_empty_fleet_gets_its_first_version_in_waves() -> None:
    world = FleetWorld(found=frozenset({1}))
    for name in world.reports:
        world.change(name, granted=None, default_version=None, versions={})
    world.step()
    assert world.granted(1) == world.members
    world.take()
    world.step()
    assert (world.rollout.wave_index, world.model.stable) == (1, None)


def test_version_blocked_by_one_server_is_a_refusal() -> None:
    world = in_first_wave()
    world.take(until="loading")
    world.change(world.members[0], blocked={2: "its canary failed"})
    world.step()
    assert "its canary failed" in world.model.blocked[2].reason


def test_half_of_a_small_fleet_is_too_many() -> None:
    world = in_first_wave(server_count=2)
    world.pass_wave()
    (other,) = world.granted(2)
    world.take(until="loading")
    world.fail(other, 2, NO_MEMORY)
    world.step()
    assert 2 in world.model.blocked


@pytest.mark.parametrize("found", [frozenset({1, 2, 3}), frozenset({1, 3, 9})])
def test_highest_version_is_tried(found: frozenset[int]) -> None:
    world = FleetWorld(found=found)
    world.step()
    assert world.rollout.version == max(found)


def test_member_keeps_its_version_in_the_last_wave() -> None:
    world = in_first_wave()
    while world.rollout.wave_index < 2:
        world.pass_wave()
    assert world.members == []
    world.step()
    assert world.granted(1) == []
    served = [name for name, report in world.reports.items() if report.serves(2)]
    assert all(world.reports[name].versions[2].state is AVAILABLE for name in served)


def test_server_that_cannot_load_stable_keeps_its_own() -> None:
    world = FleetWorld(found=frozenset({1}))
    world.step()
    world.state = world.state.changed({MODEL: ModelState(stable=2, previous=0)})
    for name in world.reports:
        world.reports[name] = serving(2, found=frozenset({0, 1, 2}))
    world.reports["s3"] = serving(1, found=frozenset({0, 1, 2}))
    world.change("s3", granted=2)
    world.fail("s3", 2, NO_MEMORY)
    world.step()
    assert world.granted(1) == ["s3"]
    # After a restart it serves nothing, and gets the version that was stable before.
    world.change("s3", granted=2, default_version=None)
    world.step()
    assert world.granted(0) == ["s3"]


def empty_fleet(server_count: int) -> FleetWorld:
    """Returns a fleet that serves nothing, in the first wave of its first version, 1."""
    world = FleetWorld(server_count=server_count, found=frozenset({1}))
    for name in world.reports:
        world.change(name, granted=None, default_version=None, versions={})
    world.step()
    return world


def test_first_version_that_never_arrives_is_withdrawn() -> None:
    world = empty_fleet(server_count=1)
    world.step()
    world.step(101)
    assert 1 in world.model.blocked
    assert [(grant.server, grant.version) for grant in world.grants] == [("s0", None)]
    world.take()
    world.change("s0", found=frozenset({1, 2}))
    world.step()
    world.step()
    assert world.granted(2) == ["s0"]


def test_first_version_that_hangs_is_withdrawn() -> None:
    world = empty_fleet(server_count=1)
    world.take(until="loading")
    world.step()
    world.step(101)
    assert [(grant.server, grant.version) for grant in world.grants] == [("s0", None)]


def test_blocked_first_version_stays_if_it_answers() -> None:
    world = empty_fleet(server_count=4)
    world.take()
    world.step()
    world.state = aborted(world.state, MODEL, "wrong prices", 0)
    world.step()
    serving_it = [name for name, report in world.reports.items() if report.serves(1)]
    assert (world.model.stable, len(serving_it)) == (None, 1)
    assert {grant.version for grant in world.grants} <= {None}
    assert serving_it[0] not in {grant.server for grant in world.grants}
    world.take()
    # The server that answers with it may try the next version, as any other.
    for name in world.reports:
        world.change(name, found=frozenset({1, 2}))
    seen = set()
    for _ in range(8):
        world.step()
        seen |= {*world.granted(2)}
        assert world.granted(1) == []
        world.take()
        world.step(60)
    assert seen == {*world.reports}
    assert world.model.stable == 2


def test_blocked_first_version_is_left_with_a_slot() -> None:
    world = FleetWorld(server_count=3, settings=replace(SETTINGS, load_count_max=1))
    block = BlockedVersion(by=BlockedBy.CANARY, reason="bad", since_wall_ns=0)
    # They were lost before they took the grants of the wave.
    rollout = FleetRollout(version=2, members=dict.fromkeys(world.reports, 1))
    world.state = FleetState(models={MODEL: ModelState(blocked={1: block}, rollout=rollout)})
    world.step()
    assert len(world.granted(2)) == 1
    world.take(until="loading")
    world.step()
    assert world.granted(2) == []


def test_blocked_version_is_kept_until_files_come() -> None:
    world = FleetWorld(server_count=3)
    block = BlockedVersion(by=BlockedBy.CANARY, reason="bad", since_wall_ns=0)
    world.state = FleetState(models={MODEL: ModelState(stable=2, blocked={1: block})})
    world.change("s0", found=frozenset({1}))
    world.step()
    assert world.granted(2) == ["s1", "s2"]
    world.change("s0", found=frozenset({1, 2}))
    world.step()
    assert "s0" in world.granted(2)
