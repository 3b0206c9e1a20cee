"""The memory pressure of a version: the versions that leave for it, the time, and the cases without
any.
"""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from serving.base.errors import DoesNotFitBeside, ResourceExhausted, StatusCode
from serving.core.model_settings import ModelSettings, PolicyName
from serving.core.servable import AVAILABLE, END, LOADING, START, UNLOADING
from tests.unit.fakes.errors import permanent, transient
from tests.unit.worlds.manager import RETRY_SECONDS, World

AVAILABILITY = ModelSettings()
RESOURCE = ModelSettings(aspired_version_policy=PolicyName.RESOURCE)
AUTO = ModelSettings(aspired_version_policy=PolicyName.AUTO)

JITTER_SECONDS = 60
# `World` draws half of it.
PUT_OFF_SECONDS = JITTER_SECONDS / 2


def world_with(settings: ModelSettings, jitter_seconds: float = 0) -> World:
    world = World(load_jitter_seconds=jitter_seconds)
    world.manager.set_settings("m", settings)
    return world


def refused(count: int = 100) -> list[Exception]:
    return [DoesNotFitBeside("2 needs 5 GB beside 5 GB")] * count


def pass_time(world: World, round_count: int = 10) -> None:
    """Passes time until all possible retries have been made."""
    for _ in range(round_count):
        world.clock.advance(RETRY_SECONDS)
        world.manager.tick()
        world.run_all()


def unload_first_reason(world: World) -> str:
    status = world.stream_status()
    assert status is not None
    return status.unload_first_reason


# --- Time -----------------------------------------------------------------------------------------


def test_unload_for_memory_waits_for_jitter() -> None:
    world = world_with(RESOURCE, JITTER_SECONDS)
    world.settle(1)
    world.aspire(2)
    assert world.states() == {1: AVAILABLE, 2: START}
    assert world.manager.next_due_seconds() == PUT_OFF_SECONDS
    world.clock.advance(PUT_OFF_SECONDS)
    world.manager.tick()
    assert world.states() == {1: UNLOADING, 2: START}
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}


def test_swap_waits_for_jitter_only_once() -> None:
    world = world_with(AUTO, JITTER_SECONDS)
    world.settle(1)
    world.fail(2, *refused(1))
    with capture_logs() as logs:
        world.aspire(2)
        world.clock.advance(PUT_OFF_SECONDS)
        world.manager.tick()
        world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}
    assert [log["event"] for log in logs].count("load_delayed") == 1


def test_load_without_jitter_frees_memory_after_it() -> None:
    world = world_with(AUTO, JITTER_SECONDS)
    world.fail(2, transient(), *refused(1))
    # The first version of a model does not wait for the jitter; when 2 is retried, 1 serves.
    world.settle(1, 2)
    world.aspire(2)
    world.clock.advance(RETRY_SECONDS)
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: AVAILABLE, 2: LOADING}
    world.clock.advance(PUT_OFF_SECONDS)
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}


def test_old_version_leaves_at_once_beside_aspired() -> None:
    world = world_with(RESOURCE, JITTER_SECONDS)
    world.settle(1)
    world.settle(1, 2)
    pass_time(world, 1)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    world.aspire(2, 3)
    assert world.states() == {1: UNLOADING, 2: AVAILABLE, 3: START}


# --- Versions that may and may not cause an unload ------------------------------------------------


@pytest.mark.parametrize("settings", [AVAILABILITY, RESOURCE, AUTO])
def test_unfit_version_beside_aspired_fails_for_good(
    settings: ModelSettings,
) -> None:
    world = world_with(settings)
    world.settle(1)
    world.fail(2, *refused())
    world.settle(1, 2)
    pass_time(world)
    assert world.states() == {1: AVAILABLE, 2: END}
    assert (len(world.loading.loads), unload_first_reason(world)) == (4, "")
    health = world.status(2).health
    assert health.code is StatusCode.RESOURCE_EXHAUSTED
    assert "5 GB beside 5 GB; no version can be unloaded to make room: 1 aspired" in health.message


@pytest.mark.parametrize("settings", [RESOURCE, AUTO])
def test_unfit_version_retries_once_one_can_leave(
    settings: ModelSettings,
) -> None:
    world = world_with(settings)
    world.settle(1)
    # The number of tries beside 1: `auto` makes one more before 1 leaves.
    world.fail(2, *refused(4 if settings is AUTO else 3))
    world.settle(1, 2)
    pass_time(world)
    world.settle(2)
    assert world.states() == {1: END, 2: AVAILABLE}


def test_version_unfit_by_policy_stops_retrying() -> None:
    world = world_with(AVAILABILITY)
    world.settle(1)
    world.fail(2, *refused())
    world.settle(1, 2)
    pass_time(world)
    world.settle(2)
    pass_time(world)
    assert world.states() == {1: AVAILABLE, 2: END}
    assert len(world.loading.loads) == 1 + 3 + 3


def test_version_too_large_for_memory_never_retries() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.fail(2, *[ResourceExhausted("2 needs 50 GB of 5")] * 100)
    world.settle(1, 2)
    pass_time(world)
    world.settle(2)
    pass_time(world)
    assert world.states() == {1: AVAILABLE, 2: END}
    assert len(world.loading.loads) == 1 + 3


