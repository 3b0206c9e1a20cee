"""Reasons for a version to come back or stay out: lifted blocks, blocks that outlive the process,
and changed settings that justify another try.
"""

import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from serving.base.errors import DoesNotFitBeside, FailedPrecondition
from serving.base.fingerprint import Fingerprint
from serving.core.blocked_versions import BlockedBy, BlockedVersion, as_kept_rows, from_rows
from serving.core.model_settings import GateMode, GateSettings, ModelSettings, PolicyName
from serving.core.servable import AVAILABLE, END, ServableId, ServableStatus
from serving.gates.gates import Gate, verdict_of
from tests.unit.fakes.errors import permanent
from tests.unit.fakes.requests import FakeStatistics
from tests.unit.worlds.manager import (
    JUDGED,
    KEEP,
    RETRY_SECONDS,
    World,
    answer,
    aspired,
    aspired_with,
    judge,
    world_with,
)

# --- Blocks that are lifted -----------------------------------------------------------------------

RESOURCE = ModelSettings(aspired_version_policy=PolicyName.RESOURCE)


def world_of_a_failure_without_cover() -> World:
    """Version 2 has finally failed after 1 was unloaded for it, and 1 is back."""
    world = world_with(RESOURCE)
    world.settle(1)
    world.fail(2, permanent())
    world.settle(2)
    world.settle(1)
    assert (world.states()[1], world.blocked_versions["m"]) == (AVAILABLE, frozenset({2}))
    return world


def test_block_for_failure_lifts_if_files_change() -> None:
    world = world_of_a_failure_without_cover()
    world.manager.found_anew("m", 2)
    world.manager.tick()
    assert world.blocked_versions["m"] == frozenset()
    world.settle(2)
    assert world.states() == {1: END, 2: AVAILABLE}


def test_failures_block_all_aspired_if_none_serves() -> None:
    world = world_with(ModelSettings())
    for version in (2, 3):
        world.fail(version, permanent(), permanent())
    world.aspire(2, 3)
    world.loaders.run_one()
    world.manager.tick()
    # The other one may still serve.
    assert world.blocked_versions.get("m", frozenset()) == frozenset()
    world.run_all()
    assert world.blocked_versions["m"] == frozenset({2, 3})
    assert len(world.loading.loads) == 2
    assert {world.status(version).health.message for version in (2, 3)} == {"bad checksum"}
    world.settle(1)
    assert world.states() == {1: AVAILABLE, 2: END, 3: END}


def test_failure_is_seen_once_source_knows_of_it() -> None:
    """Whoever waits for the model then sees the version that replaces it."""
    world = world_with(ModelSettings())
    seen: list[frozenset[int]] = []

    def look(status: ServableStatus) -> None:
        if status.state is END:
            seen.append(world.blocked_versions.get("m", frozenset()))

    world.monitor.add_listener(look)
    world.fail(2, permanent())
    world.settle(2)
    assert seen == [frozenset({2})]


def test_failures_are_forgotten_with_the_model() -> None:
    world = world_with(ModelSettings())
    world.fail(2, permanent())
    world.settle(2)
    world.settle()
    assert world.blocked_versions["m"] == frozenset()
    world.settle(2)
    assert world.states() == {2: AVAILABLE}


def test_block_for_failure_is_described_but_not_kept() -> None:
    world = world_of_a_failure_without_cover()
    status = world.stream_status()
    assert status is not None
    assert status.blocked_versions == [
        {
            "version": 2,
            "by": "failure",
            "reason": "bad checksum",
            "since_wall_ns": world.clock.wall_ns(),
        }
    ]
    assert world.kept_blocked_versions == {"m": {}}


def test_block_of_rollback_ignores_file_changes() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    answer(world, world.manager.rollback("m"))
    world.manager.found_anew("m", 2)
    world.manager.found_anew("m", 3)
    world.manager.found_anew("unknown", 1)
    world.manager.tick()
    assert world.blocked_versions["m"] == frozenset({2})


