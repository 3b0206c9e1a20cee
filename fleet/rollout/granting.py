"""The second half of a step: decides which servers swap now, and which grants they need. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nsmallest

from fleet.rollout.model_step import ModelStep
from fleet.rollout.reports import ModelReport
from fleet.rollout.state import ModelState, Slot
from fleet.rollout.trial import Trial, spread
from fleet.rollout.view import can_serve, cannot_have
from fleet.rollout.warned_gates import is_held, reason_of_hold
from fleet.rollout.watch import ModelWatch


@dataclass(frozen=True)
class Granting:
    """A judged model to which slots are given. This is a value: each further slot makes another object."""

    step: ModelStep
    watch: ModelWatch

    @property
    def slot_count(self) -> int:
        return len(self.step.state.loading)

    @property
    def swapping_count(self) -> int:
        """The number of servers that swap or may be swapping.

        Leaves out servers whose load was withdrawn long ago and does not end (`_stuck`).
        """
        return self.step.view.swapping_count(self.step.state) - len(self._stuck)

    def with_slots(self, free: int) -> "Granting":
        """Gives a slot to each server that begins to swap now, to at most `free` servers."""
        watch, step = replace(self.watch, waits_for=self._reason_to_wait(free)), self.step
        if not step.state.is_paused and free > 0:
            behind = self._behind(free)
            step = _with_new_members(_with_slots_for(step, behind), free - len(behind))
        return Granting(step, watch)

    def due(self) -> Iterator[tuple[str, int | None]]:
        """Yields each live server that needs a grant, and the version to grant: None withdraws the last one."""
        state = self.step.state
        for name, report in self.step.view.live.items():
            due = _version_due(self.step, name, report)
            slot = state.loading.get(name)
            if report.granted == due:
                # The grant of another version may still be under way. A grant with a higher order makes that
                # grant stale.
                if slot is not None and report.order < slot.order:
                    yield name, due
            elif due is None:
                if slot is not None or self._is_left_over(name, report):
                    yield name, None
            elif (slot is not None and slot.version == due) or _needs_no_slot(report, due, state):
                yield name, due

    def _is_late(self, server: str, factor: int = 1) -> bool:
        return self.watch.is_late(server, self.step.settings, self.step.now.ns, factor)

    def _is_left_over(self, name: str, report: ModelReport) -> bool:
        """True if a server that answers with no version has a grant of a version that it cannot load.

        Such a grant is withdrawn, because a server tries no version besides the one that it was granted. A
        load that was granted before the rollout has `load_seconds_max` to end, whichever coordinator granted
        it.
        """
        granted, trial = report.granted, self.step.trial
        if granted is None:
            return False
        if trial is not None and trial.has_old_grant(report) and self._is_late(name):
            return True
        return granted in self.step.state.blocked or cannot_have(report, granted)

    @cached_property
    def _stuck(self) -> tuple[str, ...]:
        """The servers that still load a version that was withdrawn from them long ago."""
        live = self.step.view.live
        return tuple(
            name
            for name, slot in self.step.state.loading.items()
            if name in live
            and live[name].granted != slot.version
            and live[name].order >= slot.order
            and self._is_late(name, factor=2)
        )

    def _behind(self, free: int) -> dict[str, int]:
        """The servers, at most `free`, that should have another version and may swap to it now.

        They have missed an earlier rollout, or were lost before they took a grant of this one.
        """
        state, view = self.step.state, self.step.view
        members = state.rollout.members if state.rollout else {}
        behind: dict[str, int] = {}
        for name, report in view.live.items():
            if len(behind) == free:
                break
            if report.granted == state.stable and name not in members:
                continue
            due = _version_due(self.step, name, report)
            if (
                due is not None
                and due != report.granted
                and due in report.found
                and name not in state.loading
                and name not in view.draining
                and not _needs_no_slot(report, due, state)
            ):
                behind[name] = due
        return behind

    # --- Reasons for people ---

    def _reason_to_wait(self, free: int) -> str:
        """The reason, for people, why the rollout does not go on now; "" if it goes on."""
        if self.step.state.is_paused:
            return "an operator has paused it: millpond fleet resume"
        of_wave, trial = "", self.step.trial
        if trial is not None and self.step.view.is_complete:
            of_wave = self._reason_of_wave(trial)
        if self._stuck and not of_wave:
            return f"the load of a withdrawn version does not end on {', '.join(self._stuck[:3])}"
        full = "as many servers swap as may" if free <= 0 else ""
        return of_wave or full or self._reason_of_unconfirmed()

    def _reason_of_wave(self, trial: Trial) -> str:
        view, comparison = trial.view, self.watch.comparison
        if is_held(trial.rollout, trial.settings):
            return reason_of_hold(trial.rollout)
        if trial.lacks_files:
            count = sum(trial.version in report.found for report in view.live.values())
            return f"{count} of {view.fleet_size} servers have the files of {trial.version}"
        if trial.is_last_wave:
            is_short = view.lost and not comparison.is_full
            return f"{len(view.lost)} of {view.fleet_size} servers are lost" if is_short else ""
        if trial.lacks_substitutes:
            return "servers of the wave are lost: millpond fleet abort or promote"
        if comparison.is_full and comparison.lacks_controls_left(trial):
            return (
                f"no server with version {trial.stable} can be compared with: millpond fleet "
                "promote goes on without"
            )
        return ""

    def _reason_of_unconfirmed(self) -> str:
        """The reason why no server tries the newest version, if only one server has it; "" otherwise."""
        state, view = self.step.state, self.step.view
        if state.rollout is not None or not view.is_complete:
            return ""
        present = -1 if state.stable is None else state.stable
        newest = max(view.found() - state.blocked.keys(), default=present)
        if newest <= present or newest in view.confirmed():
            return ""
        names = (name for name, report in view.live.items() if newest in report.found)
        return f"only {next(names, 'one server')} has version {newest}: it is tried when a second server has it"


def _version_due(step: ModelStep, server: str, report: ModelReport) -> int | None:
    """The version that a server should be granted; None if the fleet has no version for it yet."""
    trial = step.trial
    if trial is not None and trial.includes(server, report):
        return trial.version
    return _stable_for(step.state, report)


def _stable_for(state: ModelState, report: ModelReport) -> int | None:
    """The version that a server outside the rollout should have: the stable version.

    A server that cannot load the stable version gets an earlier one, so that it still serves after its next
    start. That is the version that it serves, or else the version that was stable before. Without a stable
    version, each server keeps the version that it answers with.
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