def test_label_keeps_old_version_and_its_neighbour() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.set_labels({"old": 1})
    world.settle(2)
    world.fail(3, *refused(1))
    world.aspire(3)
    world.run_loads()
    assert unload_first_reason(world) == ""
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: LOADING}


# --- Afterwards -----------------------------------------------------------------------------------


def test_refused_load_retries_once_old_version_ends() -> None:
    world = world_with(replace(AVAILABILITY, keep_previous_seconds=300))
    world.settle(1)
    world.settle(2)
    world.servable(1).handle_count = 1
    world.fail(3, *refused(1))
    world.aspire(3)
    world.run_loads()
    assert world.states() == {1: UNLOADING, 2: AVAILABLE, 3: LOADING}
    assert world.manager.next_due_seconds() == RETRY_SECONDS
    world.servable(1).handle_count = 0
    # No time passes: the load does not wait for its retry.
    world.run_all()
    assert world.states()[3] is AVAILABLE


def test_load_that_is_given_room_has_not_failed() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.fail(2, *refused(2))
    world.aspire(2)
    world.run_loads()
    waiting = world.status(2)
    assert waiting.is_given_room
    assert "attempt" not in waiting.health.message
    assert "waits for the memory of a version that is unloaded" in waiting.health.message
    # The old version is gone, and the load lacks memory all the same: now it has failed.
    world.run_all()
    assert world.states() == {1: END, 2: LOADING}
    assert not world.status(2).is_given_room
    assert "load attempt 2" in world.status(2).health.message


@pytest.mark.parametrize("settings", [AUTO, RESOURCE])
def test_memory_is_free_before_its_load_begins(settings: ModelSettings) -> None:
    world = world_with(settings)
    world.settle(1)
    seen: list[tuple[bool, object]] = []

    def unloaded(servable_id: object, *, makes_room: bool = False) -> None:
        del servable_id
        seen.append((makes_room, world.states()[1]))

    world.memory.unloaded = unloaded  # type: ignore[method-assign]
    world.fail(2, *refused(1 if settings is AUTO else 0))
    world.settle(2)
    assert world.states() == {1: END, 2: AVAILABLE}
    assert seen == [(True, UNLOADING)]


@pytest.mark.parametrize("settings", [AUTO, RESOURCE])
def test_room_is_kept_as_long_as_a_load_is_to_come(settings: ModelSettings) -> None:
    world = world_with(settings)
    world.settle(1)
    refusals = refused(1 if settings is AUTO else 0)
    world.fail(2, *refusals, transient(), permanent())
    world.aspire(2)
    for _ in refusals:
        world.run_loads()
    world.run_unloads()
    assert world.memory.rooms == {"m"}
    world.run_all()
    assert world.states() == {1: END, 2: LOADING}
    assert world.memory.rooms == {"m"}, "while a retry waits"
    pass_time(world, 2)
    # Version 1 is gone from the disk, and nobody tries version 2 again.
    assert world.states() == {1: END, 2: END}
    assert world.memory.rooms == set()


def test_load_failed_otherwise_ignores_freed_memory() -> None:
    world = world_with(AVAILABILITY)
    world.settle(1)
    world.fail(3, transient())
    world.settle(1, 2, 3)
    world.settle(2, 3)
    assert world.states() == {1: END, 2: AVAILABLE, 3: LOADING}


def test_previous_version_leaves_only_for_serving_one() -> None:
    world = world_with(replace(AVAILABILITY, keep_previous_seconds=300))
    world.settle(1)
    world.settle(2)
    world.aspire(2)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    world.aspire(2, 3)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE, 3: LOADING}
    world.run_loads()
    assert world.states() == {1: UNLOADING, 2: AVAILABLE, 3: AVAILABLE}


def test_resource_retry_awaits_withdrawn_version() -> None:
    world = world_with(RESOURCE)
    world.settle(1)
    world.fail(2, transient())
    world.settle(1, 2)
    assert world.states() == {1: AVAILABLE, 2: LOADING}
    world.clock.advance(RETRY_SECONDS)
    world.servable(1).handle_count = 1
    world.aspire(2)
    assert world.states() == {1: UNLOADING, 2: LOADING}
    assert not world.loaders.tasks
    # Nothing is due until the unload reports its end.
    assert world.manager.next_due_seconds() is None
    world.servable(1).handle_count = 0
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}


def test_permanent_failure_restores_unloaded_version() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.fail(2, *refused(1), permanent())
    world.settle(2)
    assert (world.blocked_versions["m"], unload_first_reason(world)) == (frozenset({2}), "")


def test_pressure_ends_with_its_load_under_any_policy() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.fail(2, *refused(1), permanent())
    world.aspire(2)
    world.run_loads()
    assert world.states() == {1: UNLOADING, 2: LOADING}
    # The policy changes while the load waits for memory, and back once it has failed.
    world.manager.set_settings("m", AVAILABILITY)
    world.run_all()
    assert world.states() == {1: END, 2: END}
    world.manager.set_settings("m", AUTO)
    world.manager.tick()
    assert unload_first_reason(world) == ""
