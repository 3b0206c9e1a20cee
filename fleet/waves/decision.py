"""Decides the next actions of a fleet from the reports of its servers. Pure functions on values.

A version comes in waves: one server, a share of the fleet, the rest. Between two waves it is judged by
its loads and, by a canary's rule, by its requests beside those of the version on the other servers. The
last wave is judged by loads, by servers that end, and by failed requests, until it has held as long as a
judgement. A version that fails too often is stopped at once, in each wave. A bad verdict ends the
rollout: every server is granted the stable version again in the same step, and the version is blocked in
the fleet.

Each step compares the version that each server should have with the one that it was granted, so an
action that was lost is repeated, and a server that comes back is corrected. The promises:

- A server selects only the version that it was granted. So a version is never beyond its wave.
- At most `load_count_max` servers have a *slot*, and a server swaps forward only with a slot. A slot is
  given back when a report shows the end of the load, or when the server is lost. So under a partition at
  most `load_count_max` servers swap beside those that were lost while they swapped. No new slot is given
  while more servers than that swap, for example because lost servers have come back. A slot does not count
  if its load was withdrawn and does not end.
- A version that waits for files while no server that may try it has them gives way to a newer one.
- A version about which a gate has warned on a server goes to no further server until an operator has
  decided, unless the settings let it pass, or the gate is one whose warnings are shown only.
- A rollout begins only with a version that two servers have, so one server that lies about its files holds
  nothing up.
- A server that serves nothing, or a version that it must not serve, needs no slot.
- Before a first version has passed there is no version to go back to. Until then each server keeps the
  version that it answers with, even if it is blocked, and a version that was stopped is withdrawn from the
  servers that answer with none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from fleet.waves.failures import failure_verdict
from fleet.waves.reports import Grant, ModelReport, Sighting
from fleet.waves.state import FleetRollout, FleetState, ModelState, Slot
from fleet.waves.trial import Trial, may_have_version, spread, trial_of
from fleet.waves.view import ModelView, can_serve, cannot_have, has_failed_on, model_views
from fleet.waves.warned_gates import is_held, noted_warnings, reason_of_hold
from fleet.waves.watch import ModelWatch
from fleet.waves.wave_settings import WaveSettings
from serving.base.clock import NS_PER_SECOND, Now
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.model_settings import GateMode
from serving.core.servable import LOADING, START, GateVerdict

LOADS_GATE = "loads"
"""The gate of a verdict on the loads of a version, and on the servers that ended with it."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The state after a step, which must be written before one of the `grants` is sent."""

    state: FleetState
    watches: Mapping[str, ModelWatch]
    grants: tuple[Grant, ...] = ()


def decide(
    state: FleetState,
    watches: Mapping[str, ModelWatch],
    sightings: Mapping[str, Sighting],
    settings: WaveSettings,
    now: Now,
) -> Decision:
    """Decides the next state and the actions. `sightings` has each server of the fleet, by its name."""
    views = model_views(sightings, state.models, settings.lost_seconds, now.ns)
    models = dict(state.models)
    steps = {}
    for name, view in views.items():
        before = models.get(name, ModelState())
        watch = watches.get(name, ModelWatch())
        steps[name] = _Step(view, settings, now, state.order + 1)
        models[name], steps[name].watch = steps[name].judged(before, watch)
    free = settings.load_count_max - sum(
        step.swapping_count(models[name]) for name, step in steps.items()
    )
    for name, step in steps.items():
        used = len(models[name].loading)
        models[name] = step.with_slots(models[name], free)
        free -= len(models[name].loading) - used
    changed = state.changed(models)
    grants = tuple(
        Grant(server, name, version, changed.order)
        for name, step in steps.items()
        for server, version in step.to_send(models[name])
    )
    return Decision(
        state=changed, watches={name: step.watch for name, step in steps.items()}, grants=grants
    )


