"""Blocks and unblocks versions of a model. Pure: each function changes a `Turn`.

A block takes effect in three places, in this order: in the routing, which directs requests; in the source,
which selects versions on disk; and in the stream, whose versions are loaded and kept.
"""

from collections.abc import Iterable, Mapping

from serving.base.errors import FailedPrecondition
from serving.base.name_text import listed
from serving.core.blocked_versions import BlockedBy, BlockedVersion, Refusal
from serving.manager.blocked_state import BlockedState
from serving.manager.lives import apply_aspired
from serving.manager.turn import BlocksChanged, Turn


def block(
    turn: Turn,
    versions: Iterable[int],
    by: BlockedBy,
    reason: str,
    refusal: Refusal | None = None,
) -> None:
    """Blocks `versions`: while another version can serve, they are not served, loaded or kept."""
    added = BlockedVersion(by=by, reason=reason, since_wall_ns=turn.now.wall_ns, refusal=refusal)
    _set_blocks(turn, turn.state.blocks.with_block(versions, added))


def block_failed(turn: Turn, reasons: Mapping[int, str]) -> None:
    """Blocks versions whose loads have failed, with the reasons, in one step: no version is aspired between.

    A version that is blocked already keeps its block: that of a gate says more, and outlives the process.
    """
    blocks = turn.state.blocks
    for version in reasons.keys() - turn.state.blocks.versions:
        added = BlockedVersion(
            by=BlockedBy.FAILURE, reason=reasons[version], since_wall_ns=turn.now.wall_ns
        )
        blocks = blocks.with_block({version}, added)
    # Also if all are blocked already: the fallback may have failed, and another blocked version has to serve.
    _set_blocks(turn, blocks)


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


def forget_failures(turn: Turn) -> None:
    """Unblocks each version that is blocked because its load failed, as the model has no version any more.

    If the model comes back, its versions are loaded anew.
    """
    for version, found in turn.state.blocks.by_version.items():
        if found.by is BlockedBy.FAILURE:
            unblock(turn, version, "the model has no versions any more")


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
