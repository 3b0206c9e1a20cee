"""A version whose requests fail: it is stopped in whichever wave they come."""

from dataclasses import replace

import pytest

from fleet.rollout.failures import FAILED_COUNT_MIN
from fleet.rollout.figures import VersionFigures
from fleet.rollout.operations import allowed, paused, promoted, resumed
from fleet.rollout.state import fleet_state_from_json
from tests.fleet.worlds.fleet import LAST_WAVE_ONLY, MODEL, SETTINGS, FleetWorld, requests

MANY = 10 * FAILED_COUNT_MIN


def in_last_wave(**values: object) -> FleetWorld:
    """Returns a fleet whose servers all serve version 2 and have had no request."""
    world = FleetWorld(settings=LAST_WAVE_ONLY, **values)  # type: ignore[arg-type]
    world.step()
    world.take()
    world.step()
    assert all(report.default_version == 2 for report in world.reports.values())
    return world


def after_quiet_waves() -> FleetWorld:
    """Returns a fleet in the last wave, after two waves without a request."""
    world = FleetWorld()
    world.step()
    while not SETTINGS.is_last(world.rollout.wave_index):
        world.pass_wave()
    return world


def new_server(world: FleetWorld) -> str:
    return next(name for name, report in world.reports.items() if report.default_version == 2)


def swap_all(world: FleetWorld) -> None:
    """Lets every server swap, each with the requests that it has had until then."""
    while any(report.default_version == 1 for report in world.reports.values()):
        world.step(0)
        world.take()
    world.step(0)


def test_failing_version_is_stopped_after_quiet_waves() -> None:
    world = after_quiet_waves()
    assert world.model.stable == 1
    member = new_server(world)
    world.answer_stable(requests(MANY))
    world.answer(member, 2, requests(MANY, failed=MANY))
    world.step()
    assert world.model.blocked[2].reason == "all its requests failed"
    assert {*world.granted(1)} >= {member}
    verdict = world.model.verdicts[-1]
    assert (verdict.gate, verdict.figures["failed_count"]) == ("wave 3", MANY)