def blocked(
    state: ModelState, version: int, by: BlockedBy, reason: str, wall_ns: int
) -> ModelState:
    """Blocks `version` in the fleet, and ends its rollout."""
    block = BlockedVersion(by=by, reason=reason, since_wall_ns=wall_ns)
    rollout = state.rollout
    if rollout is not None and rollout.version == version:
        rollout = None
    return replace(state, rollout=rollout, blocked={**state.blocked, version: block})


def version_to_grant(
    state: ModelState, settings: WaveSettings, server: str, report: ModelReport
) -> int | None:
    """The version that a server should be granted; None if the fleet has no version for it yet."""
    rollout = state.rollout
    if rollout is None:
        return _stable_for(state, report)
    if server in rollout.members:
        return rollout.version
    may_try = settings.is_last(rollout.wave) and server not in rollout.setbacks
    if may_try and may_have_version(state, rollout, server, report):
        return rollout.version
    return _stable_for(state, report)


def _stable_for(state: ModelState, report: ModelReport) -> int | None:
    """The stable version.

    A server that cannot load it gets an earlier one: the version that it serves, or else the version that
    was stable before. Otherwise such a server would serve nothing after its next start. Without a stable
    version, each server keeps its own.
    """
    stable = state.stable
    if stable is None:
        return report.default_version
    if report.default_version == stable:
        return stable
    row = report.versions.get(stable)
    if row is None or not row.has_failed:
        return stable
    served = report.default_version
    earlier = state.previous if served is None or served > stable else served
    is_sound = earlier in report.found and earlier not in state.blocked
    return earlier if is_sound else stable


