"""Stops a version whose requests fail too often, at any time in any wave. Pure."""

from fleet.rollout.comparison import Comparison, gate_of
from fleet.rollout.figures import VersionFigures, total
from fleet.rollout.state import ModelState
from fleet.rollout.trial import Trial
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict
from serving.manager.canary import failed_share_fault

FAILED_COUNT_MIN = 100
"""The failures that stop a version before its wave ends.

The old version needs this many requests too, because its share of failed requests says little otherwise.
"""


def failure_verdict(trial: Trial, comparison: Comparison) -> GateVerdict | None:
    """The verdict on a version that fails too often; None if the version has not failed too often yet.

    The requests of an earlier wave are also judged at its end (`comparison.py`), but the requests of the last
    wave are not. So at the end of the last wave two failures are enough if more than half of the requests
    failed. A first version is never stopped here, because servers have no version to go back to. A version that
    an operator has promoted is never stopped here either.
    """
    if not _is_judged(trial, comparison):
        return None
    # A paused wave has no end, because it does not pass after `judged_seconds`.
    is_end = trial.is_last_wave and not trial.state.is_paused and comparison.has_held(trial)
    # A quick check that is enough for most versions, because a version has at least as many failures since
    # its load as in this wave.
    if _failed_count(trial) < (2 if is_end else FAILED_COUNT_MIN):
        return None
    new, old = counted(trial, comparison)
    if not _is_enough(new, is_end=is_end):
        return None
    if old.request_count < FAILED_COUNT_MIN:
        # Servers still answer with the old version, so it may yet get enough requests.
        if not is_end and comparison.may_go_on(trial):
            return None
        # All servers have swapped at once, or the old version had no client in this wave. So the requests of
        # the old version before the wave count too.
        old = total([old, *(baseline.figures for baseline in comparison.controls.values())])
    reason = failed_share_fault(new, old)
    return _verdict(trial, new, old, reason) if reason else None


def counted(trial: Trial, comparison: Comparison) -> tuple[VersionFigures, VersionFigures]:
    """The requests of the new version in this wave, and of the old version on other servers.

    In the last wave, the requests of the old version in the earlier waves count too, because at its end no
    server has the old version any more. The figures of the last wave have no latencies.
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
    """True if enough requests failed to judge the version by them."""
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
    """The failed requests of the version on all servers, each since its load."""
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
