"""A model in one step of the coordinator. Pure."""

from dataclasses import dataclass, replace
from functools import cached_property

from fleet.rollout.state import FleetRollout, ModelState
from fleet.rollout.trial import Trial, trial_of
from fleet.rollout.view import ModelView
from fleet.rollout.wave_settings import WaveSettings
from serving.base.clock import Now


@dataclass(frozen=True, kw_only=True)
class ModelStep:
    """The state of a model with all that a step decides on. A value: another state makes another object.

    `order` is the number of the state that the step makes.
    """

    state: ModelState
    view: ModelView
    settings: WaveSettings
    now: Now
    order: int

    @cached_property
    def trial(self) -> Trial | None:
        """The version on its way; None if there is none. It is made once, so its counts are taken once."""
        return trial_of(self.state, self.view, self.settings, self.now.ns)

    def with_state(self, state: ModelState) -> "ModelStep":
        """Takes another state; itself if the state is the same."""
        return self if state is self.state else replace(self, state=state)

    def with_rollout(self, rollout: FleetRollout | None) -> "ModelStep":
        """Takes another rollout; itself if the rollout is the same."""
        if rollout is self.state.rollout:
            return self
        return replace(self, state=replace(self.state, rollout=rollout))
