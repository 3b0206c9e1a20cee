"""The events in the life of one stream: what each changes at once. Pure: each changes a `Turn`.

The events of operators are in `rollback.py`, `blocking.py` and `canary_turns.py`. `decide` finds out what
follows next.
"""

from collections.abc import Mapping

from serving.base.errors import MillpondError, StatusCode
from serving.base.fingerprint import Fingerprint
from serving.core.blocked_versions import BlockedBy
from serving.core.model_settings import GateMode, ModelSettings
from serving.core.servable import END, AspiredVersion, LoadStage, ServableStatus
from serving.data_plane.servables import Servable
from serving.manager.blocking import block, notify_blocked, unblock, update_fallback
from serving.manager.canary_turns import change_canary
from serving.manager.failed_loads import refusal_of, why_refusal_ends, without_changed_files
from serving.manager.harness import LoaderHarness
from serving.manager.lives import apply_aspired
from serving.manager.memory_pressure import end_failed_swap, make_room, note_lack
from serving.manager.routing import Canary, canary_after
from serving.manager.stream import StreamState
from serving.manager.turn import Turn

# --- Events of the source and of the configuration ------------------------------------------------


def aspire(turn: Turn, versions: tuple[AspiredVersion, ...]) -> None:
    """The source aspires these versions and no others."""
    # Failures with other files end now, and not only with a new life, because a rollback may choose the
    # version before it has one.
    failed = without_changed_files(turn.state.failed, versions)
    turn.change(selected=versions, failed=failed)
    if turn.state.is_idle and turn.state.blocks:
        # The source may be new. A new source has not received the blocked versions yet.
        notify_blocked(turn)
    # A version that is new on disk may replace a rolled back one that serves as the fallback. This comes
    # first, because the fallback is aspired.
    update_fallback(turn)
    apply_aspired(turn)


def set_settings(turn: Turn, settings: ModelSettings) -> None:
    """The settings of the model have changed. A swap under way continues by the new ones."""
    turn.change(settings=settings)
    change_canary(turn)
    if not turn.state.selected:
        # A model that is about to be served, or is no longer served. `found_anew` compares the settings.
        return
    for version, item in turn.state.blocks.by_version.items():
        # A failure that this process knows is tried again by `decide`.
        if item.refusal is not None and version not in turn.state.failed:
            reason = why_refusal_ends(item.refusal, item.refusal.files, settings)
            if reason:
                unblock(turn, version, reason)


def set_labels(turn: Turn, labels: Mapping[str, int]) -> None:
    """The labels of the model have changed. Each takes effect once its version is AVAILABLE."""
    turn.reroute(labels=labels)


def found_anew(turn: Turn, version: int, files: Fingerprint | None = None) -> None:
    """The source found a version for the first time, or with other files than before.

    After a start this is each version. A version that gates have refused in an earlier process stays blocked if
    its `files` and the settings of these gates are the same.
    """
    found, reason = turn.state.blocks.by_version.get(version), "it was found anew"
    refusal = None if found is None or version in turn.state.failed else found.refusal
    if refusal is not None and files is not None:
        reason = why_refusal_ends(refusal, files, turn.state.settings)
    if reason:
        unblock(turn, version, reason)
    # If a rolled back version serves as the fallback, the unblocked version may replace it.
    update_fallback(turn)


# --- Events of loads and unloads ------------------------------------------------------------------


def loaded(turn: Turn, version: int, servable: Servable | None) -> None:
    """A load has ended: the version may be published, with the routing of this turn in one snapshot.

    `published` follows in the same turn once it was. If it is the highest version and another one serves, it
    begins as a canary if its model's settings say so. Otherwise the highest version gets all requests.
    """
    state = turn.state
    harness = state.harnesses[version]
    sound = set(state.ready_versions) - state.blocks.versions - {version}
    canary = canary_after(state.canary, sound, version, _first_canary(state, harness))
    is_canary = canary is not None and canary.version == version
    if version in state.blocks:
        # It was blocked during its load. If it is allowed later, it resumes as a canary.
        canary = state.canary
    turn.move(harness.loaded(servable, turn.now))
    if state.served_since_ns is None:
        turn.change(served_since_ns=turn.now.ns)
    turn.reroute(
        canary=canary,
        unverified=state.unverified | ({version} if is_canary else frozenset()),
        served=state.served_with(version),
        pressure=state.pressure.ended(),
    )
    update_fallback(turn)


