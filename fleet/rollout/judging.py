"""The first half of a step: takes the reports into the state of a model, and judges its rollout. Pure."""

from dataclasses import dataclass, replace

from fleet.rollout.failures import failure_verdict
from fleet.rollout.model_step import ModelStep
from fleet.rollout.reports import ModelReport
from fleet.rollout.state import FleetRollout, Slot
from fleet.rollout.trial import Trial
from fleet.rollout.view import has_failed_on
from fleet.rollout.warned_gates import is_held, noted_warnings
from fleet.rollout.watch import ModelWatch
from fleet.rollout.wave_settings import WaveSettings
from serving.core.blocked_versions import BlockedBy
from serving.core.model_settings import GateMode
from serving.core.servable import LOADING, START, GateVerdict

LOADS_GATE = "loads"
"""The gate named in a verdict that stops a version because its loads failed or its servers ended."""


@dataclass(frozen=True)
class Judged:
    """A model whose reports were taken into its state, and the observations that go with that state."""

    step: ModelStep
    watch: ModelWatch


def judged(step: ModelStep, watch: ModelWatch) -> Judged:
    """Takes the reports into the state, judges the rollout, and begins one if there is a new version."""
    # This comes before `_released`, because a server may be lost before it has reported that it took a grant.
    # Then only its slot shows that it may have the version.
    watch = watch.with_lost(step.trial)
    step = _released(step)
    step = _with_returned(step)
    step = _adopted(step)
    step = _with_notes(step, watch)
    watch = watch.after(step)
    after = _after_verdict(step, watch)
    begun = _begun(after.step)
    if begun is step:
        return after
    # The verdict has changed or ended the rollout, or another rollout has begun. So the watch looks again.
    return Judged(begun, after.watch.after(begun))


def in_wave(rollout: FleetRollout, wave_index: int, settings: WaveSettings) -> FleetRollout:
    """Moves the rollout to another wave. Drops the members in the last wave, so that the state stays small."""
    members = {} if settings.is_last(wave_index) else rollout.members
    return replace(rollout, wave_index=wave_index, members=members)


# --- Slots ---


def _late_servers(step: ModelStep, watch: ModelWatch) -> frozenset[str]:
    """The live servers that have been loading the version on its way for more than `load_seconds_max`."""
    rollout = step.state.rollout
    if rollout is None:
        return frozenset()
    return frozenset(
        name
        for name, slot in step.state.loading.items()
        if slot.version == rollout.version
        and name in step.view.live
        and watch.is_late(name, step.settings, step.now.ns)
    )


def _released(step: ModelStep) -> ModelStep:
    """Takes back the slot of each server whose swap is over."""
    slots = step.state.loading
    loading = {name: slot for name, slot in slots.items() if not _is_over(step, name, slot)}
    if len(loading) == len(slots):
        return step
    return step.with_state(replace(step.state, loading=loading))


def _is_over(step: ModelStep, name: str, slot: Slot) -> bool:
    """True if the swap for which a server got its slot has ended, or the server is lost or has left."""
    view = step.view
    if name not in view.live:
        return name not in view.unknown
    report = view.live[name]
    if report.order < slot.order:
        return False
    row = report.versions.get(slot.version)
    if report.granted != slot.version:
        return row is None or row.state not in (START, LOADING)
    return row is not None and (report.serves(slot.version) or row.has_failed)


def _with_returned(step: ModelStep) -> ModelStep:
    """Gives a slot to each server that was lost, is back, and still loads the version.

    A load needs a slot to count as late, because its time is counted from the slot.
    """
    trial = step.trial
    if trial is None:
        return step
    returned = {
        name: Slot(trial.version, report.order)
        for name, report in step.view.live.items()
        if trial.has_version(report)
        and name not in step.state.loading
        and name not in trial.rollout.failed_servers
        and not report.serves(trial.version)
        and not has_failed_on(report, trial.version)
    }
    if not returned:
        return step
    return step.with_state(replace(step.state, loading={**step.state.loading, **returned}))


# --- The stable version ---


def _adopted(step: ModelStep) -> ModelStep:
    """Chooses a stable version if the fleet has none: the version that most servers answer with.

    A rollout of a first version may have begun before reports showed that most servers already had a
    version. That version becomes stable, and the rollout goes on beside it. If that version is the
    rollout's own, the rollout ends.
    """
    state, view, trial = step.state, step.view, step.trial
    if state.stable is not None or not view.is_complete:
        return step
    if trial is None:
        return step.with_state(replace(state, stable=view.most_served(state.blocked)))

    def had(report: ModelReport) -> bool:
        return report.default_version == trial.version and not trial.has_version(report)

    if 2 * sum(map(had, view.live.values())) > view.fleet_size:
        return step.with_state(replace(state, stable=trial.version, rollout=None))
    version = view.most_served({*state.blocked, trial.version})
    count = sum(report.default_version == version for report in view.live.values())
    if version is None or 2 * count <= view.fleet_size:
        return step
    return step.with_state(replace(state, stable=version))


