"""The operations of a fleet's operator on its state. Pure; they take effect with the next decision."""

from collections.abc import Callable
from dataclasses import replace

from fleet.rollout.judging import in_wave
from fleet.rollout.state import FleetRollout, FleetState, ModelState
from fleet.rollout.view import ModelView, can_serve
from fleet.rollout.wave_settings import WaveSettings
from serving.base.errors import FailedPrecondition, NotFound
from serving.base.name_text import listed
from serving.core.blocked_versions import BlockedBy


def paused(state: FleetState, model: str) -> FleetState:
    """Pauses the fleet: no server begins to swap. A bad verdict still rolls back."""
    return _with_model(state, model, lambda of_model: replace(of_model, is_paused=True))


def resumed(state: FleetState, model: str) -> FleetState:
    """Lets a paused rollout go on."""
    return _with_model(state, model, lambda of_model: replace(of_model, is_paused=False))


def promoted(state: FleetState, model: str, settings: WaveSettings) -> FleetState:
    """The state in which the version goes to all servers without a further judgement by its requests.

    Raises FailedPrecondition without a rollout.
    """

    def promote(of_model: ModelState) -> ModelState:
        rollout = in_wave(_rollout(of_model, model), len(settings.sizes), settings)
        return replace(of_model, rollout=replace(rollout, is_promoted=True))

    return _with_model(state, model, promote)


def aborted(state: FleetState, model: str, reason: str, wall_ns: int) -> FleetState:
    """Blocks the version on its way, so that every server goes back.

    Raises FailedPrecondition without a rollout.
    """

    def abort(of_model: ModelState) -> ModelState:
        version = _rollout(of_model, model).version
        return of_model.with_block(version, BlockedBy.OPERATOR, reason, wall_ns)

    return _with_model(state, model, abort)


def rolled_back(
    state: FleetState, model: str, reason: str, wall_ns: int, view: ModelView | None = None
) -> FleetState:
    """Takes every server back to the version before the newest one.

    During a rollout that is the stable version, otherwise the version that was stable before the present
    one. Raises FailedPrecondition if there is no such version, or if too few servers of `view` have it.
    """

    def roll_back(of_model: ModelState) -> ModelState:
        if of_model.rollout is not None and of_model.stable is not None:
            version = of_model.rollout.version
            return of_model.with_block(version, BlockedBy.OPERATOR, reason, wall_ns)
        if of_model.stable is None or of_model.previous is None:
            raise FailedPrecondition(
                f"model {model!r}: no version was stable before, so there is none to roll back to"
            )
        if view is not None:
            _check_is_there(model, of_model.previous, view)
        earlier = replace(of_model, stable=of_model.previous, previous=None)
        return earlier.with_block(of_model.stable, BlockedBy.OPERATOR, reason, wall_ns)

    return _with_model(state, model, roll_back)


def allowed(state: FleetState, model: str, version: int) -> FleetState:
    """Unblocks `version`. Raises FailedPrecondition if it is not."""

    def allow(of_model: ModelState) -> ModelState:
        if version not in of_model.blocked:
            known = listed(map(str, sorted(of_model.blocked)))
            raise FailedPrecondition(
                f"model {model!r}: version {version} is not blocked in the fleet; blocked: {known}"
            )
        rest = {key: block for key, block in of_model.blocked.items() if key != version}
        return replace(of_model, blocked=rest)

    return _with_model(state, model, allow)


def _check_is_there(model: str, version: int, view: ModelView) -> None:
    """Raises FailedPrecondition if fewer than half of the live servers have the version.

    A server without its files keeps the version that it serves.
    """
    count = sum(can_serve(report, version) for report in view.live.values())
    if 2 * count < len(view.live):
        raise FailedPrecondition(
            f"model {model!r}: version {version} is on {count} of {len(view.live)} servers: "
            "put its files back first"
        )


def _rollout(of_model: ModelState, model: str) -> FleetRollout:
    if of_model.rollout is None:
        raise FailedPrecondition(f"no version of model {model!r} is on its way through the fleet")
    return of_model.rollout


def _with_model(
    state: FleetState, model: str, change: Callable[[ModelState], ModelState]
) -> FleetState:
    if model not in state.models:
        known = listed(sorted(state.models))
        raise NotFound(f"the fleet has no model {model!r}; models: {known}")
    return state.changed({**state.models, model: change(state.models[model])})
