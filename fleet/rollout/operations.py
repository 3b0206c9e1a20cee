"""The operations by which an operator changes the state of a fleet. Pure: the next decision acts on them."""

from dataclasses import replace

from fleet.rollout.judging import in_wave
from fleet.rollout.state import FleetRollout, FleetState, ModelState
from fleet.rollout.view import ModelView, can_serve
from fleet.rollout.wave_settings import WaveSettings
from serving.base.errors import FailedPrecondition, NotFound
from serving.base.name_text import listed
from serving.core.blocked_versions import BlockedBy


def paused(state: FleetState, model: str) -> FleetState:
    """Pauses a model: no server begins to swap. A bad verdict still rolls the version back."""
    return _with(state, model, replace(_model(state, model), is_paused=True))


def resumed(state: FleetState, model: str) -> FleetState:
    """Lets a paused rollout go on."""
    return _with(state, model, replace(_model(state, model), is_paused=False))


def promoted(state: FleetState, model: str, settings: WaveSettings) -> FleetState:
    """Lets the version on its way go to all servers, without a further judgement by its requests.

    Raises FailedPrecondition without a rollout.
    """
    rollout = in_wave(_rollout(state, model), len(settings.sizes), settings)
    promoted = replace(rollout, is_promoted=True)
    return _with(state, model, replace(_model(state, model), rollout=promoted))


def aborted(state: FleetState, model: str, reason: str, wall_ns: int) -> FleetState:
    """Blocks the version on its way, so that every server goes back.

    Raises FailedPrecondition without a rollout.
    """
    version = _rollout(state, model).version
    before = _model(state, model)
    return _with(state, model, before.with_block(version, BlockedBy.OPERATOR, reason, wall_ns))


def rolled_back(
    state: FleetState, model: str, reason: str, wall_ns: int, view: ModelView | None = None
) -> FleetState:
    """Takes every server back to an earlier version, and blocks the newest one.

    During a rollout, servers go back to the stable version. Otherwise they go back to the version that was
    stable before the present one. Raises FailedPrecondition if there is no such version, or if fewer than
    half of the servers of `view` have it.
    """
    before = _model(state, model)
    if before.rollout is not None and before.stable is not None:
        return aborted(state, model, reason, wall_ns)
    if before.stable is None or before.previous is None:
        raise FailedPrecondition(
            f"model {model!r}: no version was stable before, so there is none to roll back to"
        )
    if view is not None:
        _check_is_there(model, before.previous, view)
    earlier = replace(before, stable=before.previous, previous=None)
    blocked = earlier.with_block(before.stable, BlockedBy.OPERATOR, reason, wall_ns)
    return _with(state, model, blocked)


def allowed(state: FleetState, model: str, version: int) -> FleetState:
    """Unblocks `version`. Raises FailedPrecondition if it is not blocked."""
    before = _model(state, model)
    if version not in before.blocked:
        known = listed(map(str, sorted(before.blocked)))
        raise FailedPrecondition(
            f"model {model!r}: version {version} is not blocked in the fleet; blocked: {known}"
        )
    rest = {key: block for key, block in before.blocked.items() if key != version}
    return _with(state, model, replace(before, blocked=rest))


def _check_is_there(model: str, version: int, view: ModelView) -> None:
    """Raises FailedPrecondition if fewer than half of the live servers have the version.

    The other servers keep the version that they serve until they have the files.
    """
    count = sum(can_serve(report, version) for report in view.live.values())
    if 2 * count < len(view.live):
        raise FailedPrecondition(
            f"model {model!r}: version {version} is on {count} of {len(view.live)} servers: "
            "put its files back first"
        )


def _model(state: FleetState, model: str) -> ModelState:
    if model not in state.models:
        known = listed(sorted(state.models))
        raise NotFound(f"the fleet has no model {model!r}; models: {known}")
    return state.models[model]


def _rollout(state: FleetState, model: str) -> FleetRollout:
    rollout = _model(state, model).rollout
    if rollout is None:
        raise FailedPrecondition(f"no version of model {model!r} is on its way through the fleet")
    return rollout


def _with(state: FleetState, model: str, after: ModelState) -> FleetState:
    return state.changed({**state.models, model: after})