def test_rollback_of_failed_version_outlives_files() -> None:
    world = world_of_a_failure_without_cover()
    world.on_disk = {0}
    world.manager.set_aspired("m", aspired(1))
    answer(world, world.manager.rollback("m", is_cold_allowed=True))
    world.block(2, BlockedBy.OPERATOR, "bad answers")
    world.manager.found_anew("m", 2)
    world.manager.tick()
    assert 2 in world.blocked_versions["m"]
    # A later failure does not replace the operator's reason.
    world.block(2, BlockedBy.FAILURE, "again")
    assert world.kept_blocked_versions["m"][2].reason == "bad answers"


# --- Blocks that outlive the process --------------------------------------------------------------


def test_rollback_is_kept_in_full_until_allowed() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    since_wall_ns = world.clock.wall_ns()
    answer(world, world.manager.rollback("m"))
    assert world.kept_blocked_versions["m"] == {
        2: BlockedVersion(
            by=BlockedBy.OPERATOR, reason="rolled back from 2 to 1", since_wall_ns=since_wall_ns
        )
    }
    answer(world, world.manager.allow("m", 2))
    assert world.kept_blocked_versions["m"] == {}


def test_rule_rollback_is_kept_with_figures() -> None:
    world = world_with(JUDGED)
    world.settle(1)
    world.servable(1).figures = FakeStatistics(request_count=1_000, failed_count=0)
    world.settle(2)
    world.servable(2).figures = FakeStatistics(request_count=0, failed_count=0)
    judge(world)
    world.servable(2).figures = FakeStatistics(request_count=200, failed_count=100)
    world.servable(1).figures = FakeStatistics(request_count=3_000, failed_count=0)
    judge(world)
    block = world.kept_blocked_versions["m"][2]
    assert (block.by, block.needs_operator) == (BlockedBy.CANARY, True)
    assert block.reason


def test_stop_keeps_rolled_back_versions() -> None:
    world = world_with(KEEP)
    world.settle(1)
    world.settle(2)
    answer(world, world.manager.rollback("m"))
    world.manager.stop(timeout_seconds=0)
    world.manager.tick()
    world.run_all()
    assert world.kept_blocked_versions["m"].keys() == {2}


KEPT = {"m": {2: BlockedVersion(by=BlockedBy.OPERATOR, reason="rolled back", since_wall_ns=5)}}


def test_rolled_back_version_stays_out_after_restart() -> None:
    world = World(blocked_versions=KEPT)
    assert world.streams.blocked("m") == {2}
    assert world.streams.blocked("n") == frozenset()
    world.manager.tick()
    assert world.manager.next_due_seconds() is None
    world.settle(1)
    assert world.blocked_versions["m"] == frozenset({2})
    # This holds even if it is aspired beside another version.
    world.settle(1, 2)
    assert world.states() == {1: AVAILABLE}
    status = world.stream_status()
    assert status is not None
    assert (status.blocked, status.blocked_versions[0]["reason"]) == ((2,), "rolled back")


def test_version_blocked_before_restart_can_be_allowed() -> None:
    world = World(blocked_versions=KEPT)
    answer(world, world.manager.allow("m", 2))
    assert (world.kept_blocked_versions, world.streams.blocked("m")) == ({"m": {}}, frozenset())
    world.settle(2)
    assert world.states() == {2: AVAILABLE}


def test_later_settings_hold_for_blocked_model() -> None:
    world = World(blocked_versions=KEPT)
    world.manager.set_settings("m", KEEP)
    world.settle(1)
    world.settle(3)
    assert world.states() == {1: AVAILABLE, 3: AVAILABLE}


# --- Settings that justify another try ------------------------------------------------------------

ENFORCED = ModelSettings(gates=GateSettings(drift=GateMode.ENFORCE))
RELAXED = ModelSettings(gates=GateSettings(drift=GateMode.WARN))


def refuse(world: World, version: int, *gates: Gate) -> None:
    """Makes the next load of `version` fail `gates`, which are enforced."""
    world.fail(version, FailedPrecondition("gates"))
    world.loading.verdicts[ServableId("m", version)] = [
        verdict_of(gate, GateMode.ENFORCE, ["bad"]) for gate in gates
    ]


