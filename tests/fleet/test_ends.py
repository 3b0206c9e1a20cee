"""The ends of servers: the ones that are a version's fault, and the ones that are not."""

from dataclasses import replace

import pytest

from fleet.http.status import fleet_status
from fleet.rollout.operations import aborted, allowed
from fleet.rollout.reports import VersionReport
from fleet.rollout.wave_settings import WaveSize
from serving.base.clock import NS_PER_SECOND
from serving.core.servable import AVAILABLE, END, LOADING
from tests.fleet.worlds.fleet import LAST_WAVE_ONLY, MODEL, NO_MEMORY, SETTINGS, FleetWorld

# Four members of ten servers.
WAVE_OF_FOUR = replace(SETTINGS, sizes=(WaveSize(share=0.4),))


def in_last_wave(**values: object) -> FleetWorld:
    """Returns a fleet in which every server may try version 2, and serves it."""
    world = FleetWorld(settings=LAST_WAVE_ONLY, **values)  # type: ignore[arg-type]
    world.step()
    world.take()
    world.step()
    return world


def restart(world: FleetWorld, name: str, granted: int | None) -> None:
    """Lets a server restart, without the versions that it had."""
    world.incarnations[name] = world.incarnations.get(name, 1) + 1
    world.change(name, granted=granted, default_version=None, versions={})


@pytest.mark.parametrize("granted", [2, None])
def test_restart_in_the_last_wave_counts_as_failed(granted: int | None) -> None:
    world = in_last_wave()
    # Without a state directory a server comes back without its grant.
    restart(world, "s0", granted)
    world.step()
    assert world.rollout.failed_servers == {"s0"}


def test_server_in_anothers_place_counts_as_failed() -> None:
    world = in_last_wave()
    # Its place has started another one under its name, which has not reported yet.
    world.unseen = {"s0": world.second}
    world.step()
    world.unseen = {}
    restart(world, "s0", None)
    world.step()
    assert world.rollout.failed_servers == {"s0"}


def test_restart_during_the_load_counts_as_failed() -> None:
    world = FleetWorld(settings=LAST_WAVE_ONLY)
    world.step()
    # The load ends the server before it reports its grant.
    world.step()
    restart(world, "s0", 1)
    world.step()
    assert world.rollout.failed_servers == {"s0"}


def test_restart_after_a_drain_does_not_count() -> None:
    world = in_last_wave()
    world.draining.add("s0")
    world.step()
    world.draining.clear()
    restart(world, "s0", 2)
    world.step()
    assert not world.rollout.failed_servers


def test_restarts_are_not_blamed_on_a_first_version() -> None:
    world = FleetWorld(settings=LAST_WAVE_ONLY)
    for name in world.reports:
        world.change(name, granted=None, default_version=None, versions={})
    world.step()
    first = world.granted(2)[0]
    world.take(until="loading")
    world.step()
    restart(world, first, 2)
    world.step()
    assert (world.model.stable, world.rollout.failed_servers) == (None, frozenset())


def test_last_wave_stops_a_version_that_ends_servers() -> None:
    world = in_last_wave()
    for name in ("s0", "s1"):
        restart(world, name, None)
    world.step()
    assert 2 in world.model.blocked
    assert world.model.stable == 1


def test_grant_that_leads_to_no_version_is_withdrawn() -> None:
    """Without a stable version a server with a failed grant of before may try the next version."""
    world = FleetWorld(found=frozenset({1, 2}))
    for name in world.reports:
        world.change(name, granted=1, default_version=None, versions={})
        world.fail(name, 1, NO_MEMORY)
    world.step()
    assert world.rollout.version == 2
    assert len(world.grants) == 10
    assert {grant.version for grant in world.grants} == {None}


def in_wave_of_four() -> FleetWorld:
    """Returns a fleet in which four of ten servers serve version 2."""
    world = FleetWorld(settings=WAVE_OF_FOUR)
    for _ in range(6):
        world.step()
        world.take()
    world.step()
    assert len(world.members) == 4
    return world


def test_drained_server_that_stays_away_is_not_blamed() -> None:
    world = in_last_wave()
    world.draining |= {"s0", "s1"}
    world.step()
    world.silent |= {"s0", "s1"}
    world.step(31)
    world.step()
    assert 2 not in world.model.blocked


def test_lost_servers_of_the_last_wave_are_blamed() -> None:
    world = in_last_wave()
    world.silent |= {"s0", "s1"}
    world.step(31)
    world.step()
    assert 2 in world.model.blocked


@pytest.mark.parametrize("granted", [2, None])
def test_drained_member_that_returns_does_not_count(granted: int | None) -> None:
    world = in_wave_of_four()
    for name in world.members[:2]:
        world.draining.add(name)
        world.step()
        world.draining.discard(name)
        restart(world, name, granted)
        world.step()
        world.take()
        world.step()
    assert (world.rollout.failed_servers, len(world.members)) == (frozenset(), 4)


def test_drained_member_that_crashes_counts_as_failed() -> None:
    world = in_wave_of_four()
    name = world.members[0]
    world.draining.add(name)
    world.step()
    world.draining.discard(name)
    restart(world, name, 2)
    world.step()
    world.step()
    restart(world, name, 2)
    world.step()
    assert world.rollout.failed_servers == {name}


@pytest.mark.parametrize("granted", [2, None])
def test_members_of_a_lost_rack_do_not_count(granted: int | None) -> None:
    world = in_wave_of_four()
    others = sorted(world.reports.keys() - {*world.members})
    rack = {*world.members[:2], *others[:4]}
    world.silent |= rack
    world.step(31)
    world.step()
    world.silent -= rack
    for name in rack & {*world.members}:
        restart(world, name, granted)
    world.step()
    assert not world.rollout.failed_servers


