"""Rollbacks, promotions and blocks, by an operator or by a canary's rule. Pure: each changes a `Turn`.

A block takes effect in three places, in this order: the routing, which directs requests; the source,
which selects versions on disk; the stream, whose versions are loaded and kept.
"""

from collections.abc import Iterable

from serving.base.errors import FailedPrecondition
from serving.base.name_text import listed
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.operator_api import Rollback, RollbackBlock
from serving.core.servable import LOADING, START, GateVerdict
from serving.manager import canary
from serving.manager.blocked_state import BlockedState
from serving.manager.canary_state import NO_COMPARISON, CanaryState
from serving.manager.listener import PROMOTED, ROLLED_BACK
from serving.manager.lives import apply_aspired
from serving.manager.routing import Canary
from serving.manager.stream import StreamState
from serving.manager.turn import BlocksChanged, DefaultChanged, Turn

BY_OPERATOR = "operator"
BY_RULE = "canary"
BY_SETTINGS = "settings"
"""The log names one of these three as the originator of a promotion. The settings promote a canary if its
weight is set to 0.
"""


# --- Rollback -------------------------------------------------------------------------------------


def roll_back(
    turn: Turn,
    *,
    is_cold_allowed: bool,
    by: BlockedBy = BlockedBy.OPERATOR,
    reason: str = "",
) -> Rollback:
    """Blocks the canary, or else the version that answers, and all above it.

    See `AspiredVersionsManager.rollback` for the errors.
    """
    state = turn.state
    canary_version = state.routing.canary_version
    current = state.routing.default_version if canary_version is None else canary_version
    if current is None and is_cold_allowed:
        # No version serves, so the rollback is from the version that cannot be loaded.
        current = max((item.version for item in state.selected), default=None)
    if current is None:
        raise FailedPrecondition(f"model {state.name!r} serves no version to roll back from")
    ready = state.blocks.unblocked_of(state.ready_versions)
    lower = {version for version in ready if version < current}
    # The choice of `decide_routing`: a version that began as a canary and was never promoted comes last.
    earlier = max(lower - state.unverified or lower, default=None)
    if earlier is None:
        _check_cold(turn, current, is_cold_allowed)
    known = state.harnesses.keys() | {item.version for item in state.selected}
    versions = frozenset(version for version in known if version >= current)
    until = "an earlier one is loaded" if earlier is None else "now"
    blocked = _blocked_by_rollback(state, versions, current, until=until)
    to = "an earlier one on disk" if earlier is None else earlier
    block(turn, versions, by, reason or f"rolled back from {current} to {to}")
    turn.log(
        "warning",
        "rolled_back",
        version=current,
        to=earlier,
        blocked=sorted(versions),
        never_served=[item.version for item in blocked if not item.has_served],
        is_canary=current == canary_version,
        by=by.value,
    )
    if earlier is not None:
        turn.notices.append(DefaultChanged(earlier, current, ROLLED_BACK))
    return Rollback(rolled_back=current, version=earlier, blocked=blocked)


def _blocked_by_rollback(
    state: StreamState, versions: Iterable[int], current: int, *, until: str
) -> tuple[RollbackBlock, ...]:
    """Lists what a rollback from `current` blocks: `current`, and each of `versions` not yet rolled back.

    `until` tells when the versions that answer stop. `state` is the state before the block.
    """
    service = dict.fromkeys(state.served, "it served earlier")
    for answering in (state.routing.default_version, state.routing.canary_version):
        if answering is not None:
            service[answering] = f"it served until {until}"
    rolled_back = state.blocks.rolled_back.keys()
    return tuple(
        _blocked_version(state, version, service.get(version))
        for version in sorted({*versions} - rolled_back | {current})
    )


def _blocked_version(state: StreamState, version: int, service: str | None) -> RollbackBlock:
    """A row of that list. `service` tells until when the version served; None if it never did."""
    if service is not None:
        return RollbackBlock(version, has_served=True, reason=service)
    harness = state.harnesses.get(version)
    loads = {START: "its load has not begun", LOADING: "its load was under way"}
    return RollbackBlock(
        version,
        has_served=False,
        reason="it never served, and would have replaced the earlier version once loaded; "
        + loads.get(START if harness is None else harness.state, "its load failed"),
    )


