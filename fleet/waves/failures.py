"""Stops a version that fails too often in whichever wave its requests come. Pure."""

from fleet.waves.figures import VersionFigures, total
from fleet.waves.state import FleetRollout, ModelState
from fleet.waves.trial import (
    ModelWatch,
    compared,
    counts_of,
    gate_of,
    has_held,
    is_comparable,
    lacks_comparison,
    since_baseline,
)
from fleet.waves.view import ModelView
from fleet.waves.wave_settings import WaveSettings
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict
from serving.manager.canary import failed_share_fault

FAILED_COUNT_MIN = 100
"""With fewer failures a version is not stopped before its wave ends. The version beside it needs as many
requests, because a share of fewer proves nothing."""


def failure_verdict(
    watch: ModelWatch,
    state: ModelState,
    rollout: FleetRollout,
    view: ModelView,
    settings: WaveSettings,
    now_ns: int,
) -> GateVerdict | None:
    """Returns the verdict on a version that fails too often; None if it does not, or not yet.

    A wave before the last one is judged at its end anyway. The last one is not: at its end two failures are
    enough if more than half of the requests failed. A first version is not judged so, because there is
    none to go back to. Nor is one that an operator has promoted.
    """
    if not _is_judged(watch, state, rollout, view, settings):
        return None
    # A paused wave goes on after its end.
    is_end = (
        settings.is_last(rollout.wave)
        and not state.is_paused
        and has_held(watch, state, settings, now_ns)
    )
    # Quick for most versions: these are at least the failures of the wave.
    if _failed_count(rollout, view) < (2 if is_end else FAILED_COUNT_MIN):
        return None
    new, old = counted(watch, state, rollout, view, settings)
    if not _is_enough(new, is_end=is_end) or _may_be_compared(
        watch, state, old, view, is_end=is_end
    ):
        return None
    if old.request_count < FAILED_COUNT_MIN:
        # All have swapped at once, or no client was there. What is known is how clients were before.
        old = total([old, *(baseline.figures for baseline in watch.controls.values())])
    reason = failed_share_fault(new, old)
    return _verdict(rollout, new, old, reason) if reason else None


def _is_judged(
    watch: ModelWatch,
    state: ModelState,
    rollout: FleetRollout,
    view: ModelView,
    settings: WaveSettings,
) -> bool:
    if state.stable is None or rollout.is_promoted or watch.members is None:
        return False
    return settings.is_last(rollout.wave) or not lacks_comparison(watch, state, rollout, view)


def _is_enough(new: VersionFigures, *, is_end: bool) -> bool:
    """Returns True if the failures are no accident."""
    if not new.request_count:
        return False
    if new.failed_count >= FAILED_COUNT_MIN:
        return True
    return is_end and new.failed_count >= 2 and 2 * new.failed_count > new.request_count


def _may_be_compared(
    watch: ModelWatch, state: ModelState, old: VersionFigures, view: ModelView, *, is_end: bool
) -> bool:
    """Returns True if servers that answer with the stable version may still get enough requests."""
    stable = state.stable
    if stable is None or is_end or old.request_count >= FAILED_COUNT_MIN:
        return False
    return any(is_comparable(view, name, stable, row) for name, row in watch.controls.items())


def counted(
    watch: ModelWatch,
    state: ModelState,
    rollout: FleetRollout,
    view: ModelView,
    settings: WaveSettings,
) -> tuple[VersionFigures, VersionFigures]:
    """Returns the requests of the new version in this wave, and those of the old one on other servers.

    In the last wave no other servers are left at its end. So the old version's are those of the earlier
    waves too, and they have no latencies.
    """
    if not settings.is_last(rollout.wave):
        return compared(watch, state, rollout, view)
    version, members = rollout.version, watch.members or {}
    new = total(
        since_baseline(counts_of(view, name, version), members.get(name))
        for name in view.serving(version)
    )
    in_wave = (row.since(watch.controls[name].figures) for name, row in watch.seen.items())
    return new, total([*in_wave, *_in_earlier_waves(state, version)])


def _in_earlier_waves(state: ModelState, version: int) -> list[VersionFigures]:
    """Returns the requests of the stable version beside each wave that `version` has passed.

    Not those of before it was stopped, and allowed again.
    """
    rows: list[VersionFigures] = []
    for verdict in state.verdicts:
        if verdict.figures.get("version") != version:
            continue
        if not verdict.is_passed:
            rows = []
        elif "stable_request_count" in verdict.figures:
            request_count = int(verdict.figures["stable_request_count"])
            rows.append(VersionFigures(request_count, int(verdict.figures["stable_failed_count"])))
    return rows


def _failed_count(rollout: FleetRollout, view: ModelView) -> int:
    """Returns the failures since the version was loaded."""
    version = rollout.version
    return sum(
        view.live[name].versions[version].figures.failed_count for name in view.serving(version)
    )


def _verdict(
    rollout: FleetRollout, new: VersionFigures, old: VersionFigures, reason: str
) -> GateVerdict:
    figures = {
        "request_count": new.request_count,
        "failed_count": new.failed_count,
        "stable_request_count": old.request_count,
        "stable_failed_count": old.failed_count,
    }
    return GateVerdict(
        gate=gate_of(rollout),
        mode=GateMode.ENFORCE.value,
        is_passed=False,
        reason=reason,
        figures=figures,
    )