def world_of_a_refusal(model_settings: ModelSettings = ENFORCED) -> World:
    world = world_with(model_settings)
    world.settle(1)
    refuse(world, 2, Gate.DRIFT)
    world.settle(2)
    assert world.states()[2] is END
    return world


def set_settings(world: World, model_settings: ModelSettings) -> None:
    world.manager.set_settings("m", model_settings)
    world.manager.tick()
    world.run_all()


def test_refused_version_retries_once_gate_is_relaxed() -> None:
    world = world_of_a_refusal()
    with capture_logs() as logs:
        set_settings(world, RELAXED)
    assert world.states() == {1: END, 2: AVAILABLE}
    reasons = [log["reason"] for log in logs if log["event"] == "load_tried_again"]
    assert reasons == ["the settings of gate 'drift' have changed"]


def test_refusal_if_none_serves_is_the_gates_block() -> None:
    """A gate that needs no predecessor has refused the version at a start. Its block says more than a failure's."""
    world = world_with(ENFORCED)
    refuse(world, 2, Gate.WARM_UP)
    world.settle(2)
    (block,) = world.streams.blocks("m").values()
    assert block.by is BlockedBy.GATE


def test_refusal_after_a_failure_begins_no_other_load() -> None:
    world = world_with(ENFORCED)
    world.fail(2, permanent(), permanent())
    refuse(world, 3, Gate.WARM_UP)
    world.aspire(2, 3)
    world.run_all()
    assert world.states() == {2: END, 3: END}
    assert len(world.loading.loads) == 2
    assert world.blocked_versions["m"] == frozenset({2, 3})


def test_failure_spares_what_is_to_be_loaded_again() -> None:
    """A version is aspired again while it is unloaded. Its unload ends just before the other's load fails."""
    world = world_with(ModelSettings())
    world.settle(2)
    world.aspire()
    world.fail(3, permanent())
    world.aspire(2, 3)
    world.unloaders.run_one()
    world.loaders.run_one()
    world.manager.tick()
    assert world.blocked_versions.get("m", frozenset()) == frozenset()


def test_refused_version_ignores_other_gates() -> None:
    world = world_of_a_refusal()
    set_settings(
        world,
        ModelSettings(
            keep_previous_seconds=9.0,
            gates=GateSettings(drift=GateMode.ENFORCE, latency=GateMode.OFF),
        ),
    )
    assert world.states() == {1: AVAILABLE, 2: END}
    assert len(world.loading.loads) == 2


def test_version_that_is_refused_again_is_tried_once() -> None:
    world = world_of_a_refusal()
    refuse(world, 2, Gate.DRIFT)
    set_settings(
        world, ModelSettings(gates=GateSettings(drift=GateMode.ENFORCE, drift_share_max=0.5))
    )
    for _ in range(3):
        world.manager.tick()
        world.run_all()
    assert (world.states()[2], len(world.loading.loads)) == (END, 3)


def test_settings_changed_during_refusal_count() -> None:
    world = world_with(ENFORCED)
    world.settle(1)
    refuse(world, 2, Gate.DRIFT)
    world.aspire(2)
    world.manager.set_settings("m", RELAXED)
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}


def test_unaspired_refused_version_is_not_retried() -> None:
    world = world_of_a_refusal()
    world.settle(1)
    set_settings(world, RELAXED)
    assert (world.states(), len(world.loading.loads)) == ({1: AVAILABLE, 2: END}, 2)


def test_refused_version_is_blocked_for_later_too() -> None:
    world = world_of_a_refusal()
    assert world.blocked_versions["m"] == frozenset({2})
    world.settle(3)
    # Without the block its next load would be compared with no predecessor, because 3 is newer.
    world.settle(2, 3)
    world.settle(2)
    assert (world.states()[2], world.states()[3]) == (END, AVAILABLE)


