import json

import pytest

from fleet.rollout.state import (
    VERDICT_COUNT_MAX,
    FleetRollout,
    FleetState,
    GateWarning,
    ModelState,
    Slot,
    fleet_state_from_json,
)
from serving.base.errors import DataLoss
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.servable import GateVerdict

VERDICT = GateVerdict(gate="wave 1", mode="enforce", is_passed=True, figures={"request_count": 3.0})

FULL = FleetState(
    order=7,
    models={
        "ctr": ModelState(
            stable=1,
            previous=0,
            rollout=FleetRollout(
                version=2,
                wave_index=1,
                members={"a": 5},
                failed_servers=frozenset({"b"}),
                is_promoted=True,
                warned={
                    "a": GateWarning("gate drift: NaN"),
                    "c": GateWarning("gate golden: it differs", may_hold=False),
                },
                is_doubtful=True,
                warned_alone=frozenset({"finite"}),
                excused=frozenset({"finite"}),
            ),
            is_paused=True,
            blocked={9: BlockedVersion(by=BlockedBy.CANARY, reason="slow", since_wall_ns=4)},
            loading={"a": Slot(2, 7)},
            verdicts=(VERDICT,),
        ),
        "other": ModelState(),
    },
)


@pytest.mark.parametrize("state", [FleetState(), FULL])
def test_state_survives_its_json(state: FleetState) -> None:
    assert fleet_state_from_json(state.as_json()) == state


def test_state_of_an_earlier_release_is_read() -> None:
    document = json.loads(FULL.as_json())
    for key in (
        *("is_promoted", "warned", "warnings_only_shown", "is_doubtful", "warned_alone"),
        "excused",
    ):
        del document["models"]["ctr"]["rollout"][key]
    rollout = fleet_state_from_json(json.dumps(document)).models["ctr"].rollout
    assert rollout is not None
    assert rollout == FleetRollout(
        version=2, wave_index=1, members={"a": 5}, failed_servers=frozenset({"b"})
    )


def test_warning_of_an_earlier_release_may_hold() -> None:
    document = json.loads(FULL.as_json())
    del document["models"]["ctr"]["rollout"]["warnings_only_shown"]
    rollout = fleet_state_from_json(json.dumps(document)).models["ctr"].rollout
    assert rollout is not None
    assert [warning.may_hold for warning in rollout.warned.values()] == [True, True]


def test_state_is_readable_by_an_earlier_release() -> None:
    model = json.loads(FULL.as_json())["models"]["ctr"]
    (verdict,) = model["verdicts"]
    assert verdict.keys() == {"gate", "mode", "is_passed", "reason", "figures"}
    assert model["rollout"]["warned"] == {"a": "gate drift: NaN", "c": "gate golden: it differs"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"order": 1, "models": {"m": {}}}', '{"order": "x", "models": {}}']
)
def test_other_text_is_not_a_state(text: str) -> None:
    with pytest.raises(DataLoss):
        fleet_state_from_json(text)


def test_order_grows_only_with_a_change() -> None:
    assert FULL.changed(dict(FULL.models)) is FULL
    assert FULL.changed({}).order == 8
    assert FULL.taken_over().order == 8


def test_state_keeps_the_last_verdicts() -> None:
    model = ModelState()
    for _ in range(VERDICT_COUNT_MAX + 5):
        model = model.with_verdict(VERDICT, 2)
    assert len(model.verdicts) == VERDICT_COUNT_MAX


def test_state_of_a_thousand_members_is_small() -> None:
    members = {f"server-{number:05}.example": 1 for number in range(1_000)}
    state = FleetState(models={"m": ModelState(rollout=FleetRollout(version=2, members=members))})
    assert len(state.as_json()) < 50_000
    assert json.loads(state.as_json())["models"]["m"]["rollout"]["version"] == 2
