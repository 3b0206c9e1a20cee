import pytest

from fleet.rollout.operations import aborted, allowed, paused, promoted, resumed, rolled_back
from fleet.rollout.reports import ModelReport, VersionReport
from fleet.rollout.state import FleetRollout, FleetState, ModelState
from fleet.rollout.view import ModelView
from serving.base.errors import FailedPrecondition, NotFound
from serving.core.blocked_versions import BlockedBy
from serving.core.servable import AVAILABLE
from tests.fleet.worlds.fleet import SETTINGS, FleetWorld

IDLE = FleetState(order=3, models={"m": ModelState(stable=2, previous=1)})
ROLLING = FleetState(
    order=3, models={"m": ModelState(stable=2, previous=1, rollout=FleetRollout(version=3))}
)


def test_pause_and_resume() -> None:
    state = paused(IDLE, "m")
    assert (state.models["m"].is_paused, state.order) == (True, 4)
    assert not resumed(state, "m").models["m"].is_paused


def test_pause_of_a_paused_model_changes_nothing() -> None:
    state = paused(IDLE, "m")
    assert paused(state, "m") is state


def test_promote_goes_to_the_last_wave() -> None:
    rollout = promoted(ROLLING, "m", SETTINGS).models["m"].rollout
    assert rollout is not None
    assert SETTINGS.is_last(rollout.wave_index)


def test_promoted_version_still_loads_slot_by_slot() -> None:
    world = FleetWorld()
    world.step()
    world.state = promoted(world.state, "ctr", SETTINGS)
    world.step()
    assert len(world.granted(2)) == 2


def test_abort_blocks_the_version() -> None:
    model = aborted(ROLLING, "m", "by me", 5).models["m"]
    assert (model.rollout, model.stable) == (None, 2)
    assert (model.blocked[3].by, model.blocked[3].reason) == (BlockedBy.OPERATOR, "by me")


def test_rollback_during_a_rollout_ends_it() -> None:
    model = rolled_back(ROLLING, "m", "", 5).models["m"]
    assert (model.stable, model.rollout, [*model.blocked]) == (2, None, [3])


def test_rollback_of_stable_takes_the_one_before() -> None:
    model = rolled_back(IDLE, "m", "", 5).models["m"]
    assert (model.stable, model.previous, [*model.blocked]) == (1, None, [2])


def test_rollback_reaches_all_servers_in_one_step() -> None:
    world = FleetWorld(found=frozenset({1}))
    world.step()
    before = world.model
    world.state = world.state.changed(
        {"ctr": ModelState(stable=before.stable, previous=0, blocked={})}
    )
    world.state = rolled_back(world.state, "ctr", "", 5)
    world.step()
    assert len(world.granted(0)) == 10


@pytest.mark.parametrize(
    "change",
    [
        lambda state: aborted(state, "m", "", 0),
        lambda state: promoted(state, "m", SETTINGS),
        lambda state: allowed(state, "m", 7),
        lambda state: rolled_back(rolled_back(state, "m", "", 0), "m", "", 0),
    ],
)
def test_operation_without_an_object_is_refused(change) -> None:
    with pytest.raises(FailedPrecondition):
        change(IDLE)


def test_allow_unblocks() -> None:
    state = aborted(ROLLING, "m", "", 0)
    assert allowed(state, "m", 3).models["m"].blocked == {}


def test_operation_on_unknown_model_lists_models() -> None:
    with pytest.raises(NotFound, match="models: m"):
        paused(IDLE, "n")


def view_of(*rows: tuple[int | None, set[int]]) -> ModelView:
    """Returns servers with the version that each serves and those on its disk."""
    return ModelView(
        live={
            f"s{number}": ModelReport(
                default_version=served,
                found=frozenset(found),
                versions={} if served is None else {served: VersionReport(state=AVAILABLE)},
            )
            for number, (served, found) in enumerate(rows)
        }
    )


@pytest.mark.parametrize(
    "view",
    [
        view_of((2, {1, 2}), (2, {2})),
        # Its files are gone, but it is in memory.
        view_of((1, set()), (2, {2})),
        view_of(),
    ],
)
def test_rollback_needs_half_of_the_servers(view: ModelView) -> None:
    assert rolled_back(IDLE, "m", "", 5, view).models["m"].stable == 1


def test_rollback_to_a_version_on_few_servers_fails() -> None:
    view = view_of((2, {1, 2}), (2, {2}), (2, {2}))
    with pytest.raises(FailedPrecondition, match="version 1 is on 1 of 3 servers"):
        rolled_back(IDLE, "m", "", 5, view)


def test_rollback_of_a_rollout_needs_no_files() -> None:
    model = rolled_back(ROLLING, "m", "", 5, view_of((3, {3}))).models["m"]
    assert (model.stable, model.rollout) == (2, None)