def test_last_wave_waits_for_requests_to_compare_with() -> None:
    world = after_quiet_waves()
    member = new_server(world)
    world.answer(member, 2, requests(MANY, failed=MANY // 3))
    world.step()
    assert 2 not in world.model.blocked
    swap_all(world)
    assert "33.3% of its requests failed" in world.model.blocked[2].reason


def test_failures_of_the_last_wave_are_not_diluted() -> None:
    world = FleetWorld()
    world.step()
    world.take()
    world.step()
    member = world.members[0]
    world.answer_stable(requests(10 * MANY))
    world.answer(member, 2, requests(10 * MANY))
    while not SETTINGS.is_last(world.rollout.wave_index):
        world.pass_wave()
    world.answer_stable(requests(11 * MANY))
    world.answer(member, 2, requests(10 * MANY + FAILED_COUNT_MIN, failed=FAILED_COUNT_MIN))
    world.step()
    assert world.model.blocked[2].reason == "all its requests failed"


@pytest.mark.parametrize(
    ("count", "failed", "is_blocked"),
    [(MANY, MANY, True), (MANY, MANY // 9, True), (MANY, MANY // 10, False), (99, 99, False)],
)
def test_last_wave_has_a_limit_of_failures(count: int, failed: int, is_blocked: bool) -> None:
    world = in_last_wave()
    world.answer("s3", 2, requests(count, failed=failed))
    world.step()
    assert (2 in world.model.blocked) == is_blocked


@pytest.mark.parametrize(
    ("count", "failed", "is_blocked"),
    [(1, 1, False), (2, 2, True), (3, 2, True), (4, 2, False), (20, 15, True)],
)
def test_few_failures_count_when_the_last_wave_ends(
    count: int, failed: int, is_blocked: bool
) -> None:
    world = in_last_wave()
    world.answer("s3", 2, requests(count, failed=failed))
    world.step(59)
    assert world.model.rollout is not None
    world.step(1)
    assert (2 in world.model.blocked) == is_blocked
    assert world.model.stable == (1 if is_blocked else 2)


def test_bad_clients_are_seen_beside_the_last_wave() -> None:
    world = after_quiet_waves()
    member = new_server(world)
    bad = requests(MANY, failed=MANY // 3)
    world.answer_stable(bad)
    world.answer(member, 2, bad)
    world.step()
    # They are still known when no server answers with version 1 any more.
    swap_all(world)
    world.step(60)
    assert (world.model.stable, dict(world.model.blocked)) == (2, {})


def test_control_that_restarts_keeps_what_was_seen() -> None:
    world = after_quiet_waves()
    member = new_server(world)
    others = [name for name in world.reports if world.reports[name].default_version == 1]
    for name in others:
        world.answer(name, 1, requests(FAILED_COUNT_MIN, failed=40))
    world.step()
    # Their counts begin again, and clients are good now.
    for name in {*others} - world.model.loading.keys():
        world.incarnations[name] = 2
        world.answer(name, 1, requests(9 * MANY))
    world.step()
    world.answer(member, 2, requests(MANY, failed=MANY // 3))
    world.step()
    assert 2 not in world.model.blocked


def test_bad_clients_of_before_excuse_the_last_wave() -> None:
    world = FleetWorld(settings=LAST_WAVE_ONLY)
    world.answer_stable(requests(MANY, failed=MANY // 4))
    world.step()
    world.take()
    world.step()
    world.answer("s3", 2, requests(MANY, failed=MANY // 3))
    world.step()
    assert 2 not in world.model.blocked
    # But not one that fails every request.
    world.answer("s3", 2, requests(MANY, failed=MANY))
    world.step()
    assert 2 in world.model.blocked


def test_bad_clients_are_known_to_a_next_coordinator() -> None:
    world = FleetWorld()
    world.step()
    world.take()
    world.step()
    bad = requests(MANY, failed=MANY // 4)
    world.answer_stable(bad)
    world.answer(world.members[0], 2, bad)
    while not SETTINGS.is_last(world.rollout.wave_index):
        world.pass_wave()
    swap_all(world)
    take_over(world)
    world.step()
    worse = requests(2 * MANY, failed=2 * MANY // 4)
    world.answer("s3", 2, worse)
    world.step()
    assert 2 not in world.model.blocked


def take_over(world: FleetWorld) -> None:
    world.state = fleet_state_from_json(world.state.as_json()).taken_over()
    world.watches = {}


def test_failures_are_known_to_each_next_coordinator() -> None:
    world = in_last_wave()
    for count in (FAILED_COUNT_MIN - 1, FAILED_COUNT_MIN):
        assert 2 not in world.model.blocked
        world.answer("s3", 2, requests(count, failed=count))
        take_over(world)
        world.step()
    assert 2 in world.model.blocked


def test_paused_last_wave_waits_for_clients() -> None:
    world = in_last_wave()
    world.state = paused(world.state, MODEL)
    world.step(1_000)
    assert world.model.stable == 1
    world.state = resumed(world.state, MODEL)
    world.step()
    assert world.model.stable == 2


def test_promoted_version_may_fail() -> None:
    world = FleetWorld()
    world.step()
    state = promoted(world.state, MODEL, SETTINGS)
    world.state = fleet_state_from_json(state.as_json())
    for _ in range(10):
        world.take(figures=requests(MANY, failed=MANY))
        world.step()
    world.step(60)
    assert (world.model.stable, dict(world.model.blocked)) == (2, {})


def test_first_version_is_not_stopped_early() -> None:
    world = FleetWorld(settings=replace(SETTINGS, judged_seconds=3_000))
    for name in world.reports:
        world.change(name, granted=None, default_version=None, versions={}, found=frozenset({1}))
    for _ in range(3):
        world.step()
        world.take(figures=requests(150, failed=150))
    assert dict(world.model.blocked) == {}


def test_first_version_may_fail_in_the_last_wave() -> None:
    world = FleetWorld(settings=replace(LAST_WAVE_ONLY, judged_seconds=5))
    for name in world.reports:
        world.change(name, granted=None, default_version=None, versions={}, found=frozenset({1}))
    for _ in range(3):
        world.step()
        world.take(figures=requests(MANY, failed=MANY))
    assert world.model.stable == 1


def test_failing_version_is_stopped_within_its_wave() -> None:
    world = FleetWorld(settings=replace(SETTINGS, judged_seconds=3_000))
    world.step()
    first = world.members[0]
    world.take()
    world.step()
    world.answer_stable(requests(MANY))
    world.answer(first, 2, requests(300, failed=FAILED_COUNT_MIN - 1))
    world.step()
    assert 2 not in world.model.blocked
    world.answer(first, 2, requests(300, failed=FAILED_COUNT_MIN))
    world.step()
    assert "33.3% of its requests failed" in world.model.blocked[2].reason


def test_early_stop_needs_requests_to_compare_with() -> None:
    world = FleetWorld(settings=replace(SETTINGS, judged_seconds=3_000))
    world.step()
    first = world.members[0]
    world.take()
    world.step()
    world.answer(first, 2, requests(300, failed=200))
    world.step()
    assert 2 not in world.model.blocked
    world.silent = world.reports.keys() - {first}
    world.answer(first, 2, requests(300, failed=200))
    world.step(31)
    assert 2 not in world.model.blocked


def test_late_coordinator_waits_for_first_reports() -> None:
    world = after_quiet_waves()
    member, bad = new_server(world), requests(MANY, failed=MANY // 3)
    take_over(world)
    # No server has reported to it.
    world.unseen, reports = dict.fromkeys(world.reports, world.second), world.reports
    world.reports = {}
    world.step()
    world.unseen, world.reports = {}, reports
    world.answer_stable(bad)
    world.answer(member, 2, bad)
    world.step()
    world.step()
    assert 2 not in world.model.blocked


def test_allowed_version_has_no_failures_of_before() -> None:
    world = in_last_wave()
    world.answer("s3", 2, requests(MANY, failed=MANY))
    world.step()
    assert 2 in world.model.blocked
    # It stays in memory.
    world.take()
    world.step()
    world.state = allowed(world.state, MODEL, 2)
    for _ in range(3):
        world.step()
        world.take()
    assert dict(world.model.blocked) == {}
    assert world.rollout.version == 2


def test_restarted_control_does_not_delay_a_stop() -> None:
    world = after_quiet_waves()
    member = new_server(world)
    for name in world.reports.keys() - {member, *world.model.loading}:
        world.incarnations[name] = 2
    world.silent = {*world.model.loading}
    world.answer(member, 2, requests(MANY, failed=MANY))
    world.step(31)
    world.step()
    assert 2 in world.model.blocked


def test_paused_version_is_not_stopped_by_two_failures() -> None:
    world = in_last_wave()
    world.state = paused(world.state, MODEL)
    world.step(1_000)
    world.answer("s3", 2, requests(2, failed=2))
    world.step()
    assert 2 not in world.model.blocked


def test_failures_without_requests_end_no_decision() -> None:
    world = in_last_wave()
    world.answer("s3", 2, VersionFigures(0, MANY))
    world.step(60)
    assert world.model.stable == 2