def published(turn: Turn, version: int, seconds: float, ended_at_ns: int) -> None:
    """The version of `loaded` was published within `seconds`, and requests see it."""
    harness = turn.state.harnesses[version]
    turn.amend(harness.stage_ended(LoadStage.PUBLISH, seconds, ended_at_ns))
    stage_fields = _stage_fields(turn.state.harnesses[version])
    turn.log("info", "version_available", version=version, **stage_fields)


def _first_canary(state: StreamState, harness: LoaderHarness) -> Canary | None:
    """The canary as which a version begins.

    Returns None if no version was AVAILABLE yet when this one was first aspired: the first versions of
    a model get all requests at once.
    """
    settings, since_ns = state.settings.canary, state.served_since_ns
    if settings.weight == 0 or since_ns is None or harness.began_at_ns < since_ns:
        return None
    return Canary.of(harness.id.version, settings)


def _stage_fields(harness: LoaderHarness) -> dict[str, object]:
    stage_seconds = harness.status.stage_seconds
    fields = {f"{stage.value}_seconds": round(took, 4) for stage, took in stage_seconds.items()}
    return {**fields, "load_seconds": round(sum(stage_seconds.values()), 4)}


def load_failed(turn: Turn, version: int, error: MillpondError) -> None:
    """Waits for a retry or for memory, or ends the life of a version whose load has failed."""
    before = turn.state.harnesses[version]
    error = note_lack(turn, before, error)
    is_memory_being_freed = make_room(turn, before, error)
    harness = before.load_failed(
        error,
        turn.state.rules.retry,
        turn.now,
        drawn=turn.figures.drawn,
        is_given_room=is_memory_being_freed,
    )
    turn.move(harness)
    if harness.state is END and not harness.is_cancelled:
        turn.state = turn.state.with_failed_load(harness)
    _log_failure(turn, harness)
    if harness.state is END:
        _block_refused(turn, version)
        end_failed_swap(turn, harness)


def _block_refused(turn: Turn, version: int) -> None:
    """Blocks a version that gates have refused, until its files or the settings of these gates change.

    Later it may be loaded when no predecessor serves that it could be compared with, as by a rollback or a
    withdrawal of the versions above it, and would pass.
    """
    failed = turn.state.failed.get(version)
    if failed is not None and failed.refused_by and version not in turn.state.blocks:
        reason = turn.state.harnesses[version].status.health.message
        block(turn, {version}, BlockedBy.GATE, reason, refusal_of(failed))


def _log_failure(turn: Turn, harness: LoaderHarness) -> None:
    will_retry = harness.retry_at_ns is not None
    turn.log(
        "info" if harness.is_cancelled else "warning" if will_retry else "error",
        "load_failed",
        version=harness.id.version,
        code=harness.status.health.code.name,
        reason=_reason_for_log(harness.status),
        will_retry=will_retry,
    )


def _reason_for_log(status: ServableStatus) -> str:
    """The reason for the log.

    If gates refused the version, these are only their names, because each gate has logged its reason.
    """
    refused_by = [
        verdict.gate
        for verdict in status.verdicts
        if not verdict.is_passed and verdict.mode == GateMode.ENFORCE.value
    ]
    if status.health.code is StatusCode.FAILED_PRECONDITION and refused_by:
        return f"it did not pass {', '.join(f'gate {gate!r}' for gate in refused_by)}"
    return status.health.message


def unloaded(turn: Turn, version: int, error: MillpondError | None = None) -> None:
    """An unload has ended. Loads that lacked memory are tried again now."""
    turn.move(turn.state.harnesses[version].unloaded(turn.now, error))
    for harness in turn.state.harnesses.values():
        if harness.status.health.code is StatusCode.RESOURCE_EXHAUSTED and harness.state is not END:
            turn.state = turn.state.with_harness(harness.retry_now(turn.now))