def _check_cold(turn: Turn, current: int, is_cold_allowed: bool) -> None:
    """Raises FailedPrecondition if a cold rollback is not allowed, or finds no earlier version on disk."""
    name, blocks = turn.state.name, turn.state.blocks
    blocked = blocks.blocked_of(turn.state.ready_versions)
    in_memory = f" ({blocked[0]} is blocked: millpond allow)" if blocked else ""
    if not is_cold_allowed:
        raise FailedPrecondition(
            f"model {name!r} has no version before {current} in memory{in_memory}: keep one "
            "there by keep_previous_seconds, or allow a cold rollback (millpond rollback "
            "--cold), which loads one from disk while this one serves on"
        )
    if not any(version < current for version in blocks.unblocked_of(turn.found.on_disk)):
        raise FailedPrecondition(
            f"model {name!r} has no version before {current} on disk that its version policy "
            f"selects and that is not blocked too{in_memory}; drop one"
        )


# --- Blocks ---------------------------------------------------------------------------------------


def block(turn: Turn, versions: Iterable[int], by: BlockedBy, reason: str) -> None:
    """Blocks `versions`: while another version can serve, they are not served, loaded or kept."""
    added = BlockedVersion(by=by, reason=reason, since_wall_ns=turn.now.wall_ns)
    _set_blocks(turn, turn.state.blocks.with_block(versions, added))


def allow(turn: Turn, version: int) -> None:
    """Unblocks a version. Raises FailedPrecondition if it is not blocked."""
    blocks = turn.state.blocks
    if version not in blocks:
        known = listed(map(str, sorted(blocks.versions)))
        raise FailedPrecondition(
            f"model {turn.state.name!r}: version {version} is not blocked; blocked: {known}"
        )
    _set_blocks(turn, blocks.without(version))


def unblock(turn: Turn, version: int, reason: str) -> None:
    """Unblocks a version that a failure blocked. `reason` is the change that allows it.

    Does nothing for a version that is not blocked.
    """
    found = turn.state.blocks.by_version.get(version)
    if found is None:
        return
    failed = {key: item for key, item in turn.state.failed.items() if key != version}
    turn.change(failed=failed)
    if found.needs_operator:
        # Only an operator removes this block, but the version may now be the fallback.
        update_fallback(turn)
        return
    turn.log("info", "version_unblocked", version=version, reason=reason)
    _set_blocks(turn, turn.state.blocks.without(version))


def update_fallback(turn: Turn) -> None:
    """Serves a rolled back version again while every other version on disk is blocked too.

    Its block stays: any other version that loads replaces it at once.
    """
    blocks = _with_fallback(turn, turn.state.blocks)
    if blocks is not turn.state.blocks:
        turn.change(blocks=blocks)
        notify_blocked(turn)
        apply_aspired(turn)


def notify_blocked(turn: Turn) -> None:
    """Sends the blocked versions to the source of the model, and to the keeper of blocked versions."""
    turn.notices.append(BlocksChanged(turn.state.blocks))


def _with_fallback(turn: Turn, blocks: BlockedState) -> BlockedState:
    """Chooses the fallback: the version in `blocks` that must serve although it is blocked.

    Logs it if it is a new one.
    """
    state, version = turn.state, None
    if blocks:
        version = blocks.find_fallback(
            turn.found.on_disk, state.ready_versions, state.failed.keys(), turn.now.wall_ns
        )
    if version is not None and version != blocks.fallback:
        turn.log(
            "error",
            "last_resort_serves",
            version=version,
            reason="no other version on disk can be loaded",
            blocked=sorted(blocks.versions),
            remedy="drop a version that loads, or unblock this one: millpond allow",
        )
    return blocks.with_fallback(version)


def _set_blocks(turn: Turn, blocks: BlockedState) -> None:
    """Replaces the blocks.

    A canary among them ends, because the settings at the time when it is allowed again decide its share.
    """
    # A version that is not blocked any more may be loaded again, so its failure is forgotten.
    turn.state = turn.state.changed(blocks=blocks).without_past_failures()
    blocks = _with_fallback(turn, blocks)
    running = turn.state.canary
    is_ended = running is not None and running.version in blocks
    turn.reroute(blocks=blocks, canary=None if is_ended else running)
    notify_blocked(turn)
    apply_aspired(turn)


# --- The canary -----------------------------------------------------------------------------------


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