@dataclass
class _Step:
    """One decision on one model. `order` is the number of the state that the step makes."""

    view: ModelView
    settings: WaveSettings
    now: Now
    order: int
    watch: ModelWatch = field(default_factory=ModelWatch)

    def judged(self, state: ModelState, watch: ModelWatch) -> tuple[ModelState, ModelWatch]:
        """Takes the reports into the state: gives slots back, and judges or begins a rollout."""
        late = self._late(state, watch)
        watch = watch.with_lost(self._trial(state))
        state = self._adopted(self._with_returned(self._released(state)))
        trial = self._trial(state)
        if trial is not None:
            setbacks = watch.ends.noted_setbacks(trial, late & state.loading.keys())
            trial = trial.with_rollout(setbacks)
            trial = trial.with_rollout(noted_warnings(trial))
            watch = watch.after(trial.state, trial, self.now.ns)
            state, watch = self._after_verdict(trial, watch)
        state = self._begun(state)
        return state, watch.after(state, self._trial(state), self.now.ns)

    def with_slots(self, state: ModelState, free: int) -> ModelState:
        """Gives a slot to each server that begins to swap now, to at most `free` servers."""
        self.watch = replace(self.watch, waits_for=self._reason_to_wait(state, free))
        if state.is_paused or free <= 0:
            return state
        behind = self._behind(state, free)
        state = self._with_slots_for(state, behind)
        return self._with_new_members(state, free - len(behind))

    def to_send(self, state: ModelState) -> Iterator[tuple[str, int | None]]:
        """Yields each live server that must be granted another version, with that version."""
        for name, report in self.view.live.items():
            due = version_to_grant(state, self.settings, name, report)
            slot = state.loading.get(name)
            if report.granted == due:
                # An earlier grant, which may still be under way, must come to nothing.
                if slot is not None and report.order < slot.order:
                    yield name, due
            elif due is None:
                if slot is not None or self._is_left_over(name, report, state):
                    yield name, None
            elif (slot is not None and slot.version == due) or _needs_no_slot(report, due, state):
                yield name, due

    def swapping_count(self, state: ModelState) -> int:
        """The servers that swap or may be swapping, without those whose load never ends."""
        return self.view.swapping_count(state) - len(self._stuck(state))

    def _trial(self, state: ModelState) -> Trial | None:
        return trial_of(state, self.view, self.settings, self.now.ns)

    def _is_left_over(self, name: str, report: ModelReport, state: ModelState) -> bool:
        """True if a server that answers with no version has a grant that leads to none.

        Because of that grant it may try no other version. A load that was granted before the rollout goes
        on, whichever coordinator granted it, but not for ever.
        """
        granted, trial = report.granted, self._trial(state)
        if granted is None:
            return False
        if trial is not None and trial.has_old_grant(report) and self._is_late(self.watch, name):
            return True
        return granted in state.blocked or cannot_have(report, granted)

    def _is_late(self, watch: ModelWatch, server: str, factor: int = 1) -> bool:
        """True if a server has swapped for longer than a load may take."""
        oldest_ns = self.now.ns - factor * round(self.settings.load_seconds_max * NS_PER_SECOND)
        return watch.slot_since_ns.get(server, self.now.ns) < oldest_ns

    def _late(self, state: ModelState, watch: ModelWatch) -> frozenset[str]:
        if state.rollout is None:
            return frozenset()
        return frozenset(
            name
            for name, slot in state.loading.items()
            if slot.version == state.rollout.version
            and name in self.view.live
            and self._is_late(watch, name)
        )

    def _stuck(self, state: ModelState) -> list[str]:
        """Servers that still load what was withdrawn from them long ago."""
        return [
            name
            for name, slot in state.loading.items()
            if name in self.view.live
            and self.view.live[name].granted != slot.version
            and self.view.live[name].order >= slot.order
            and self._is_late(self.watch, name, factor=2)
        ]

    def _released(self, state: ModelState) -> ModelState:
        loading = {
            name: slot for name, slot in state.loading.items() if not self._is_over(name, slot)
        }
        return state if len(loading) == len(state.loading) else replace(state, loading=loading)

    def _with_returned(self, state: ModelState) -> ModelState:
        """Gives a slot to each server that was lost and still loads the version.

        Without a slot its load would never be late.
        """
        trial = self._trial(state)
        if trial is None:
            return state
        returned = {
            name: Slot(trial.version, report.order)
            for name, report in self.view.live.items()
            if trial.has_version(report)
            and name not in state.loading
            and name not in trial.rollout.setbacks
            and not report.serves(trial.version)
            and not has_failed_on(report, trial.version)
        }
        return replace(state, loading={**state.loading, **returned}) if returned else state

    def _is_over(self, name: str, slot: Slot) -> bool:
        """True if the swap of a slot has ended, or its server is lost or not in the fleet."""
        if name not in self.view.live:
            return name not in self.view.unknown
        report = self.view.live[name]
        if report.order < slot.order:
            return False
        row = report.versions.get(slot.version)
        if report.granted != slot.version:
            return row is None or row.state not in (START, LOADING)
        return row is not None and (report.serves(slot.version) or row.has_failed)

    def _adopted(self, state: ModelState) -> ModelState:
        """Adopts a stable version: at first the one that most servers answer with.

        If a late report shows that most servers had a version before, a rollout that began as that of a
        first version goes on beside it; it ends if that version is its own.
        """
        if state.stable is not None or not self.view.is_complete:
            return state
        trial = self._trial(state)
        if trial is None:
            return replace(state, stable=self.view.most_served(state.blocked))
        had = (
            report.default_version == trial.version and not trial.has_version(report)
            for report in self.view.live.values()
        )
        if 2 * sum(had) > self.view.fleet_size:
            return replace(state, stable=trial.version, rollout=None)
        version = self.view.most_served({*state.blocked, trial.version})
        count = sum(report.default_version == version for report in self.view.live.values())
        if version is None or 2 * count <= self.view.fleet_size:
            return state
        return replace(state, stable=version)

    def _after_verdict(self, trial: Trial, watch: ModelWatch) -> tuple[ModelState, ModelWatch]:
        state, rollout = trial.state, trial.rollout
        reason = watch.ends.fault(trial)
        if reason:
            mode = GateMode.ENFORCE.value
            verdict = GateVerdict(gate=LOADS_GATE, mode=mode, is_passed=False, reason=reason)
            return self._refused(trial, verdict), watch
        failed = failure_verdict(trial, watch.comparison)
        if failed is not None:
            return self._refused(trial, failed), watch
        if self.view.is_complete and self.view.live and trial.version not in self.view.found():
            return replace(state, rollout=None), watch
        if not trial.is_last_wave:
            return self._after_wave(trial, watch)
        if is_held(rollout, self.settings):
            return state, watch
        # An operator may have paused it until clients have come.
        if watch.comparison.has_held(trial) and not state.is_paused:
            state = replace(state, stable=trial.version, previous=state.stable, rollout=None)
        return state, watch

    def _after_wave(self, trial: Trial, watch: ModelWatch) -> tuple[ModelState, ModelWatch]:
        state, comparison = trial.state, watch.comparison
        judgement = comparison.judgement(trial)
        if judgement is None:
            return state, watch
        verdict = judgement.verdict
        if judgement.is_only_slow and not comparison.doubt:
            return state, replace(watch, comparison=comparison.doubted(verdict))
        is_still_doubted = comparison.doubt and not judgement.is_of_latency
        if is_still_doubted and verdict.is_passed and not state.is_paused:
            verdict = replace(
                verdict, is_passed=False, reason=f"{comparison.doubt}; then {verdict.reason}"
            )
        if not verdict.is_passed:
            return self._refused(trial, verdict), watch
        may_go_on = not state.is_paused and not is_held(trial.rollout, self.settings)
        if comparison.full_since_ns is not None and may_go_on:
            state = self._next_wave(trial.with_state(state.with_verdict(verdict, trial.version)))
        return state, watch

    def _refused(self, trial: Trial, verdict: GateVerdict) -> ModelState:
        state = trial.state.with_verdict(verdict, trial.version)
        return blocked(state, trial.version, BlockedBy.CANARY, verdict.reason, self.now.wall_ns)

    def _next_wave(self, trial: Trial) -> ModelState:
        """The state in the next wave that has more servers."""
        wave, size = trial.rollout.wave + 1, self.view.fleet_size
        while not self.settings.is_last(wave) and self.settings.quota(wave, size) <= trial.quota:
            wave += 1
        return replace(trial.state, rollout=in_wave(trial.rollout, wave, self.settings))

    def _begun(self, state: ModelState) -> ModelState:
        """The state with a rollout of the highest new version, if there is one.

        It takes the place of a rollout that waits for files. A rollout that began while a server was alone
        gives way to a lower version too, if no other server has its version.
        """
        if state.is_paused or not self.view.is_complete:
            return state
        present = -1 if state.stable is None else state.stable
        confirmed = self.view.confirmed() - state.blocked.keys()
        trial = self._trial(state)
        if trial is not None:
            if not trial.lacks_files:
                return state
            if trial.version in confirmed:
                present = max(present, trial.version)
        version = max(confirmed, default=present)
        if version <= present:
            return state
        return replace(state, rollout=FleetRollout(version=version, since_order=self.order))

    def _reason_to_wait(self, state: ModelState, free: int) -> str:
        """The reason why nothing goes on, for people; "" if nothing waits."""
        if state.is_paused:
            return "an operator has paused it: millpond fleet resume"
        of_wave, trial = "", self._trial(state)
        if trial is not None and self.view.is_complete:
            of_wave = self._reason_of_wave(trial)
        stuck = self._stuck(state)
        if stuck and not of_wave:
            return f"the load of a withdrawn version does not end on {', '.join(stuck[:3])}"
        full = "as many servers swap as may" if free <= 0 else ""
        return of_wave or full or self._reason_of_unconfirmed(state)

    def _reason_of_unconfirmed(self, state: ModelState) -> str:
        """The reason why the newest version is not tried, if one server alone has it."""
        if state.rollout is not None or not self.view.is_complete:
            return ""
        present = -1 if state.stable is None else state.stable
        newest = max(self.view.found() - state.blocked.keys(), default=present)
        if newest <= present or newest in self.view.confirmed():
            return ""
        names = (name for name, report in self.view.live.items() if newest in report.found)
        return f"only {next(names, 'one server')} has version {newest}: it is tried when a second server has it"

    def _reason_of_wave(self, trial: Trial) -> str:
        view, comparison = self.view, self.watch.comparison
        is_full = comparison.full_since_ns is not None
        if is_held(trial.rollout, self.settings):
            return reason_of_hold(trial.rollout)
        if trial.lacks_files:
            count = sum(trial.version in report.found for report in view.live.values())
            return f"{count} of {view.fleet_size} servers have the files of {trial.version}"
        if trial.is_last_wave:
            is_short = view.lost and not is_full
            return f"{len(view.lost)} of {view.fleet_size} servers are lost" if is_short else ""
        if trial.is_short_of_sound:
            return "servers of the wave are lost: millpond fleet abort or promote"
        if is_full and comparison.lacks_controls_left(trial):
            return (
                f"no server with version {trial.stable} can be compared with: millpond fleet "
                "promote goes on without"
            )
        return ""

    def _behind(self, state: ModelState, free: int) -> dict[str, int]:
        """Servers that may swap now to the version that they should have: they have missed a rollout, or
        were lost before they took its grant.
        """
        members = state.rollout.members if state.rollout else {}
        behind: dict[str, int] = {}
        for name, report in self.view.live.items():
            if len(behind) == free:
                break
            if report.granted == state.stable and name not in members:
                continue
            due = version_to_grant(state, self.settings, name, report)
            if (
                due is not None
                and due != report.granted
                and due in report.found
                and name not in state.loading
                and name not in self.view.draining
                and not _needs_no_slot(report, due, state)
            ):
                behind[name] = due
        return behind

    def _with_new_members(self, state: ModelState, free: int) -> ModelState:
        trial = self._trial(state)
        if trial is None or free <= 0 or not self.view.is_complete:
            return state
        rollout = trial.rollout
        if is_held(rollout, self.settings):
            return state
        names = self._new_members(trial, min(free, trial.room))
        if not names:
            return state
        if not trial.is_last_wave:
            joined = {name: self.view.servers[name].incarnation for name in names}
            state = replace(state, rollout=replace(rollout, members={**rollout.members, **joined}))
        return self._with_slots_for(state, dict.fromkeys(names, rollout.version))

    def _new_members(self, trial: Trial, count: int) -> list[str]:
        """The servers that try the version next, spread over the fleet by their names."""
        state, version, may_join = trial.state, trial.version, trial.may_join()
        if count <= 0:
            return []
        sound = (
            name
            for name, report in self.view.live.items()
            if version in report.found
            and report.granted != version
            and report.granted == version_to_grant(state, self.settings, name, report)
            and may_join(name, report)
            and name not in trial.rollout.members
            and name not in trial.rollout.setbacks
            and name not in state.loading
            and name not in self.view.draining
        )
        return nsmallest(count, sound, key=lambda name: spread(name, version))

    def _with_slots_for(self, state: ModelState, versions: Mapping[str, int]) -> ModelState:
        if not versions:
            return state
        slots = {name: Slot(version, self.order) for name, version in versions.items()}
        return replace(state, loading={**state.loading, **slots})


def in_wave(rollout: FleetRollout, wave: int, settings: WaveSettings) -> FleetRollout:
    """Moves the rollout to another wave. The last wave lists no members, so that the state stays small."""
    members = {} if settings.is_last(wave) else rollout.members
    return replace(rollout, wave=wave, members=members)


def _needs_no_slot(report: ModelReport, due: int, state: ModelState) -> bool:
    """True if a server gets `due` at once: it serves nothing, or a version that it must not serve.

    A server may serve a blocked version while the fleet has no stable one, or until it has the files of a
    newer one.
    """
    if report.default_version in (None, due):
        return True
    granted = report.granted
    if granted is None:
        return False
    is_forward = granted in state.blocked and state.stable is not None and can_serve(report, due)
    return granted > due or is_forward
