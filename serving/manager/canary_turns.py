"""The life of a canary: it is changed, resumed, judged, and promoted or rolled back. Pure: it changes a `Turn`."""

from serving.base.errors import FailedPrecondition
from serving.core.blocked_versions import BlockedBy
from serving.core.servable import GateVerdict
from serving.manager import canary
from serving.manager.canary_state import NO_COMPARISON, CanaryState
from serving.manager.listener import PROMOTED
from serving.manager.rollback import roll_back
from serving.manager.routing import Canary
from serving.manager.stream import StreamState
from serving.manager.turn import DefaultChanged, Turn

BY_OPERATOR = "operator"
BY_RULE = "canary"
BY_SETTINGS = "settings"
"""The log names one of these three as the originator of a promotion.

The settings promote a canary if its weight is set to 0.
"""


def promote(turn: Turn, *, by: str = BY_OPERATOR, verdict: GateVerdict | None = None) -> int:
    """Makes the canary answer all requests. Raises FailedPrecondition without a canary.

    `verdict` is given if a rule promotes it; its reason names the latencies that were not judged.
    """
    state = turn.state
    version, previous = state.routing.canary_version, state.routing.default_version
    if version is None:
        raise FailedPrecondition(f"model {state.name!r} has no canary to promote")
    turn.reroute(canary=None, unverified=state.unverified - {version})
    judged = {"reason": verdict.reason, **verdict.figures} if verdict else {}
    turn.log("info", "canary_promoted", version=version, by=by, **judged)
    turn.notices.append(DefaultChanged(version, previous, PROMOTED))
    return version


def change_canary(turn: Turn) -> None:
    """Applies the settings to a running canary. A weight of 0 promotes it."""
    version, settings = turn.state.routing.canary_version, turn.state.settings.canary
    if version is None:
        return
    if settings.weight == 0:
        promote(turn, by=BY_SETTINGS)
    else:
        turn.reroute(canary=Canary.of(version, settings))


def resume_canary(turn: Turn) -> None:
    """Resumes a canary that was rolled back or withdrawn and is still in memory when it is aspired again."""
    state, settings = turn.state, turn.state.settings.canary
    answering = state.routing.default_version
    if state.routing.canary_version is not None or answering is None or not state.unverified:
        return
    for version in reversed(state.ready_versions):
        is_allowed = version in state.aspired and version not in state.blocks
        if not (is_allowed and version > answering and version in state.unverified):
            continue
        if settings.weight == 0:
            turn.reroute(unverified=state.unverified - {version})
            turn.log("info", "canary_promoted", version=version, by=BY_SETTINGS)
        else:
            resumed = (version, turn.figures.statistics[version])
            turn.reroute(
                comparison=CanaryState(resumed=resumed), canary=Canary.of(version, settings)
            )
        return


def is_judged_by_rule(state: StreamState) -> bool:
    """True if a canary runs, and a rule decides on it."""
    return state.routing.canary_version is not None and state.settings.canary.request_count > 0


def judge_canary(turn: Turn) -> None:
    """Promotes the canary, or rolls it back, if it has answered enough requests."""
    state, statistics = turn.state, turn.figures.statistics
    if state.routing.canary_version is None:
        if state.comparison is not NO_COMPARISON:
            turn.change(comparison=NO_COMPARISON)
        return
    candidate = state.ready(state.routing.canary_version)
    stable = state.ready(state.routing.default_version)
    if not is_judged_by_rule(state) or candidate is None or stable is None:
        return
    pair = (candidate.id.version, stable.id.version)
    after, answered, beside = state.comparison.compared(pair, *(statistics[key] for key in pair))
    turn.change(comparison=after)
    judgement = canary.judge(state.settings.canary, answered, beside)
    if judgement is None:
        return
    verdict, is_doubted = judgement.verdict, after.doubted == candidate.id.version
    if judgement.is_only_slow and not is_doubted:
        turn.change(comparison=after.doubt(candidate.id.version, statistics[candidate.id.version]))
        _log_verdict(turn, "canary_doubted", candidate.id.version, verdict)
        return
    if verdict.is_passed and is_doubted and not judgement.is_of_latency:
        # No verdict yet, because the stable version needs more requests.
        return
    turn.move(candidate.gate_ended(verdict))
    if verdict.is_passed:
        promote(turn, by=BY_RULE, verdict=verdict)
        return
    _log_verdict(turn, "canary_failed", candidate.id.version, verdict)
    roll_back(turn, is_cold_allowed=False, by=BlockedBy.CANARY, reason=verdict.reason)


def _log_verdict(turn: Turn, event: str, version: int, verdict: GateVerdict) -> None:
    turn.log("warning", event, version=version, reason=verdict.reason, **verdict.figures)