# --- The verdict ---


def _with_notes(step: ModelStep, watch: ModelWatch) -> ModelStep:
    """Notes in the rollout on which servers the version has failed, and on which a gate has warned."""
    trial = step.trial
    if trial is None:
        return step
    rollout = watch.ends.noted_failures(trial, _late_servers(step, watch))
    return step.with_rollout(noted_warnings(trial, rollout))


def _after_verdict(step: ModelStep, watch: ModelWatch) -> Judged:
    """Stops the version on its way, begins its next wave, makes it stable, or waits."""
    trial, view = step.trial, step.view
    if trial is None:
        return Judged(step, watch)
    verdict = _verdict_on_servers(trial, watch) or failure_verdict(trial, watch.comparison)
    if verdict is not None:
        return Judged(_refused(step, trial, verdict), watch)
    if view.is_complete and view.live and trial.version not in view.found():
        return Judged(step.with_rollout(None), watch)
    if not trial.is_last_wave:
        return _after_wave(step, trial, watch)
    # An operator may have paused the rollout until clients send requests.
    may_end = not step.state.is_paused and not is_held(trial.rollout, step.settings)
    if may_end and watch.comparison.has_held(trial):
        state = step.state
        passed = replace(state, stable=trial.version, previous=state.stable, rollout=None)
        return Judged(step.with_state(passed), watch)
    return Judged(step, watch)


def _verdict_on_servers(trial: Trial, watch: ModelWatch) -> GateVerdict | None:
    reason = watch.ends.fault(trial)
    if not reason:
        return None
    mode = GateMode.ENFORCE.value
    return GateVerdict(gate=LOADS_GATE, mode=mode, is_passed=False, reason=reason)


def _after_wave(step: ModelStep, trial: Trial, watch: ModelWatch) -> Judged:
    """Judges the requests of a wave before the last one, once there are enough of them."""
    comparison, is_paused = watch.comparison, step.state.is_paused
    judgement = comparison.judgement(trial)
    if judgement is None:
        return Judged(step, watch)
    verdict = judgement.verdict
    if judgement.is_only_slow and not comparison.doubt:
        return Judged(step, replace(watch, comparison=comparison.doubted(trial, verdict)))
    is_still_doubted = comparison.doubt and not judgement.is_of_latency
    if is_still_doubted and verdict.is_passed and not is_paused:
        reason = f"{comparison.doubt}; then {verdict.reason}"
        verdict = replace(verdict, is_passed=False, reason=reason)
    if not verdict.is_passed:
        return Judged(_refused(step, trial, verdict), watch)
    may_go_on = not is_paused and not is_held(trial.rollout, step.settings)
    if comparison.is_full and may_go_on:
        return Judged(_in_next_wave(step, trial, verdict), watch)
    return Judged(step, watch)


def _refused(step: ModelStep, trial: Trial, verdict: GateVerdict) -> ModelStep:
    """Blocks the version that the rollout brings to the fleet, which ends the rollout."""
    state = step.state.with_verdict(verdict, trial.version)
    by, wall_ns = BlockedBy.CANARY, step.now.wall_ns
    return step.with_state(state.with_block(trial.version, by, verdict.reason, wall_ns))


def _in_next_wave(step: ModelStep, trial: Trial, verdict: GateVerdict) -> ModelStep:
    """Begins the next wave. Skips waves that have no more servers than this one."""
    settings, fleet_size, index = step.settings, step.view.fleet_size, trial.rollout.wave_index + 1
    while not settings.is_last(index) and settings.quota(index, fleet_size) <= trial.quota:
        index += 1
    state = step.state.with_verdict(verdict, trial.version)
    return step.with_state(replace(state, rollout=in_wave(trial.rollout, index, settings)))


# --- The next version ---


def _begun(step: ModelStep) -> ModelStep:
    """Begins a rollout of the highest new version, if there is one.

    The new rollout replaces a rollout that waits for files. If two servers have the version of that rollout,
    only a higher version replaces it. If one server alone has it, a lower version may replace it too, because
    that server may have made its version up.
    """
    state, view, trial = step.state, step.view, step.trial
    if state.is_paused or not view.is_complete:
        return step
    present = -1 if state.stable is None else state.stable
    confirmed = view.confirmed() - state.blocked.keys()
    if trial is not None:
        if not trial.lacks_files:
            return step
        if trial.version in confirmed:
            present = max(present, trial.version)
    version = max(confirmed, default=present)
    if version <= present:
        return step
    return step.with_rollout(FleetRollout(version=version, since_order=step.order))
