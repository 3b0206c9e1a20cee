"""The observations that one coordinator has made of a model since it began to lead. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet.rollout.comparison import Comparison
from fleet.rollout.ends import Ends
from fleet.rollout.model_step import ModelStep
from fleet.rollout.trial import Trial
from fleet.rollout.wave_settings import WaveSettings
from serving.base.clock import NS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class ModelWatch:
    """The observations of a model. They are not part of the state: a new coordinator observes anew."""

    comparison: Comparison = field(default_factory=Comparison)
    ends: Ends = field(default_factory=Ends)
    # By server, the time since which it has a slot. A server without a slot is listed too while it loads a
    # version that was granted before the rollout of a first version.
    slot_since_ns: Mapping[str, int] = field(default_factory=dict)
    # The reason, for people, why the rollout does not go on now; "" if it goes on.
    waits_for: str = ""

    def with_lost(self, trial: Trial | None) -> "ModelWatch":
        """The watch after it has noted which servers of the rollout are lost now."""
        if trial is None:
            return self
        watch = self._of_rollout(trial)
        return replace(watch, ends=watch.ends.with_lost(trial))

    def is_late(self, server: str, settings: WaveSettings, now_ns: int, factor: int = 1) -> bool:
        """True if a server has been swapping for more than `factor` times `load_seconds_max`."""
        oldest_ns = now_ns - factor * round(settings.load_seconds_max * NS_PER_SECOND)
        return self.slot_since_ns.get(server, now_ns) < oldest_ns

    def after(self, step: ModelStep) -> "ModelWatch":
        """The watch after a look at the rollout of a step, if the step has one."""
        trial, now_ns = step.trial, step.now.ns
        loading = {*step.state.loading}
        if trial is not None and trial.stable is None:
            live = trial.view.live
            loading |= {name for name, report in live.items() if trial.has_old_grant(report)}
        since_ns = {name: self.slot_since_ns.get(name, now_ns) for name in loading}
        if trial is None:
            return ModelWatch(slot_since_ns=since_ns)
        before = self._of_rollout(trial)
        return ModelWatch(
            comparison=before.comparison.after(trial),
            # Unlike the comparison, ends are followed over the whole rollout and not wave by wave.
            ends=before.ends.after(trial),
            slot_since_ns=since_ns,
        )

    def _of_rollout(self, trial: Trial) -> "ModelWatch":
        """This watch if it has observed the rollout of `trial`; otherwise a fresh watch."""
        wave = self.comparison.wave
        is_same = wave is not None and wave.since_order == trial.wave.since_order
        return self if is_same else ModelWatch(slot_since_ns=self.slot_since_ns)
