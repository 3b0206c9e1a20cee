"""The version that is kept for a rollback: how long it stays while a further version comes."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from serving.base.errors import DoesNotFitBeside, FailedPrecondition
from serving.core.model_settings import CanarySettings, ModelSettings, PolicyName
from serving.core.servable import AVAILABLE, END, LOADING, UNLOADING, Routing, ServableState
from tests.unit.fakes.errors import permanent, transient
from tests.unit.worlds.manager import RETRY_SECONDS, World, answer, routing, world_with

KEEP_SECONDS = 300
KEEP = ModelSettings(keep_previous_seconds=KEEP_SECONDS)
KEEP_AND_CANARY = replace(KEEP, canary=CanarySettings(weight=0.1))
KEEP_AND_AUTO = replace(KEEP, aspired_version_policy=PolicyName.AUTO)
PARAMETER_BYTES = 500


def world_of_two(settings: ModelSettings) -> World:
    """Version 2 answers and version 1 is kept for a rollback."""
    world = world_with(settings)
    world.loading.figures = {"parameter_bytes": PARAMETER_BYTES}
    world.settle(1)
    world.settle(2)
    if settings.canary.weight:
        answer(world, world.manager.promote("m"))
    assert previous(world) == 1
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    return world


def previous(world: World) -> int | None:
    status = world.stream_status()
    assert status is not None
    return status.previous


def pass_time(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    world.manager.tick()
    world.run_all()


def does_not_fit(missing_bytes: int = 0) -> DoesNotFitBeside:
    return DoesNotFitBeside("3 needs 5 GB beside 1 and 2", missing_bytes=missing_bytes)


# --- Until the further version serves -------------------------------------------------------------


def test_previous_stays_until_further_version_serves() -> None:
    world = world_of_two(KEEP)
    seen: list[dict[int, ServableState]] = []
    world.loading.during = lambda: seen.append(world.states())
    world.settle(3)
    assert seen == [{1: AVAILABLE, 2: AVAILABLE, 3: LOADING}]
    assert world.states() == {1: END, 2: AVAILABLE, 3: AVAILABLE}
    assert previous(world) == 2


def test_previous_is_the_way_back_after_a_refused_load() -> None:
    world = world_of_two(KEEP)
    world.fail(3, permanent())
    world.settle(3)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: END}
    assert previous(world) == 1
    assert answer(world, world.manager.rollback("m")).version == 1
    assert routing(world) == Routing(default_version=1)
    assert len(world.loading.loads) == 3


def test_previous_stays_while_a_load_is_retried() -> None:
    world = world_of_two(KEEP)
    world.fail(3, transient())
    world.settle(3)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: LOADING}
    pass_time(world, RETRY_SECONDS)
    assert world.states() == {1: END, 2: AVAILABLE, 3: AVAILABLE}


def test_previous_goes_after_its_time_though_one_loads() -> None:
    world = world_of_two(KEEP)
    world.clock.advance(KEEP_SECONDS - 1)
    world.aspire(3)
    assert world.manager.next_due_seconds() == 1
    world.clock.advance(1)
    world.manager.tick()
    assert world.states() == {1: UNLOADING, 2: AVAILABLE, 3: LOADING}
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE, 3: AVAILABLE}


def test_keep_time_ending_during_a_load_wakes_nobody() -> None:
    world = world_of_two(KEEP)
    world.set_labels({"stable": 1})
    answer(world, world.manager.rollback("m"))
    # The label keeps version 1, which answers. Version 2 is kept for its time, and covers the load after it.
    world.aspire(0)
    world.clock.advance(KEEP_SECONDS)
    world.manager.tick()
    assert world.states() == {0: LOADING, 1: AVAILABLE, 2: AVAILABLE}
    assert world.manager.next_due_seconds() is None


def test_previous_leaves_on_time_despite_failure() -> None:
    world = world_of_two(KEEP)
    pass_time(world, 100)
    world.fail(3, permanent())
    world.settle(3)
    pass_time(world, KEEP_SECONDS - 101)
    assert world.states()[1] is AVAILABLE
    pass_time(world, 1)
    assert world.states() == {1: END, 2: AVAILABLE, 3: END}


def test_previous_stays_beside_unpromoted_canary() -> None:
    world = world_of_two(KEEP_AND_CANARY)
    world.settle(3)
    assert routing(world).canary_version == 3
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: AVAILABLE}
    assert previous(world) == 1
    answer(world, world.manager.promote("m"))
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE, 3: AVAILABLE}
    assert previous(world) == 2


def test_previous_stays_after_a_canary_is_rolled_back() -> None:
    world = world_of_two(KEEP_AND_CANARY)
    world.settle(3)
    assert answer(world, world.manager.rollback("m")).version == 2
    world.settle(2)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: END}
    assert answer(world, world.manager.rollback("m")).version == 1


def test_blocked_version_makes_place_for_the_next_load() -> None:
    world = world_of_two(KEEP)
    world.manager.rollback("m")
    world.settle(1)
    assert previous(world) == 2
    world.aspire(3)
    assert world.states() == {1: AVAILABLE, 2: UNLOADING, 3: LOADING}


def test_previous_of_two_served_goes_once_both_serve() -> None:
    world = world_with(KEEP)
    world.settle(1, 2)
    world.aspire(2, 3)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: LOADING}
    assert previous(world) == 1
    world.run_all()
    # Version 2, which serves anyway, is the way back from version 3.
    assert world.states() == {1: END, 2: AVAILABLE, 3: AVAILABLE}
    assert previous(world) is None


def test_version_that_is_withdrawn_leaves_the_previous() -> None:
    world = world_of_two(KEEP)
    world.fail(3, transient())
    world.settle(3)
    world.settle(2)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: END}
    assert previous(world) == 1


# --- Until memory is needed -----------------------------------------------------------------------


@pytest.mark.parametrize("settings", [KEEP, KEEP_AND_AUTO])
def test_previous_is_given_up_if_load_needs_memory(settings: ModelSettings) -> None:
    world = world_of_two(settings)
    world.fail(3, does_not_fit(PARAMETER_BYTES))
    with capture_logs() as logs:
        world.aspire(3)
        world.run_loads()
        assert world.states() == {1: UNLOADING, 2: AVAILABLE, 3: LOADING}
        # No time passes: the load does not wait for its retry.
        world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE, 3: AVAILABLE}
    (log,) = [log for log in logs if log["event"] == "previous_version_given_up"]
    assert (log["version"], log["for_version"]) == (1, 3)
    assert "resource_preserving_chosen" not in [log["event"] for log in logs]


def test_previous_is_given_up_beside_labelled_version() -> None:
    world = world_of_two(KEEP_AND_AUTO)
    world.set_labels({"stable": 2})
    world.fail(3, does_not_fit())
    world.settle(3)
    assert world.states() == {1: END, 2: AVAILABLE, 3: AVAILABLE}


def test_previous_freeing_too_little_is_kept() -> None:
    world = world_of_two(KEEP)
    world.fail(3, *[does_not_fit(PARAMETER_BYTES + 1)] * 3)
    world.settle(3)
    pass_time(world, RETRY_SECONDS)
    pass_time(world, RETRY_SECONDS)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: END}
    assert previous(world) == 1


def test_auto_policy_frees_more_than_small_previous() -> None:
    world = world_of_two(KEEP_AND_AUTO)
    world.fail(3, does_not_fit(PARAMETER_BYTES + 1))
    world.settle(3)
    assert world.states() == {1: END, 2: END, 3: AVAILABLE}


def test_auto_policy_drops_previous_before_current() -> None:
    world = world_of_two(KEEP_AND_AUTO)
    world.fail(3, does_not_fit(), does_not_fit())
    world.aspire(3)
    world.run_loads()
    assert world.states() == {1: UNLOADING, 2: AVAILABLE, 3: LOADING}
    world.run_unloads()
    world.run_loads()
    assert world.states() == {1: END, 2: UNLOADING, 3: LOADING}
    world.run_all()
    assert world.states() == {1: END, 2: END, 3: AVAILABLE}


def test_load_outwaits_leaving_version_beyond_retries() -> None:
    world = world_of_two(KEEP)
    world.servable(1).handle_count = 1
    world.fail(3, *[does_not_fit()] * 9)
    world.aspire(3)
    for _ in range(6):
        world.run_loads()
        world.clock.advance(RETRY_SECONDS)
        world.manager.tick()
    assert world.states() == {1: UNLOADING, 2: AVAILABLE, 3: LOADING}
    world.fail(3)
    world.servable(1).handle_count = 0
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE, 3: AVAILABLE}


def test_given_up_version_is_kept_on_return() -> None:
    world = world_of_two(KEEP)
    world.fail(3, does_not_fit())
    world.aspire(3)
    world.loaders.run_all()
    # In one turn the control thread receives the refusal, and then that 1 is aspired again.
    world.aspire(1)
    world.run_all()
    world.settle(2)
    assert world.states()[1] is AVAILABLE
    assert previous(world) == 1


def test_rollback_to_given_up_version_is_refused() -> None:
    world = world_of_two(KEEP)
    world.fail(3, does_not_fit(), permanent())
    world.settle(3)
    assert world.states() == {1: END, 2: AVAILABLE, 3: END}
    with pytest.raises(FailedPrecondition, match="no version before 2 in memory"):
        answer(world, world.manager.rollback("m"))
