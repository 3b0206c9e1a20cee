"""Chooses the version that is unloaded for a load that does not fit, and decides what follows if there is
none.

Pure.
"""

from serving.base.errors import DoesNotFitBeside, MillpondError
from serving.core.servable import END, UNLOADING
from serving.manager.blocking import block_failed
from serving.manager.harness import LoaderHarness
from serving.manager.turn import Turn


def note_lack(turn: Turn, harness: LoaderHarness, error: MillpondError) -> MillpondError:
    """Records whether a load lacks memory that no unload can free.

    Returns `error`, whose message then also lists the versions that stay.
    """
    state, version = turn.state, harness.id.version
    is_lacking = (
        isinstance(error, DoesNotFitBeside)
        and state.previous_that_frees_memory(error.missing_bytes) is None
        and not state.spare_versions()
    )
    turn.change(pressure=state.pressure.with_lack(version, is_lacking=is_lacking))
    if not (is_lacking and state.ready_versions and isinstance(error, DoesNotFitBeside)):
        return error
    staying = ", ".join(map(str, state.ready_versions))
    return DoesNotFitBeside(
        f"{error.message}; no version can be unloaded to make room: {staying} aspired, or kept by "
        "a label or a canary",
        missing_bytes=error.missing_bytes,
    )


def make_room(turn: Turn, harness: LoaderHarness, error: MillpondError) -> bool:
    """Chooses a version that is unloaded for the load of `harness`. Returns False if there is none.

    Gives up the version that is kept for a rollback first, if its memory is enough. Otherwise, a policy that
    yields to pressure unloads the version that serves.
    """
    state, version = turn.state, harness.id.version
    if harness.is_cancelled or not isinstance(error, DoesNotFitBeside):
        return False
    if any(item.state is UNLOADING for item in state.harnesses.values()):
        # That unload already frees memory, so no other version is unloaded for now.
        return True
    previous = state.previous_that_frees_memory(error.missing_bytes)
    if previous is not None:
        turn.change(kept=state.kept.without(previous))
        turn.log(
            "warning",
            "previous_version_given_up",
            version=previous,
            for_version=version,
            reason=error.message,
            consequence="a rollback has to load an earlier version from disk (--cold)",
        )
        return True
    # Versions that are aspired or have a label are never unloaded for another one.
    if not state.yields_to_pressure or not state.spare_versions():
        return False
    if not state.pressure.is_on:
        turn.change(pressure=state.pressure.begun(version, error.message))
        turn.log(
            "warning",
            "resource_preserving_chosen",
            version=version,
            reason=error.message,
            consequence="the old version goes first, and requests fail until the new one is ready",
        )
    return True


def end_failed_swap(turn: Turn, harness: LoaderHarness) -> None:
    """Ends the pressure of a load that has failed for the last time, and may block its version.

    Blocks it if no version answers and none is left that may: the source leaves a blocked version out, so that the
    next lower version on disk is loaded. After an unload for this load, or a rollback, that is the old version.
    """
    state = turn.state
    if state.is_outdated(harness):
        return
    is_applied = state.unloads_first or state.blocks.rolled_back
    if is_applied or state.pressure.pressing_version == harness.id.version:
        turn.change(pressure=state.pressure.ended())
    # A blocked version that a label keeps in memory does not count, because it does not answer.
    if harness.is_cancelled or state.routing.default_version is not None:
        return
    if is_applied:
        block_failed(turn, {harness.id.version: harness.status.health.message})
        return
    # A version with other files, or one that has been unloaded and is aspired again, is still to be loaded.
    failed = {
        version: item.status.health.message
        for version, item in turn.state.harnesses.items()
        if item.state is END
        and not item.is_discarded
        and state.aspired.get(version) == item.aspired
    }
    if failed.keys() == state.aspired.keys():
        block_failed(turn, failed)
