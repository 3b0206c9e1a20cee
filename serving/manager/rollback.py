"""Rolls a model back, because an operator asks for it or a canary has failed. Pure: it changes a `Turn`."""

from collections.abc import Iterable

from serving.base.errors import FailedPrecondition
from serving.core.blocked_versions import BlockedBy
from serving.core.operator_api import Rollback, RollbackBlock
from serving.core.servable import END, LOADING, START
from serving.manager.blocking import block
from serving.manager.listener import ROLLED_BACK
from serving.manager.stream import StreamState
from serving.manager.turn import DefaultChanged, Turn


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
    known = (
        state.harnesses.keys() | {item.version for item in state.selected} | state.blocks.refused
    )
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
    # A version that gates have refused is not selected any more.
    unselected = END if version in state.blocks.refused else START
    loads = {START: "its load has not begun", LOADING: "its load was under way"}
    return RollbackBlock(
        version,
        has_served=False,
        reason="it never served, and would have replaced the earlier version once loaded; "
        + loads.get(unselected if harness is None else harness.state, "its load failed"),
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
    if any(version < current for version in blocks.unblocked_of(turn.found.on_disk)):
        return
    if turn.found.awaited_base_path:
        raise FailedPrecondition(
            f"model {name!r} has no version before {current} in its base path "
            f"{turn.found.awaited_base_path}, where none is found yet, and none of its former base path is loaded "
            f"any more{in_memory}: drop one there (millpond status says why none is found), or configure the former "
            "base path again"
        )
    raise FailedPrecondition(
        f"model {name!r} has no version before {current} on disk that its version policy "
        f"selects and that is not blocked too{in_memory}; drop one"
    )
