"""The simulated servers themselves: a simulation that cannot fail proves nothing."""

import pytest

from fleet.rollout.reports import Grant
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from loadtest.measure.fleet_simulation import (
    MODEL,
    BrokenPromise,
    FleetSimulation,
    Kind,
    figures_of,
)

SETTINGS = WaveSettings(
    sizes=(WaveSize(1), WaveSize(share=0.3)),
    load_count_max=2,
    judged_seconds=25,
    lost_seconds=6,
    load_seconds_max=60,
)


def settled(server_count: int = 10, seed: int = 1) -> FleetSimulation:
    fleet = FleetSimulation(server_count, SETTINGS, seed=seed, load_seconds=6)
    fleet.drop(1, Kind.GOOD)
    fleet.run_until_settled(1_000)
    return fleet


def test_simulation_is_the_same_for_the_same_seed() -> None:
    assert settled(seed=3).clock.second == settled(seed=3).clock.second


def test_good_version_reaches_every_server() -> None:
    fleet = settled()
    fleet.drop(2, Kind.GOOD)
    fleet.step(2)
    fleet.run_until_settled(1_000)
    assert {server.serving for server in fleet.servers.values()} == {2}
    assert fleet.tally.swapping_max == 2


@pytest.mark.parametrize(
    ("kind", "servers"),
    [
        (Kind.REFUSED, 1),
        (Kind.SLOW, 1),
        (Kind.FAILING, 1),
        (Kind.CRASHING, 2),
        (Kind.HANGING, 2),
    ],
)
def test_bad_version_stays_in_its_first_wave(kind: Kind, servers: int) -> None:
    fleet = settled()
    fleet.drop(2, kind)
    fleet.step(2)
    fleet.run_until_settled(1_000)
    assert {server.serving for server in fleet.servers.values()} == {1}
    assert len(fleet.tally.touched[2]) == servers
    assert fleet.tally.blocked_in_wave == {2: 0}


def test_new_coordinator_goes_on_with_the_same_wave() -> None:
    fleet = settled()
    fleet.drop(2, Kind.GOOD)
    fleet.step(5)
    rollout = fleet.state.models[MODEL].rollout
    fleet.kill_coordinator(3)
    fleet.step(4)
    assert rollout is not None
    assert fleet.state.models[MODEL].rollout == rollout
    assert fleet.tally.coordinator_count == 2


def test_cut_off_server_keeps_serving_and_returns() -> None:
    fleet = settled()
    fleet.cut(["server-00003"])
    fleet.drop(2, Kind.GOOD)
    fleet.step(300)
    assert fleet.servers["server-00003"].serving == 1
    assert fleet.state.models[MODEL].stable == 2
    fleet.heal()
    fleet.run_until_settled(100)
    assert fleet.servers["server-00003"].serving == 2


def test_too_many_swaps_break_a_promise() -> None:
    fleet = settled()
    fleet.drop(2, Kind.GOOD)
    order = fleet.state.order + 1
    fleet._send([Grant(name, MODEL, 2, order) for name in fleet.servers])
    with pytest.raises(BrokenPromise, match="servers swap at the same time"):
        fleet.step(2)


def test_grant_of_a_version_without_files_is_noticed() -> None:
    fleet = settled()
    fleet.drop(2, Kind.GOOD, ["server-00001"])
    fleet._send([Grant("server-00002", MODEL, 2, fleet.state.order + 1)])
    with pytest.raises(BrokenPromise, match="has no such version"):
        fleet.step(2)


def test_stale_grant_is_ignored() -> None:
    fleet = settled()
    fleet.drop(2, Kind.GOOD)
    fleet._send([Grant("server-00002", MODEL, 2, 0)])
    fleet.step(1)
    assert fleet.servers["server-00002"].granted == 1


def test_missing_progress_breaks_a_promise() -> None:
    fleet = settled()
    fleet.drop(2, Kind.GOOD)
    with pytest.raises(BrokenPromise, match="not settled"):
        fleet.run_until_settled(10)


def test_kinds_differ_in_their_figures() -> None:
    good, slow, failing = (figures_of(kind, 60) for kind in (Kind.GOOD, Kind.SLOW, Kind.FAILING))
    assert slow.latency_ns_p999 > 2 * good.latency_ns_p999
    assert slow.latency_ns_p50 > 2 * good.latency_ns_p50
    assert failing.failed_count > 100 * max(1, good.failed_count)


def in_quiet_last_wave(kind: Kind) -> FleetSimulation:
    fleet = settled()
    fleet.is_quiet = True
    fleet.drop(2, kind)
    while (rollout := fleet.state.models[MODEL].rollout) is None or rollout.wave_index < 2:
        fleet.step()
    return fleet


def test_failing_version_is_stopped_after_quiet_waves() -> None:
    fleet = in_quiet_last_wave(Kind.FAILING)
    fleet.is_quiet = False
    fleet.run_until_settled(1_000)
    assert fleet.state.models[MODEL].stable == 1
    assert fleet.tally.blocked_in_wave == {2: 2}


def test_failing_version_must_not_become_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = in_quiet_last_wave(Kind.FAILING)
    fleet.is_quiet = False
    monkeypatch.setattr("fleet.rollout.judging.failure_verdict", lambda *values: None)
    with pytest.raises(BrokenPromise, match="version 2 is stable, and fails"):
        fleet.run_until_settled(1_000)


def test_bad_clients_do_not_stop_a_good_version() -> None:
    fleet = settled()
    fleet.has_bad_clients = True
    fleet.step(10)
    fleet.drop(2, Kind.GOOD)
    fleet.step(2)
    fleet.run_until_settled(1_000)
    assert fleet.state.models[MODEL].stable == 2