def _needs_no_slot(report: ModelReport, due: int, state: ModelState) -> bool:
    """True if a server gets `due` without a slot, because it serves nothing or a version that it must not serve.

    A server may still serve a blocked version while the fleet has no stable version, or while the server lacks
    the files of `due`.
    """
    if report.default_version in (None, due):
        return True
    granted = report.granted
    if granted is None:
        return False
    is_forward = granted in state.blocked and state.stable is not None and can_serve(report, due)
    return granted > due or is_forward


def _with_new_members(step: ModelStep, free: int) -> ModelStep:
    """Adds further servers to the members, at most `free`, and gives each of them a slot."""
    trial = step.trial
    if trial is None or not step.view.is_complete or is_held(trial.rollout, step.settings):
        return step
    names = _new_members(step, trial, min(free, trial.room))
    if not names:
        return step
    if not trial.is_last_wave:
        joined = {name: step.view.servers[name].incarnation for name in names}
        step = step.with_rollout(
            replace(trial.rollout, members={**trial.rollout.members, **joined})
        )
    return _with_slots_for(step, dict.fromkeys(names, trial.version))


def _new_members(step: ModelStep, trial: Trial, count: int) -> list[str]:
    """The servers that try the version next, spread over the fleet by their names."""
    if count <= 0:
        return []
    state, view, version = step.state, step.view, trial.version
    sound = (
        name
        for name, report in view.live.items()
        if version in report.found
        and report.granted != version
        and report.granted == _version_due(step, name, report)
        and trial.may_join(name, report)
        and name not in trial.rollout.members
        and name not in trial.rollout.failed_servers
        and name not in state.loading
        and name not in view.draining
    )
    return nsmallest(count, sound, key=lambda name: spread(name, version))


def _with_slots_for(step: ModelStep, versions: Mapping[str, int]) -> ModelStep:
    if not versions:
        return step
    slots = {name: Slot(version, step.order) for name, version in versions.items()}
    return step.with_state(replace(step.state, loading={**step.state.loading, **slots}))