def test_refused_version_is_loaded_once_it_is_allowed() -> None:
    world = world_of_a_refusal()
    world.manager.allow("m", 2)
    world.settle(2)
    assert world.blocked_versions["m"] == frozenset()
    assert world.states() == {1: END, 2: AVAILABLE}


def test_refused_version_is_loaded_with_other_files() -> None:
    world = world_of_a_refusal()
    world.manager.found_anew("m", 2)
    world.aspire(2, found_at_ns=7)
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}


FILES = Fingerprint((("", 0, 1, 1), ("saved_model.pb", 9, 1, 1)))
OTHER_FILES = Fingerprint((("", 0, 1, 1), ("saved_model.pb", 9, 2, 2)))


def world_after_a_refusal(settings: ModelSettings, files: Fingerprint) -> World:
    """A restarted server finds `files` of version 2, which gates refused with FILES and ENFORCED."""
    before = world_with(ENFORCED)
    before.settle(1)
    refuse(before, 2, Gate.DRIFT)
    before.manager.set_aspired("m", [aspired_with(2, FILES)])
    before.manager.tick()
    before.run_all()
    rows = json.loads(json.dumps(as_kept_rows(before.kept_blocked_versions["m"])))
    world = World(blocked_versions={"m": from_rows(rows)})
    assert world.streams.blocked("m") == {2}
    world.manager.set_settings("m", settings)
    world.manager.found_anew("m", 2, files)
    world.settle(1)
    return world


@pytest.mark.parametrize(
    ("settings", "files", "blocked"),
    [
        (ENFORCED, FILES, {2}),
        (replace(ENFORCED, keep_previous_seconds=9.0), FILES, {2}),
        (ENFORCED, OTHER_FILES, set()),
        (RELAXED, FILES, set()),
    ],
)
def test_refusal_outlives_restart_with_same_files(
    settings: ModelSettings, files: Fingerprint, blocked: set[int]
) -> None:
    world = world_after_a_refusal(settings, files)
    assert world.streams.blocked("m") == blocked
    world.settle(1, 2)
    assert (2 in world.states()) is (not blocked)


def test_refusal_before_restart_ends_with_settings() -> None:
    world = world_after_a_refusal(ENFORCED, FILES)
    set_settings(world, replace(ENFORCED, keep_previous_seconds=9.0))
    assert world.streams.blocked("m") == {2}
    set_settings(world, RELAXED)
    assert world.streams.blocked("m") == frozenset()
    assert world.kept_blocked_versions["m"] == {}


def test_refusal_before_restart_ends_by_allow() -> None:
    world = world_after_a_refusal(ENFORCED, FILES)
    answer(world, world.manager.allow("m", 2))
    assert world.kept_blocked_versions["m"] == {}
    world.settle(2)
    assert world.states()[2] is AVAILABLE


def test_refusal_outlives_removal_of_its_model() -> None:
    world = world_after_a_refusal(ENFORCED, FILES)
    world.settle()
    world.manager.set_settings("m", ModelSettings())
    world.manager.set_settings("m", ENFORCED)
    world.manager.found_anew("m", 2, FILES)
    world.settle(1)
    assert world.streams.blocked("m") == {2}


def test_refused_version_without_cover_retries() -> None:
    resource = replace(ENFORCED, aspired_version_policy=PolicyName.RESOURCE)
    world = world_of_a_refusal(resource)
    assert world.blocked_versions["m"] == frozenset({2})
    world.settle(1)
    set_settings(world, replace(resource, gates=RELAXED.gates))
    assert world.blocked_versions["m"] == frozenset()
    world.settle(2)
    assert world.states() == {1: END, 2: AVAILABLE}


def test_unfit_version_retries_once_memory_may_go() -> None:
    world = World()
    world.settle(1)
    world.fail(2, *[DoesNotFitBeside("beside 1")] * 3)
    world.settle(2)
    for _ in range(2):
        world.clock.advance(RETRY_SECONDS)
        world.manager.tick()
        world.run_all()
    assert world.states() == {1: AVAILABLE, 2: END}
    set_settings(world, RESOURCE)
    assert world.states() == {1: END, 2: AVAILABLE}
