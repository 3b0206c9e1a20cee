"""The observations of one coordinator on a model. Pure."""

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
    """The observations on a model. They are not written to the state: a new coordinator observes anew.

    `slot_since_ns` has, by server, the time since which it may be swapping, or has loaded a version that
    was granted before the rollout. `waits_for` is the reason why nothing goes on now, for people.
    """

    comparison: Comparison = field(default_factory=Comparison)
    ends: Ends = field(default_factory=Ends)
    slot_since_ns: Mapping[str, int] = field(default_factory=dict)
    waits_for: str = ""

    def with_lost(self, trial: Trial | None) -> "ModelWatch":
        """Adds the servers of a rollout that are lost now."""
        if trial is None:
            return self
        watch = self._of_rollout(trial)
        return replace(watch, ends=watch.ends.with_lost(trial))

    def is_late(self, server: str, settings: WaveSettings, now_ns: int, factor: int = 1) -> bool:
        """True if a server has swapped for longer than a load may take, or `factor` times as long."""
        oldest_ns = now_ns - factor * round(settings.load_seconds_max * NS_PER_SECOND)
        return self.slot_since_ns.get(server, now_ns) < oldest_ns

    def after(self, step: ModelStep) -> "ModelWatch":
        """Looks at the rollout of a step, if it has one, and returns the watch after that."""
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
            # Ends are followed over the whole rollout, and not wave by wave.
            ends=before.ends.after(trial),
            slot_since_ns=since_ns,
        )

    def _of_rollout(self, trial: Trial) -> "ModelWatch":
        """The watch, if it is that of the rollout of `trial`; otherwise a fresh one."""
        wave = self.comparison.wave
        is_same = wave is not None and wave.since_order == trial.wave.since_order
        return self if is_same else ModelWatch(slot_since_ns=self.slot_since_ns)
