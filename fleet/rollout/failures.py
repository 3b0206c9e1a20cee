"""Stops a version that fails too often in whichever wave its requests come. Pure."""

from fleet.rollout.comparison import Comparison, gate_of
from fleet.rollout.figures import VersionFigures, total
from fleet.rollout.state import ModelState
from fleet.rollout.trial import Trial
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict
from serving.manager.canary import failed_share_fault

FAILED_COUNT_MIN = 100
"""With fewer failures a version is not stopped before its wave ends.

The old version needs as many requests, because a share of fewer says little.
"""


def failure_verdict(trial: Trial, comparison: Comparison) -> GateVerdict | None:
    """The verdict on a version that fails too often; None if it does not, or not yet.

    Waves before the last one are judged at their end anyway. The last wave is not, so at its end two
    failures are enough if more than half of the requests failed. A first version is not judged so, because
    there is no version to go back to, and neither is a version that an operator has promoted.
    """
    if not _is_judged(trial, comparison):
        return None
    # A paused wave goes on after its time is over, so it has no end.
    is_end = trial.is_last_wave and not trial.state.is_paused and comparison.has_held(trial)
    # Checked first, because it is quick for most versions: the failures since the load are at least those
    # of the wave.
    if _failed_count(trial) < (2 if is_end else FAILED_COUNT_MIN):
        return None
    new, old = counted(trial, comparison)
    if not _is_enough(new, is_end=is_end):
        return None
    if old.request_count < FAILED_COUNT_MIN:
        # The old version may still get enough requests: servers answer with it.
        if not is_end and comparison.may_go_on(trial):
            return None
        # All servers have swapped at once, or the old version had no client. So the earlier waves show how
        # clients were before.
        old = total([old, *(baseline.figures for baseline in comparison.controls.values())])
    reason = failed_share_fault(new, old)
    return _verdict(trial, new, old, reason) if reason else None


def counted(trial: Trial, comparison: Comparison) -> tuple[VersionFigures, VersionFigures]:
    """The requests of the new version in this wave, and those of the old one on other servers.

    At the end of the last wave no server with the old version is left. So its requests in the earlier waves
    count too; they have no latencies.
    """
    if not trial.is_last_wave:
        return comparison.figures(trial)
    new, old = comparison.counts_of_last_wave(trial)
    return new, total([old, *_in_earlier_waves(trial.state, trial.version)])


def _is_judged(trial: Trial, comparison: Comparison) -> bool:
    if trial.stable is None or trial.rollout.is_promoted or comparison.members is None:
        return False
    return trial.is_last_wave or not comparison.lacks_controls_left(trial)


def _is_enough(new: VersionFigures, *, is_end: bool) -> bool:
    """True if the failures are too many for an accident."""
    if not new.request_count:
        return False
    if new.failed_count >= FAILED_COUNT_MIN:
        return True
    return is_end and new.failed_count >= 2 and 2 * new.failed_count > new.request_count


def _in_earlier_waves(state: ModelState, version: int) -> list[VersionFigures]:
    """The requests of the stable version beside each wave that `version` has passed.

    If the version was stopped and allowed again, earlier waves do not count.
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


def _failed_count(trial: Trial) -> int:
    """The failures since the version was loaded."""
    view, version = trial.view, trial.version
    return sum(
        view.live[name].versions[version].figures.failed_count for name in view.serving(version)
    )


def _verdict(trial: Trial, new: VersionFigures, old: VersionFigures, reason: str) -> GateVerdict:
    figures = {
        "request_count": new.request_count,
        "failed_count": new.failed_count,
        "stable_request_count": old.request_count,
        "stable_failed_count": old.failed_count,
    }
    return GateVerdict(
        gate=gate_of(trial),
        mode=GateMode.ENFORCE.value,
        is_passed=False,
        reason=reason,
        figures=figures,
    )
