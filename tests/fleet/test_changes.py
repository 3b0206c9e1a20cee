from fleet.rollout.changes import changes
from fleet.rollout.state import FleetRollout, FleetState, ModelState
from serving.core.blocked_versions import BlockedBy


def state_of(**values: object) -> FleetState:
    return FleetState(models={"m": ModelState(**values)})  # type: ignore[arg-type]


def test_same_state_has_no_changes() -> None:
    state = state_of(stable=1)
    assert changes(state, state) == []
    assert changes(state, state_of(stable=1)) == []


def test_wave_and_stable_version_are_changes() -> None:
    found = changes(state_of(stable=1), state_of(stable=2, rollout=FleetRollout(version=3)))
    assert [(change.event, change.values) for change in found] == [
        ("fleet_wave_began", {"version": 3, "wave": 1}),
        ("fleet_stable_version", {"version": 2, "before": 1}),
    ]


def test_blocked_version_is_a_warning() -> None:
    before = ModelState(stable=1, rollout=FleetRollout(version=2))
    after = before.with_block(2, BlockedBy.CANARY, "slow", 0)
    (change,) = changes(FleetState(models={"m": before}), FleetState(models={"m": after}))
    assert (change.event, change.is_warning) == ("fleet_rolled_back", True)
    assert change.values == {"version": 2, "reason": "slow"}
