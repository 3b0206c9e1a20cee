"""The manager beyond load and unload: policies, the previous version, rollback, canary, labels."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from serving.base.errors import DoesNotFitBeside, FailedPrecondition, NotFound
from serving.core.model_settings import CanarySettings, ModelSettings, PolicyName
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    Routing,
    ServableId,
    ServableState,
)
from tests.unit.fakes.errors import StatusError, permanent
from tests.unit.fakes.requests import FakeStatistics
from tests.unit.worlds.manager import (
    CANARY,
    JUDGED,
    KEEP,
    World,
    answer,
    aspired,
    figures,
    judge,
    routing,
    world_with,
)

# --- The previous version -------------------------------------------------------------------------


def test_previous_version_stays_for_its_time() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    assert world.manager.next_due_seconds() == 300
    world.clock.advance(300)
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}
    assert world.manager.next_due_seconds() is None


def test_withdrawn_version_is_not_kept() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    world.settle(1)
    assert world.states() == {1: AVAILABLE, 2: END}
    assert world.loading.loads == [ServableId("m", 1), ServableId("m", 2)]


def test_nothing_is_kept_of_a_model_that_is_gone() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    world.settle()
    assert world.states() == {1: END, 2: END}


# --- Rollback -------------------------------------------------------------------------------------


def test_rollback_routes_at_once_and_blocks_the_other() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    done = answer(world, world.manager.rollback("m"))
    assert (done.rolled_back, done.version) == (2, 1)
    assert world.changeovers == [("m", 1, 2, "rolled_back")]
    assert routing(world).default_version == 1
    assert world.blocked_versions["m"] == frozenset({2})
    # The source goes on to list the versions on disk, and 2 stays out.
    world.settle(2)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    assert routing(world).default_version == 1
    world.clock.advance(300)
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: AVAILABLE, 2: END}


def test_rolled_back_version_stays_out_until_allowed() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    world.manager.rollback("m")
    world.clock.advance(300)
    world.settle(1, 2)
    world.clock.advance(300)
    world.settle(1, 2)
    assert world.states() == {1: AVAILABLE, 2: END}
    answer(world, world.manager.allow("m", 2))
    world.run_all()
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    assert routing(world).default_version == 2
    assert world.blocked_versions["m"] == frozenset()


def test_allowed_version_in_memory_needs_no_load() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    world.manager.rollback("m")
    world.settle(2)
    load_count = len(world.loading.loads)
    answer(world, world.manager.allow("m", 2))
    assert routing(world).default_version == 2
    world.run_all()
    assert len(world.loading.loads) == load_count


def test_rolled_back_version_never_answers_as_it_goes() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    world.manager.rollback("m")
    world.settle(1)
    # The next version is dropped: 2 leaves to free memory, and no unloader has had a turn yet.
    world.aspire(3)
    assert world.states()[2] is ServableState.UNLOADING
    assert world.serving_map.versions("m") == [1]
    assert routing(world) == Routing(default_version=1)


def test_unloading_version_retires_before_unloader() -> None:
    world = World()
    world.settle(1)
    seen: list[tuple[ServableState, list[int]]] = []
    world.monitor.add_listener(
        lambda status: seen.append((status.state, world.serving_map.versions("m")))
    )
    world.aspire()
    assert not world.servable(1).is_destroyed
    assert seen == [(ServableState.UNLOADING, [1])]
    assert world.serving_map.versions("m") == []


def test_label_keeps_no_rolled_back_version_answering() -> None:
    world = world_with(ModelSettings(aspired_version_policy=PolicyName.RESOURCE))
    world.set_labels({"old": 2})
    world.settle(2)
    world.on_disk = {1, 2}
    world.manager.rollback("m", is_cold_allowed=True)
    world.settle(1)
    assert routing(world) == Routing(default_version=1, labels={"old": 2})
    # Memory holds one version: 1 leaves before 3 comes, and 2 stays for its label alone.
    world.aspire(3)
    assert world.serving_map.versions("m") == [2]
    assert routing(world) == Routing(labels={"old": 2})
    world.fail(3, permanent())
    world.run_all()
    # Its failure blocked it, so that a source aspires the one before it.
    assert 3 in world.blocked_versions["m"]


def test_version_after_a_rollback_serves_as_any_other() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    world.manager.rollback("m")
    world.settle(3)
    assert world.states()[3] is AVAILABLE
    assert routing(world).default_version == 3
    assert world.states()[2] is END


def test_rollback_without_previous_names_remedy() -> None:
    world = World()
    world.settle(1)
    with pytest.raises(FailedPrecondition, match="keep_previous_seconds"):
        answer(world, world.manager.rollback("m"))
    assert world.blocked_versions == {}


def test_cold_rollback_serves_until_old_version_loads() -> None:
    world = World()
    world.settle(2)
    world.on_disk = {1, 2}
    done = answer(world, world.manager.rollback("m", is_cold_allowed=True))
    assert (done.rolled_back, done.version) == (2, None)
    assert (
        world.kept_blocked_versions["m"][2].reason == "rolled back from 2 to an earlier one on disk"
    )
    assert world.states() == {2: AVAILABLE}
    # The source selects without the blocked versions.
    world.aspire(1)
    assert world.states() == {1: LOADING, 2: AVAILABLE}
    world.run_all()
    assert world.states() == {1: AVAILABLE, 2: END}


def test_rollback_of_empty_model_is_not_found() -> None:
    world = World()
    with pytest.raises(NotFound, match="models with versions: none"):
        answer(world, world.manager.rollback("m"))


def test_allow_of_unblocked_version_lists_blocked() -> None:
    world = World()
    world.settle(1)
    with pytest.raises(FailedPrecondition, match="version 1 is not blocked; blocked: none"):
        answer(world, world.manager.allow("m", 1))


# --- Canary ---------------------------------------------------------------------------------------


def test_new_version_starts_as_canary_beside_old() -> None:
    world = world_with(CANARY)
    world.settle(1)
    assert routing(world) == Routing(default_version=1)
    world.settle(2)
    assert routing(world) == Routing(
        default_version=1, canary_version=2, canary_weight=0.1, canary_header="user"
    )
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    # Both change in one step: no request may see it as the highest version.
    assert world.serving_map.log == ["publish m/1", "publish m/2"]


def test_promoted_canary_replaces_old_version() -> None:
    world = world_with(CANARY)
    world.settle(1)
    world.settle(2)
    assert answer(world, world.manager.promote("m")) == 2
    world.run_all()
    assert routing(world) == Routing(default_version=2)
    assert world.states() == {1: END, 2: AVAILABLE}


def test_manual_canary_rollback_unloads_it() -> None:
    world = world_with(CANARY)
    world.settle(1)
    world.settle(2)
    assert answer(world, world.manager.rollback("m")).version == 1
    world.run_all()
    assert routing(world).canary_version is None
    assert world.states() == {1: AVAILABLE, 2: END}


def test_promote_without_a_canary_is_refused() -> None:
    world = World()
    world.settle(1)
    with pytest.raises(FailedPrecondition, match="no canary"):
        answer(world, world.manager.promote("m"))


def test_canary_replaced_by_newer_is_never_default() -> None:
    world = world_with(CANARY)
    world.settle(1)
    world.settle(2)
    world.settle(3)
    assert routing(world).default_version == 1
    assert routing(world).canary_version == 3
    assert world.states() == {1: AVAILABLE, 2: END, 3: AVAILABLE}


def judged(
    stable: FakeStatistics, candidate: FakeStatistics, stable_before: FakeStatistics | None = None
) -> World:
    world = world_with(JUDGED)
    world.settle(1)
    world.servable(1).figures = stable_before or figures(0)
    world.settle(2)
    world.servable(1).figures = stable
    world.servable(2).figures = candidate
    assert world.manager.next_due_seconds() == 1
    pass_a_second(world)
    return world


def pass_a_second(world: World) -> None:
    world.clock.advance(1)
    world.manager.tick()
    world.run_all()


def test_canary_waits_for_its_requests() -> None:
    world = judged(figures(1_000), figures(99))
    assert routing(world).canary_version == 2


def test_canary_with_good_figures_is_promoted() -> None:
    world = judged(figures(1_000), figures(100))
    assert world.states() == {1: END, 2: AVAILABLE}
    assert world.changeovers == [("m", 2, 1, "promoted")]
    verdict = world.status(2).verdicts[-1]
    assert (verdict.gate, verdict.is_passed) == ("canary", True)


def test_canary_that_fails_requests_is_rolled_back() -> None:
    world = judged(figures(10_000), figures(100, failed_count=50))
    assert world.states() == {1: AVAILABLE, 2: END}
    verdict = world.status(2).verdicts[-1]
    assert not verdict.is_passed
    assert "failures" in verdict.reason


@pytest.mark.parametrize(
    ("p999_ns", "states"),
    [(3_000_000, {1: AVAILABLE, 2: END}), (1_000_000, {1: END, 2: AVAILABLE})],
)
def test_slow_canary_is_compared_once_more(
    p999_ns: int, states: Mapping[int, ServableState]
) -> None:
    slow = figures(10_000, p999_ns=3_000_000)
    world = judged(figures(10_000), slow)
    assert routing(world).canary_version == 2
    pass_a_second(world)
    assert routing(world).canary_version == 2
    # Other requests decide.
    world.servable(1).figures = figures(20_000)
    world.servable(2).figures = figures(20_000, p999_ns=p999_ns)
    pass_a_second(world)
    assert world.states() == states
    assert world.status(2).verdicts[-1].figures["request_count"] == 10_000


@pytest.mark.parametrize(
    ("failed_count", "states"), [(0, {1: AVAILABLE, 2: AVAILABLE}), (5_000, {1: AVAILABLE, 2: END})]
)
def test_doubt_of_a_canary_stays_without_comparison(
    failed_count: int, states: Mapping[int, ServableState]
) -> None:
    world = judged(figures(10_000), figures(10_000, p999_ns=3_000_000))
    # The stable version gets too few requests to compare latencies with.
    world.servable(1).figures = figures(10_099)
    world.servable(2).figures = figures(20_000, failed_count)
    pass_a_second(world)
    assert world.states() == states


def test_canary_is_compared_with_the_stable_version() -> None:
    # Half of all requests failed yesterday, and none failed today.
    before, now = figures(9_000, failed_count=4_500), figures(10_000, failed_count=4_500)
    world = judged(now, figures(100, failed_count=8), stable_before=before)
    assert world.states() == {1: AVAILABLE, 2: END}
    found = world.status(2).verdicts[-1].figures
    assert (found["stable_request_count"], found["stable_failed_count"]) == (1_000, 0)


def test_allowed_canary_is_judged_by_new_requests() -> None:
    world = world_with(replace(JUDGED, keep_previous_seconds=300))
    world.settle(1)
    world.settle(2)
    failing = figures(200, failed_count=100)
    world.servable(2).figures = failing
    judge(world)
    assert world.blocked_versions["m"] == frozenset({2})
    answer(world, world.manager.allow("m", 2))
    world.manager.tick()
    assert routing(world).canary_version == 2
    # As many requests again, without a failure.
    world.servable(2).figures = figures(300, failed_count=100)
    judge(world)
    assert (routing(world).canary_version, routing(world).default_version) == (None, 2)
    assert world.changeovers[-1] == ("m", 2, 1, "promoted")


# --- Memory for one -------------------------------------------------------------------------------


def test_resource_policy_unloads_before_it_loads() -> None:
    world = world_with(ModelSettings(aspired_version_policy=PolicyName.RESOURCE))
    world.settle(1)
    world.aspire(2)
    assert world.states() == {1: ServableState.UNLOADING, 2: START}
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}


AUTO = ModelSettings(aspired_version_policy=PolicyName.AUTO)


def test_auto_policy_keeps_old_version_if_both_fit() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.aspire(2)
    assert world.states() == {1: AVAILABLE, 2: LOADING}


def test_auto_policy_unloads_first_if_both_do_not_fit() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.fail(2, DoesNotFitBeside("m/2 needs 5 GB beside 5 GB"))
    world.settle(2)
    assert world.states() == {1: END, 2: AVAILABLE}
    status = world.stream_status()
    assert status is not None
    assert status.unload_first_reason == ""


def test_auto_policy_has_reason_while_it_frees_memory() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.fail(2, DoesNotFitBeside("m/2 needs 5 GB beside 5 GB"))
    world.aspire(2)
    world.run_loads()
    status = world.stream_status()
    assert status is not None
    assert "5 GB beside" in status.unload_first_reason


def test_old_version_returns_if_its_successor_fails() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.fail(2, DoesNotFitBeside("m/2 needs 5 GB beside 5 GB"), permanent())
    world.settle(2)
    assert world.blocked_versions["m"] == frozenset({2})
    # The source then selects version 1.
    world.settle(1)
    assert world.states()[1] is AVAILABLE


def test_availability_keeps_old_if_both_do_not_fit() -> None:
    world = World()
    world.settle(1)
    world.fail(2, DoesNotFitBeside("m/2 needs 5 GB beside 5 GB"))
    world.settle(2)
    assert world.states() == {1: AVAILABLE, 2: LOADING}


# --- Labels and jitter ----------------------------------------------------------------------------


def test_label_moves_once_its_version_is_available() -> None:
    world = World()
    world.settle(1)
    world.set_labels({"stable": 1})
    world.aspire(2)
    world.set_labels({"stable": 2})
    assert world.streams.labels("m") == {"stable": 1}
    world.run_all()
    assert world.streams.labels("m") == {"stable": 2}
    assert world.states() == {1: END, 2: AVAILABLE}


def test_labelled_version_is_not_unloaded() -> None:
    world = World()
    world.settle(1)
    world.set_labels({"stable": 1})
    world.settle(2)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    world.settle(3)
    assert world.states() == {1: AVAILABLE, 2: END, 3: AVAILABLE}
    world.set_labels({})
    world.settle(3)
    assert world.states()[1] is END


def test_further_version_waits_for_jitter() -> None:
    world = World(load_jitter_seconds=60)
    world.settle(1)
    assert world.states() == {1: AVAILABLE}
    world.aspire(2)
    assert world.states() == {1: AVAILABLE, 2: START}
    assert world.manager.next_due_seconds() == 30
    world.clock.advance(30)
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}


def test_incumbent_is_the_version_that_answers() -> None:
    world = world_with(KEEP)
    world.settle(1)
    assert world.streams.incumbent(ServableId("m", 1)) is None
    assert world.streams.incumbent(ServableId("m", 2)) is world.servable(1)
    world.settle(2)
    assert world.streams.incumbent(ServableId("m", 3)) is world.servable(2)
    world.manager.rollback("m")
    world.manager.tick()
    assert world.streams.incumbent(ServableId("m", 3)) is world.servable(1)


def test_incumbent_of_a_lower_version_is_none() -> None:
    world = world_with(KEEP)
    world.settle(2)
    assert world.streams.incumbent(ServableId("m", 1)) is None


@pytest.mark.parametrize("policy", list(PolicyName))
def test_version_follows_one_whatever_the_policy(policy: PolicyName) -> None:
    """A policy may unload the version that serves before it loads the next one."""
    world = world_with(ModelSettings(aspired_version_policy=policy))
    world.settle(1)
    assert not world.streams.follows_another(ServableId("m", 1))
    seen: list[bool] = []
    world.loading.during = lambda: seen.append(world.streams.follows_another(ServableId("m", 2)))
    world.settle(2)
    assert seen == [True]


def test_incumbent_is_none_among_joint_versions() -> None:
    world = World()
    world.aspire(1, 2)
    world.run_all()
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    assert world.streams.incumbent(ServableId("m", 2)) is None
    assert not world.streams.follows_another(ServableId("m", 2))
    world.aspire(1, 2, 3)
    assert world.streams.incumbent(ServableId("m", 3)) is world.servable(2)


# --- Corners --------------------------------------------------------------------------------------


def test_cold_rollback_without_older_one_is_refused() -> None:
    world = World()
    world.settle(2)
    world.on_disk = {2, 3}
    with pytest.raises(FailedPrecondition, match="no version before 2 on disk"):
        answer(world, world.manager.rollback("m", is_cold_allowed=True))
    assert world.blocked_versions == {}


def test_cold_rollback_loads_no_former_base_path() -> None:
    world = World()
    world.settle(2)
    # As a source says whose new base path cannot be read: version 1 of the former one is there.
    world.on_disk, world.awaited_base_path = {2}, "/new"
    with pytest.raises(FailedPrecondition, match=r"in its base path /new, where none is found yet"):
        answer(world, world.manager.rollback("m", is_cold_allowed=True))
    assert world.blocked_versions == {}


def test_refused_rollback_names_rolled_back_version() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    answer(world, world.manager.rollback("m"))
    with pytest.raises(FailedPrecondition, match=r"2 is blocked: millpond allow"):
        answer(world, world.manager.rollback("m"))


def test_cold_rollback_excludes_newer_load() -> None:
    world = World()
    world.settle(2)
    world.on_disk = {1, 2, 3}
    world.aspire(3)
    answer(world, world.manager.rollback("m", is_cold_allowed=True))
    world.run_all()
    assert world.serving_map.versions("m") == [2]


def test_cold_rollback_goes_on_if_a_version_fails() -> None:
    world = World()
    world.fail(2, permanent())
    world.settle(2)
    world.on_disk = {1, 2}
    assert answer(world, world.manager.rollback("m", is_cold_allowed=True)).version is None
    assert world.blocked_versions["m"] == frozenset({2})


def test_blocks_outlive_versions_and_can_be_lifted() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    answer(world, world.manager.rollback("m"))
    world.settle()
    assert world.stream_status() is None
    assert world.manager.next_due_seconds() is None
    answer(world, world.manager.allow("m", 2))
    assert world.blocked_versions["m"] == frozenset()


def test_new_source_receives_rolled_back_versions() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    answer(world, world.manager.rollback("m"))
    world.settle()
    world.blocked_versions.clear()
    world.settle(1)
    assert world.blocked_versions["m"] == frozenset({2})


def test_manager_stops_with_blocked_version() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    answer(world, world.manager.rollback("m"))
    world.manager.stop(timeout_seconds=0)
    world.manager.tick()
    world.run_all()
    assert world.streams.of("m").is_idle


def test_unpublishable_version_leaves_routing() -> None:
    world = World()
    world.settle(1)

    def refuse(*arguments: object) -> None:
        raise StatusError(3, "no routing")

    world.serving_map.publish = refuse  # type: ignore[assignment,method-assign]
    world.settle(2)
    assert world.serving_map.versions("m") == [1]
    assert routing(world) == Routing(default_version=1)
    assert world.states() == {1: AVAILABLE, 2: END}
    assert world.servable(2).is_destroyed


def test_previous_versions_time_begins_at_promotion() -> None:
    world = world_with(ModelSettings(keep_previous_seconds=300, canary=CanarySettings(weight=0.1)))
    world.settle(1)
    world.settle(2)
    world.clock.advance(1_000)
    answer(world, world.manager.promote("m"))
    world.run_all()
    assert world.states()[1] is AVAILABLE
    assert world.manager.next_due_seconds() == 300


def test_previous_time_starts_once_label_moves() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.set_labels({"stable": 1})
    world.settle(2)
    world.clock.advance(1_000)
    world.set_labels({"stable": 2})
    world.manager.tick()
    world.run_all()
    assert world.states()[1] is AVAILABLE


def test_label_that_goes_wakes_the_manager() -> None:
    world = World()
    world.settle(1)
    world.set_labels({"stable": 1})
    world.settle(2)
    world.set_labels({})
    # The source sends no list: the next tick is enough.
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}


def test_waiting_label_is_logged() -> None:
    world = World()
    world.settle(1)
    world.set_labels({"stable": 9})
    world.manager.tick()
    status = world.stream_status()
    assert status is not None
    assert (status.labels, status.waiting_labels) == ({}, {"stable": 9})


def test_returning_withdrawn_canary_is_canary_again() -> None:
    world = world_with(CANARY)
    world.settle(1)
    world.settle(2)
    world.settle(1)
    assert world.states() == {1: AVAILABLE, 2: END}
    world.settle(2)
    assert routing(world).canary_version == 2


def test_allowed_canary_in_memory_continues() -> None:
    world = world_with(ModelSettings(keep_previous_seconds=300, canary=CanarySettings(weight=0.1)))
    world.settle(1)
    world.settle(2)
    answer(world, world.manager.rollback("m"))
    world.settle(1)
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    answer(world, world.manager.allow("m", 2))
    world.settle(2)
    assert routing(world).canary_version == 2


def test_unpromoted_canary_is_never_default() -> None:
    world = world_with(CANARY)
    world.settle(1)
    world.settle(1, 2)
    assert routing(world).canary_version == 2
    world.settle(2, 3)
    assert (routing(world).default_version, routing(world).canary_version) == (1, 3)
    assert world.states()[1] is AVAILABLE


def test_versions_loaded_together_are_not_canaries() -> None:
    world = world_with(CANARY)
    world.settle(1, 2)
    assert routing(world) == Routing(default_version=2)


def test_canary_share_follows_settings() -> None:
    world = world_with(CANARY)
    world.settle(1)
    world.settle(2)
    world.manager.set_settings("m", ModelSettings(canary=CanarySettings(weight=0.5)))
    world.manager.tick()
    assert routing(world).canary_weight == 0.5
    world.manager.set_settings("m", ModelSettings())
    world.manager.tick()
    world.run_all()
    assert routing(world) == Routing(default_version=2)
    assert world.states() == {1: END, 2: AVAILABLE}


def test_canary_withdrawn_while_it_is_published_ends() -> None:
    world = world_with(CANARY)
    world.settle(1)
    world.aspire(2)
    world.loading.during = lambda: world.manager.set_aspired("m", aspired(1))
    world.run_all()
    world.clock.advance(1_000)
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: AVAILABLE, 2: END}


def test_deferred_load_leaves_manager_at_rest() -> None:
    world = World(load_jitter_seconds=60)
    world.settle(1)
    world.aspire(1, 2)
    world.clock.advance(20)
    world.aspire(1, 2, 3)
    world.clock.advance(10)
    world.manager.tick()
    assert world.manager.next_due_seconds() == 20


AUTO_AND_KEEP = ModelSettings(aspired_version_policy=PolicyName.AUTO, keep_previous_seconds=300)


def test_auto_policy_awaits_memory_of_leaving_version() -> None:
    world = world_with(AUTO_AND_KEEP)
    world.settle(1)
    world.settle(2)
    world.servable(1).handle_count = 1
    world.fail(3, DoesNotFitBeside("1 is still there"))
    world.aspire(3)
    world.run_loads()
    assert world.states()[2] is AVAILABLE
    world.servable(1).handle_count = 0
    world.run_all()
    assert world.states()[3] is AVAILABLE


def test_auto_policy_unloads_nothing_if_label_holds_it() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.set_labels({"old": 1})
    world.settle(2)
    world.fail(3, *[DoesNotFitBeside("1 and 2 are there")] * 9)
    world.settle(3)
    for _ in range(4):
        world.clock.advance(100)
        world.manager.tick()
        world.run_all()
    assert world.states()[2] is AVAILABLE


def test_auto_policy_needs_no_retries() -> None:
    world = World(retry_count_max=0)
    world.manager.set_settings("m", AUTO)
    world.settle(1)
    world.fail(2, DoesNotFitBeside("beside 1"))
    world.settle(2)
    assert world.states() == {1: END, 2: AVAILABLE}


def test_withdrawn_version_frees_no_memory() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.servable(1).handle_count = 1
    world.fail(2, DoesNotFitBeside("beside 1"))
    world.aspire(2)
    world.run_loads()
    world.aspire(1)
    status = world.stream_status()
    assert status is not None
    assert status.unload_first_reason == ""


def test_resource_policy_restores_old_if_new_one_fails() -> None:
    world = world_with(ModelSettings(aspired_version_policy=PolicyName.RESOURCE))
    world.settle(1)
    world.fail(2, permanent())
    world.settle(2)
    assert world.blocked_versions["m"] == frozenset({2})
    world.settle(1)
    assert world.states()[1] is AVAILABLE


def test_version_zero_is_a_version() -> None:
    world = world_with(KEEP)
    world.settle(0)
    world.settle(1)
    answer(world, world.manager.rollback("m"))
    status = world.stream_status()
    assert status is not None
    assert status.default_version == 0


def test_change_to_availability_keeps_old_version() -> None:
    world = world_with(AUTO)
    world.settle(1)
    world.fail(2, DoesNotFitBeside("beside 1"))
    world.aspire(2)
    world.loaders.run_all()
    # In one turn the control thread receives the refusal, and then this.
    world.manager.set_settings("m", ModelSettings())
    world.manager.tick()
    assert world.states()[1] is AVAILABLE