def test_lost_rack_that_returns_in_parts_is_not_blamed() -> None:
    world = in_wave_of_four()
    members = {*world.members[:2]}
    others = {*sorted(world.reports.keys() - {*world.members})[:4]}
    world.silent |= members | others
    world.step(31)
    world.step()
    world.silent -= others
    world.step()
    world.silent -= members
    world.step()
    assert 2 not in world.model.blocked


def test_lost_rack_that_never_returns_is_not_blamed() -> None:
    world = in_wave_of_four()
    others = sorted(world.reports.keys() - {*world.members})
    rack = {*world.members[:3], *others[:6]}
    world.silent |= rack
    world.step(31)
    world.step()
    for name in rack:
        world.reports.pop(name)
    world.step()
    assert 2 not in world.model.blocked


def test_rollout_after_an_abort_is_watched_anew() -> None:
    world = in_wave_of_four()
    world.step()
    before = world.watches[MODEL].comparison.members
    assert before is not None
    world.state = allowed(aborted(world.state, MODEL, "not yet", 0), MODEL, 2)
    world.step()
    assert world.rollout.version == 2
    assert world.watches[MODEL].comparison.members is not before


def test_server_with_a_silent_successor_is_blamed() -> None:
    world = in_last_wave()
    world.unseen = dict.fromkeys(("s0", "s1", "s2", "s3"), world.second)
    world.step()
    world.step(31)
    assert 2 in world.model.blocked


def test_member_back_in_the_last_wave_is_blamed() -> None:
    world = in_wave_of_four()
    name = world.members[0]
    world.silent.add(name)
    world.step(31)
    for seconds in (1, 1, 1, 61, 1, 1):
        world.take()
        world.step(seconds)
    assert world.rollout.wave_index == 1
    world.silent.discard(name)
    restart(world, name, 2)
    world.step()
    assert world.rollout.failed_servers == {name}


def test_lost_server_back_unchanged_does_not_count() -> None:
    world = in_last_wave()
    world.silent.add("s0")
    world.step(31)
    world.silent.discard("s0")
    world.step()
    assert not world.rollout.failed_servers


def test_lost_server_that_restarts_counts_as_failed() -> None:
    world = in_last_wave()
    world.silent.add("s0")
    world.step(31)
    world.silent.discard("s0")
    restart(world, "s0", 2)
    world.step()
    assert world.rollout.failed_servers == {"s0"}


def test_successor_of_a_lost_server_counts_as_failed() -> None:
    world = in_last_wave()
    world.silent.add("s0")
    world.step(31)
    # Its place has started another one under its name, which reports a moment later.
    world.unseen = {"s0": world.second}
    world.step()
    world.unseen = {}
    world.silent.discard("s0")
    restart(world, "s0", None)
    world.step()
    assert world.rollout.failed_servers == {"s0"}


def test_load_without_a_stable_version_goes_on() -> None:
    """The state is lost while all servers start: each loads the version that it was granted."""
    world = FleetWorld()
    for name in world.reports:
        world.change(name, default_version=None, versions={1: VersionReport(state=LOADING)})
    world.step()
    assert None not in {grant.version for grant in world.grants}


def test_old_load_does_not_block_a_rollout_for_ever() -> None:
    world = FleetWorld(server_count=2)
    for name in world.reports:
        world.change(name, default_version=None, versions={1: VersionReport(state=LOADING)})
    world.step()
    world.step(100)
    assert world.rollout.version == 2
    assert world.grants == ()
    decision = world.step()
    assert [grant.version for grant in decision.grants] == [None, None]
    world.take()
    world.step()
    assert world.granted(2)


def without_stable(world: FleetWorld, name: str) -> None:
    world.set_version(name, 1, VersionReport(state=END, health=NO_MEMORY))
    world.change(name, default_version=None)


def test_server_without_the_stable_version_waits() -> None:
    world = FleetWorld(server_count=3, settings=replace(SETTINGS, sizes=(WaveSize(2),)))
    without_stable(world, "s1")
    without_stable(world, "s2")
    world.step()
    world.take()
    world.step()
    assert world.members == ["s0"]


@pytest.mark.parametrize("end", ["failed", "draining", "none has it"])
def test_such_servers_try_it_if_no_other_is_left(end: str) -> None:
    world = FleetWorld(server_count=3, settings=replace(SETTINGS, sizes=(WaveSize(1),)))
    for name in ("s0", "s1"):
        without_stable(world, name)
    if end == "none has it":
        without_stable(world, "s2")
    elif end == "draining":
        world.draining.add("s2")
    world.step()
    if end == "failed":
        world.take(until="loading")
        world.step()
        world.fail("s2", 2, NO_MEMORY)
        world.step()
    world.take()
    world.step()
    assert {*world.members} & {"s0", "s1"}


def test_cause_of_a_block_without_a_reason_is_unknown() -> None:
    world = in_wave_of_four()
    name = world.members[0]
    world.change(name, blocked={2: ""}, versions={1: VersionReport(state=AVAILABLE)})
    world.step()
    assert world.rollout.failed_servers == {name}
    now_ns = world.second * NS_PER_SECOND
    status = fleet_status(world.state, world.watches, world.sightings(), world.settings, now_ns)
    assert [*status["models"][MODEL]["rollout"]["causes"]] == [name]


def test_successor_that_vanishes_counts_as_failed() -> None:
    world = in_last_wave()
    world.silent.add("s0")
    world.step(31)
    # Its place starts another one, which ends before it reports, and gives up.
    world.unseen = {"s0": world.second}
    world.step()
    world.unseen = {}
    del world.reports["s0"]
    world.step()
    assert "s0" in world.rollout.failed_servers
