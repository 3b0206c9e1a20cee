"""One model in one step of the coordinator: its state, and everything that the step decides on. Pure."""

from dataclasses import dataclass, replace
from functools import cached_property

from fleet.rollout.state import FleetRollout, ModelState
from fleet.rollout.trial import Trial, trial_of
from fleet.rollout.view import ModelView
from fleet.rollout.wave_settings import WaveSettings
from serving.base.clock import Now


@dataclass(frozen=True, kw_only=True)
class ModelStep:
    """The state of a model, and everything that a step decides on. A value: another state makes another object.

    `order` is the order of the fleet's state after this step, if the step changes it.
    """

    state: ModelState
    view: ModelView
    settings: WaveSettings
    now: Now
    order: int

    @cached_property
    def trial(self) -> Trial | None:
        """The rollout as this step sees it; None without a rollout. Made once, because it counts servers."""
        return trial_of(self.state, self.view, self.settings, self.now.ns)

    def with_state(self, state: ModelState) -> "ModelStep":
        """The step with another state; this same object if the state is the same."""
        return self if state is self.state else replace(self, state=state)

    def with_rollout(self, rollout: FleetRollout | None) -> "ModelStep":
        """The step with another rollout; this same object if the rollout is the same."""
        if rollout is self.state.rollout:
            return self
        return replace(self, state=replace(self.state, rollout=rollout))
