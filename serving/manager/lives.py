"""The lives of a stream: which begin, are cancelled or dropped as the aspired versions change. Pure."""

from serving.core.servable import AVAILABLE, END, LOADING, START, AspiredVersion, ServableId
from serving.manager.harness import NO_LONGER_ASPIRED, LoaderHarness
from serving.manager.turn import StopLoad, Turn


def apply_aspired(turn: Turn) -> None:
    """Brings the lives of the stream in line with its selected and blocked versions."""
    aspired = {item.version: item for item in turn.state.effective_aspired()}
    turn.reroute(aspired=aspired, pressure=turn.state.pressure.unless_aspired(aspired))
    end_canary_unless_aspired(turn)
    for version, harness in turn.state.harnesses.items():
        files, state = aspired.get(version), harness.state
        # A version that is aspired in another directory would load the files of a former base path.
        is_there = files is not None and files.directory == harness.aspired.directory
        if not is_there and state in (START, LOADING) and not harness.is_cancelled:
            _cancel(turn, harness, NO_LONGER_ASPIRED if files is None else _moved_to(files))
        elif files is not None and state is AVAILABLE and files != harness.aspired:
            _find_again(turn, harness.found_again(files))
    # Now and not at the next decision: a later event may aspire a version again that is omitted now.
    reconcile(turn)


def _find_again(turn: Turn, harness: LoaderHarness) -> None:
    turn.state = turn.state.with_harness(harness)
    if harness.has_other_files:
        turn.log(
            "warning",
            "live_version_files_changed",
            version=harness.id.version,
            directory=harness.aspired.directory,
            remedy="it serves the files that were loaded; drop other files under a new version",
        )


def _moved_to(files: AspiredVersion) -> str:
    return f"it is aspired in another directory now, {files.directory}, and loaded from there"


def _cancel(turn: Turn, harness: LoaderHarness, because: str) -> None:
    cancelled = harness.cancel(turn.now, because)
    if cancelled.status is harness.status:
        turn.state = turn.state.with_harness(cancelled)
        turn.effects.append(StopLoad(harness.id.version))
    else:
        turn.move(cancelled)


def reconcile(turn: Turn) -> None:
    """Drops lives that are over, and begins a life for each aspired version without one."""
    state = turn.state
    over = [
        version
        for version, harness in state.harnesses.items()
        if harness.state is END
        and (harness.is_discarded or state.aspired.get(version) != harness.aspired)
    ]
    if over:
        left = {key: item for key, item in state.harnesses.items() if key not in over}
        turn.change(harnesses=left)
    turn.state = turn.state.without_past_lives()
    begun = [version for version in state.aspired if version not in turn.state.harnesses]
    for version in begun:
        turn.move(
            LoaderHarness.begin(
                ServableId(state.name, version),
                state.aspired[version],
                turn.now,
                aspired_with=frozenset(begun),
            )
        )


def end_canary_unless_aspired(turn: Turn) -> None:
    """Ends a canary that is withdrawn or replaced by another version."""
    version = turn.state.routing.canary_version
    if version is None or version in turn.state.aspired:
        return
    if version not in turn.state.blocks:
        turn.log("info", "canary_ended", version=version, reason=NO_LONGER_ASPIRED)
    turn.reroute(canary=None)
