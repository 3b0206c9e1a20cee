"""A version whose requests fail: it is stopped in whichever wave they come."""

from dataclasses import replace

import pytest

from serving.fleet.operations import promoted
from serving.fleet.state import fleet_state_from_json
from serving.fleet.trial import FAILED_COUNT_MIN
from tests.unit.worlds.fleet import LAST_WAVE_ONLY, MODEL, SETTINGS, FleetWorld, requests

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
    while not SETTINGS.is_last(world.rollout.wave):
        world.pass_wave()
    return world


def test_failing_version_is_stopped_after_quiet_waves() -> None:
    world = after_quiet_waves()
    assert world.model.stable == 1
    member = next(name for name, report in world.reports.items() if report.serves(2))
    world.answer(member, 2, requests(MANY, failed=MANY))
    world.step()
    assert "100.0% of its requests failed" in world.model.blocked[2].reason
    assert {*world.granted(1)} >= {member}
    assert world.model.verdicts[-1].gate == "wave 3"


@pytest.mark.parametrize(
    ("count", "failed", "is_blocked"),
    [(MANY, MANY, True), (MANY, MANY // 9, True), (MANY, MANY // 10, False), (99, 99, False)],
)
def test_last_wave_has_a_limit_of_failures(count: int, failed: int, is_blocked: bool) -> None:
    world = in_last_wave()
    world.answer("s3", 2, requests(count, failed=failed))
    world.step()
    assert (2 in world.model.blocked) == is_blocked


@pytest.mark.parametrize(("failed", "is_blocked"), [(1, False), (2, True)])
def test_few_failures_count_when_the_last_wave_ends(failed: int, is_blocked: bool) -> None:
    world = in_last_wave()
    world.answer("s3", 2, requests(3, failed=failed))
    world.step(59)
    assert world.model.rollout is not None
    world.step(1)
    assert (2 in world.model.blocked) == is_blocked
    assert world.model.stable == (1 if is_blocked else 2)


def test_bad_requests_are_not_blamed_on_the_last_wave() -> None:
    world = FleetWorld(settings=LAST_WAVE_ONLY)
    world.answer_stable(requests(MANY, failed=MANY // 4))
    world.step()
    world.take()
    world.step()
    # The next coordinator knows them too.
    world.state = fleet_state_from_json(world.state.as_json()).taken_over()
    world.watches = {}
    world.step()
    world.answer("s3", 2, requests(MANY, failed=MANY // 3))
    world.step()
    assert 2 not in world.model.blocked


def test_failures_before_the_last_wave_do_not_count() -> None:
    world = after_quiet_waves()
    member = next(name for name, report in world.reports.items() if report.serves(2))
    # A new coordinator: its watch begins with these figures.
    world.answer(member, 2, requests(MANY, failed=MANY))
    world.watches = {}
    world.step()
    world.answer(member, 2, requests(2 * MANY, failed=MANY))
    world.step()
    assert 2 not in world.model.blocked


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


def test_early_stop_needs_servers_to_compare_with() -> None:
    world = FleetWorld(settings=replace(SETTINGS, judged_seconds=3_000))
    world.step()
    first = world.members[0]
    world.take()
    world.step()
    world.silent = world.reports.keys() - {first}
    world.answer(first, 2, requests(300, failed=200))
    world.step(31)
    assert 2 not in world.model.blocked
