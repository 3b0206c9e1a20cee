"""Found versions: which directories below a base path are versions. Pure functions on values.

A poll reads the disk (`file_system_source.py`) and passes the result with the source's state to
`decide`. The new state holds the found versions, the aspired versions and the notes to log.

A version is *found* when its directory has settled and is complete. It stays found while the
directory exists, or when the directory comes back unchanged. A version whose load failed for good is
*found anew* once its files have changed, settled and are complete, or once its directory is back if the
load failed because it was gone. It is then loaded again, so a failed version can be repaired in place. A
version that serves is not replaced if its files change; a note warns of the change.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from serving.base.clock import NS_PER_SECOND
from serving.base.fingerprint import Fingerprint
from serving.core.label_targets import KnownVersions, absent_targets
from serving.core.servable import AspiredVersion
from serving.core.version_selection import (
    NOTHING,
    All,
    Latest,
    Selected,
    VersionSelection,
    select_unblocked,
)
from serving.source.notes import (
    Note,
    asset_missing_note,
    grant_awaited_note,
    only_blocked_note,
    overwritten_note,
    some_of,
)
from serving.source.settling import (
    RECHECK_NS,
    Candidate,
    Instant,
    asset_wait_ends_in_ns,
    settles_in_ns,
)

COMPARISONS_PER_SECOND = 10
"""The base paths at rest whose files are compared each second: a hundredth of a core."""


@dataclass(frozen=True, kw_only=True)
class SelectionInputs:
    """The settings that select the aspired versions among the found versions.

    `blocked` versions were rolled back and are not loaded again. `granted` are the only versions that a
    member of a fleet may select, or None outside of a fleet. If `keeps_last`, an emptied base path leaves
    the aspired versions as they are (--servable_versions_always_present). `labels` do not make a version
    aspired: a label whose version is not aspired is reported by a note.
    """

    selection: VersionSelection = Latest(1)
    labels: Mapping[str, int] = field(default_factory=dict)
    blocked: frozenset[int] = frozenset()
    granted: frozenset[int] | None = None
    keeps_last: bool = True

    def selectable(self, versions: Collection[int]) -> frozenset[int]:
        """The versions among `versions` that were granted. Outside of a fleet, all of them."""
        return frozenset(versions) if self.granted is None else self.granted.intersection(versions)

    def select(self, versions: Collection[int]) -> Selected:
        """Selects among `versions`, without those that are blocked or were not granted."""
        return select_unblocked(self.selection, self.selectable(versions), self.blocked)


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """The state of a source between two polls.

    `fingerprints` has the fingerprint of each found version, taken when the version was found, except of one
    whose directory was gone when its load ended (`without_lost_files`). `missing`
    versions were found and are kept, but are gone from the disk. `looked_at_ns` is when the files of a
    version that may serve were last compared with its fingerprint. `overwritten` are the versions whose
    files differed then. `on_disk` are the versions that have a directory, None until the first poll that
    could read the base path. If it `is_of_former_base_path`, `found` lies below the base path before the
    configured one, of which no version is found yet.
    """

    found: Mapping[int, AspiredVersion] = field(default_factory=dict)
    fingerprints: Mapping[int, Fingerprint] = field(default_factory=dict)
    looked_at_ns: Mapping[int, int] = field(default_factory=dict)
    overwritten: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()
    # Found versions with a file that does not parse. They are aspired so that their loads end with the
    # error, and they do not count towards the number of versions that the selection takes.
    broken: frozenset[int] = frozenset()
    # The missing assets of found versions.
    missing_assets: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    on_disk: frozenset[int] | None = None
    is_of_former_base_path: bool = False
    candidates: Mapping[int, Candidate] = field(default_factory=dict)
    # None until the first version is aspired: until then no version can be omitted.
    aspired: tuple[AspiredVersion, ...] | None = None
    notes: frozenset[Note] = frozenset()


def in_new_base_path(state: SourceState) -> SourceState:
    """The state after a change of the base path, before the new one is read.

    What is aspired stays, until a version of the new base path is found.
    """
    return replace(state, is_of_former_base_path=bool(state.found))


def not_yet_found(state: SourceState, directories: Mapping[int, str]) -> dict[int, str]:
    """The entries of `directories` (by version) that are not found yet or were missing."""
    return {
        version: directory
        for version, directory in directories.items()
        if version in state.missing
        or version not in state.found
        or state.found[version].directory != directory
    }


def to_observe(
    state: SourceState,
    directories: Mapping[int, str],
    failed: Collection[int],
    blocked: frozenset[int] = frozenset(),
) -> dict[int, str]:
    """The entries of `directories` whose files decide whether they are loaded.

    These are the versions that are not found yet, and those that have `failed` and are aspired or
    `blocked`.
    """
    aspired = {item.version for item in state.aspired or ()}
    observed = not_yet_found(state, directories).keys() | ((aspired | blocked) & set(failed))
    return {version: directories[version] for version in directories if version in observed}


def to_compare(
    state: SourceState, directories: Mapping[int, str], failed: Collection[int], now: Instant
) -> dict[int, str]:
    """The entries of `directories` to compare with what was found.

    These versions are aspired and have not failed, so they load or serve. Their files were missing
    or have not been compared for RECHECK_NS.
    """
    aspired = {item.version for item in state.aspired or ()}
    none_missing = replace(state, missing=frozenset())
    live = aspired - set(failed) - not_yet_found(none_missing, directories).keys()
    return {
        version: directory
        for version, directory in directories.items()
        if version in live and (version in state.missing or _is_look_due(state, version, now))
    }


def _is_look_due(state: SourceState, version: int, now: Instant) -> bool:
    return now.now_ns - _looked_at_ns(state, version) >= RECHECK_NS


def _looked_at_ns(state: SourceState, version: int) -> int:
    looked_at_ns = state.looked_at_ns.get(version)
    return state.found[version].found_at_ns if looked_at_ns is None else looked_at_ns


def with_comparison(
    state: SourceState, seen: Mapping[int, Fingerprint], now: Instant
) -> SourceState:
    """Compares the files of live versions, as they were `seen`, with what was found.

    A missing version that is back with the files that were loaded is no longer missing. A change of
    a file's owner or mode counts as a change of its content, because both may change only the ctime. That
    of a file with several hard links does not.
    """
    as_loaded = {
        version: fingerprint
        for version, fingerprint in seen.items()
        if version in state.fingerprints
        and fingerprint.has_the_files_of(state.fingerprints[version])
    }
    others = seen.keys() - as_loaded.keys() - state.missing
    return replace(
        state,
        fingerprints={**state.fingerprints, **as_loaded},
        looked_at_ns={**state.looked_at_ns, **dict.fromkeys(seen, now.now_ns)},
        overwritten=(state.overwritten - as_loaded.keys()) | others,
        missing=state.missing - as_loaded.keys(),
    )


def known_to_serve(state: SourceState, available: Collection[int]) -> SourceState:
    """Removes the mark `broken` from the versions that are `available`.

    The files of a version may be repaired between its check and its load.
    """
    return replace(state, broken=state.broken - frozenset(available))


def without_lost_files(state: SourceState, lost: Mapping[int, int]) -> SourceState:
    """Forgets the fingerprints of the versions whose load failed because their directory was gone.

    So they are found anew once it is back, with the same files too. `lost` has the `found_at_ns` of what their
    loads were to read. A version that was found after that has files that no load has missed.
    """
    gone = {
        version
        for version, found_at_ns in lost.items()
        if version in state.found and state.found[version].found_at_ns == found_at_ns
    }
    if not gone:
        return state
    kept = {version: seen for version, seen in state.fingerprints.items() if version not in gone}
    return replace(state, fingerprints=kept)


def found_fingerprint(state: SourceState, version: int, directory: str) -> Fingerprint | None:
    """The fingerprint that the version had when it was found in `directory`.

    Returns None if it was not found there.
    """
    is_found = not not_yet_found(state, {version: directory})
    return state.fingerprints.get(version) if is_found else None


def is_as_found(state: SourceState, version: int, directory: str, fingerprint: Fingerprint) -> bool:
    """True if the version is found and its files have not changed since."""
    found = found_fingerprint(state, version, directory)
    return found is not None and found.is_as(fingerprint)


def decide(
    state: SourceState,
    directories: Mapping[int, str],
    candidates: Mapping[int, Candidate],
    inputs: SelectionInputs,
    now: Instant,
) -> SourceState:
    """Decides the state after a poll that could read the base path.

    `directories` has the path of each version on disk. `candidates` are the versions on disk that are not
    found yet, or that have changed after a failed load. Versions that could not be read are left out of it.

    A version that is gone from the disk is omitted, which unloads it. If no version would be left, the
    aspired versions stay in three cases:

    - No found version is left on disk, and `inputs.keeps_last` is True: an emptied disk must not stop
      a server.
    - All versions on disk are still settling or incomplete, whatever `keeps_last` is.
    - Versions are found, but the selection takes none of them.
    """
    candidates = {
        version: item
        for version, item in candidates.items()
        if not is_as_found(state, version, item.directory, item.fingerprint)
    }
    complete = {version: item for version, item in candidates.items() if item.is_complete}
    found, missing = _found(state, directories, complete), frozenset[int]()
    keeps_found = bool(state.found) and not found and (inputs.keeps_last or bool(directories))
    if keeps_found:
        found, missing = dict(state.found), frozenset(state.found)
    listed = SourceState(
        found=found,
        missing=missing,
        on_disk=frozenset(directories),
        is_of_former_base_path=keeps_found and state.is_of_former_base_path,
        candidates={key: item for key, item in candidates.items() if key not in complete},
        aspired=state.aspired,
    )
    after = _with_marks(listed, state, complete)
    notes = _candidate_notes(candidates, now) | _found_notes(after)
    if not directories and not state.found:
        notes.add(Note.of("no_version_in_base_path", "info"))
    return select_again(replace(after, notes=frozenset(notes)), inputs, is_just_listed=True)


def _with_marks(
    after: SourceState, before: SourceState, complete: Mapping[int, Candidate]
) -> SourceState:
    """Adds what is known of each found version: from its candidate if it is found just now, otherwise from
    `before`.
    """
    fresh_fingerprints = {version: item.fingerprint for version, item in complete.items()}
    fingerprints = {**before.fingerprints, **fresh_fingerprints}
    broken = {version for version, item in complete.items() if item.is_broken}
    missing_assets = {version: item.missing_assets for version, item in complete.items()}
    # Newly found versions have no comparison yet, so they carry no `overwritten` mark.
    known = after.found.keys() - complete.keys()
    return replace(
        after,
        fingerprints={key: seen for key, seen in fingerprints.items() if key in after.found},
        looked_at_ns={key: at for key, at in before.looked_at_ns.items() if key in known},
        overwritten=before.overwritten & known,
        broken=(before.broken & known) | broken,
        missing_assets={
            **{key: paths for key, paths in before.missing_assets.items() if key in known},
            **{key: paths for key, paths in missing_assets.items() if paths},
        },
    )


def select_again(
    state: SourceState, inputs: SelectionInputs, *, is_just_listed: bool = False
) -> SourceState:
    """Selects the aspired versions anew, from the found versions and `inputs`.

    Selected versions that are missing are reported only if the base path was just listed, because they may
    have come since an earlier listing. The list becomes empty only if the selection is empty, if a fleet
    has withdrawn its grant, or if no version is found and `keeps_last` is False. Otherwise an empty result
    leaves the aspired versions as they are.
    """
    known, applied = _selectable(state, inputs)
    selected = applied.select(known)
    # Selects twice, with and without the broken versions. Otherwise a broken version could take the
    # place of a sound one, and unload it.
    sound = applied.select(known.keys() - state.broken)
    versions = sorted({*selected.versions, *sound.versions})
    notes = {note for note in state.notes if note.event not in _SELECTION_EVENTS}
    absent = _absent_versions(state, selected, is_just_listed=is_just_listed)
    if absent:
        notes.add(Note.of(_NOT_FOUND, versions=absent))
    aspired: tuple[AspiredVersion, ...] | None
    aspired = tuple(known[version] for version in versions)
    if not aspired and not _may_be_empty(state, inputs):
        aspired = state.aspired
        if inputs.blocked.intersection(item.version for item in aspired or ()):
            notes.add(Note.of("last_version_blocked", remedy="drop another version"))
        elif aspired is None and inputs.blocked & state.found.keys():
            notes.add(only_blocked_note(inputs.blocked & state.found.keys()))
        elif aspired is None and state.found and not inputs.selectable(state.found):
            notes.add(grant_awaited_note(tuple(sorted(state.found))))
    gone = state.missing | ({item.version for item in aspired or ()} - state.found.keys())
    if gone:
        notes.add(Note.of("last_version_gone_from_disk", kept=tuple(sorted(gone))))
    return replace(state, aspired=aspired, notes=frozenset(notes))


def selectable_versions(state: SourceState, inputs: SelectionInputs) -> frozenset[int]:
    """The versions that would be aspired, each if it were the only one that may be.

    Blocks and grants do not count.
    """
    known, applied = _selectable(state, inputs)
    return frozenset(version for version in known if applied.selection.select([version]).versions)


def _selectable(
    state: SourceState, inputs: SelectionInputs
) -> tuple[Mapping[int, AspiredVersion], SelectionInputs]:
    """The versions to select among, and the inputs to select by.

    Of a former base path only what is aspired already may stay. The selection in force was configured
    together with the new base path, or after it. Applied to the former one, it would load versions that
    no configuration asks for, and they would serve under the numbers of the new base path's versions.
    """
    if not state.is_of_former_base_path:
        return state.found, inputs
    aspired = {item.version: item for item in state.aspired or ()}
    return aspired, inputs if inputs.selection == NOTHING else replace(inputs, selection=All())


def _absent_versions(
    state: SourceState, selected: Selected, *, is_just_listed: bool
) -> tuple[int, ...]:
    """The selected versions that have no directory, ascending.

    A directory that settles, is incomplete, cannot be read or was not granted is not absent. Other notes
    say why it is not loaded.
    """
    reported = {
        version
        for note in state.notes
        if note.event == _NOT_FOUND
        for _, versions in note.values
        if isinstance(versions, tuple)
        for version in versions
    }
    on_disk = state.on_disk or frozenset()
    return tuple(
        version
        for version in selected.missing
        if version not in on_disk and (is_just_listed or version in reported)
    )


_NOT_FOUND = "specific_version_not_found"

_SELECTION_EVENTS = (
    _NOT_FOUND,
    "last_version_gone_from_disk",
    "last_version_blocked",
    "only_blocked_versions_found",
    "grant_awaited",
)


def _may_be_empty(state: SourceState, inputs: SelectionInputs) -> bool:
    if state.aspired is None:
        return False
    selects_nothing = inputs.selection == NOTHING or inputs.granted == frozenset()
    return selects_nothing or (not state.found and not inputs.keeps_last)


def is_at_rest(state: SourceState, inputs: SelectionInputs, failed: Collection[int]) -> bool:
    """True if only a change of the base path itself can change the state, until files are compared.

    All versions on disk are found, none has failed, and no note or label waits for something.
    """
    is_settled = state.on_disk is not None and not state.candidates and not state.broken
    if not is_settled or state.missing or state.notes or inputs.labels:
        return False
    observed = {item.version for item in state.aspired or ()} | inputs.blocked
    return observed.isdisjoint(failed)


def next_comparison_seconds(state: SourceState, source_count: int, now: Instant) -> float:
    """The seconds until the files of a version that may serve are compared, if nothing wakes the source.

    Each comparison reads a whole directory, so that many sources take turns: COMPARISONS_PER_SECOND.
    """
    interval_ns = max(RECHECK_NS, source_count * NS_PER_SECOND // COMPARISONS_PER_SECOND)
    # A version that is kept as the last one may be gone from the disk.
    instants = [
        _looked_at_ns(state, item.version)
        for item in state.aspired or ()
        if item.version in state.found
    ]
    since_ns = min(instants, default=now.now_ns)
    return max(0, since_ns + interval_ns - now.now_ns) / NS_PER_SECOND


def granted_anew(
    state: SourceState, versions: Collection[int], unserved: Collection[int], now_ns: int
) -> SourceState:
    """Finds granted `versions` anew that are `unserved`: that have failed, or are blocked.

    A fleet's coordinator grants such a version only if its operator wants it to be tried again.
    """
    again = {version for version in versions if version in unserved and version in state.found}
    found = {
        version: replace(item, found_at_ns=now_ns) if version in again else item
        for version, item in state.found.items()
    }
    return replace(state, found=found) if again else state


def label_notes(
    state: SourceState, inputs: SelectionInputs, in_effect: Mapping[str, int]
) -> frozenset[Note]:
    """The notes on `inputs.labels` after a poll.

    `in_effect` are the labels as requests see them.
    """
    known = KnownVersions(
        found=state.found,
        selected=[item.version for item in state.aspired or ()],
        unfinished=state.candidates,
        blocked=inputs.blocked,
        in_effect=in_effect,
    )
    return frozenset(
        Note.of(
            "label_of_absent_version",
            label=target.label,
            version=target.version,
            reason=target.reason,
            remedy=target.remedy,
        )
        for target in absent_targets(inputs.labels, known)
    )


def after_unreadable(state: SourceState, reason: str) -> SourceState:
    """Adds a note after a poll that could not read the base path. Nothing else changes."""
    notes = {note for note in state.notes if note.event != "base_path_unreadable"}
    return replace(state, notes=frozenset({*notes, Note.of("base_path_unreadable", reason=reason)}))


def _found(
    state: SourceState, directories: Mapping[int, str], complete: Mapping[int, Candidate]
) -> dict[int, AspiredVersion]:
    fresh = not_yet_found(state, directories)
    found = {version: state.found[version] for version in directories if version not in fresh}
    for version, candidate in complete.items():
        if candidate.checked_at_ns is not None:
            found[version] = AspiredVersion(
                version=version,
                directory=candidate.directory,
                found_at_ns=candidate.checked_at_ns,
                detected_at_ns=candidate.detected_at_ns,
                fingerprint=candidate.fingerprint,
            )
    return found


def _found_notes(state: SourceState) -> set[Note]:
    notes = {asset_missing_note(key, paths) for key, paths in state.missing_assets.items()}
    notes |= {overwritten_note(version) for version in state.overwritten}
    return notes


def _candidate_notes(candidates: Mapping[int, Candidate], now: Instant) -> set[Note]:
    notes = set()
    for version, candidate in candidates.items():
        if settles_in_ns(candidate, now) > 0:
            notes.add(Note.of("version_settling", "info", version=version))
        elif candidate.reason:
            notes.add(Note.of("version_incomplete", version=version, reason=candidate.reason))
        elif candidate.waits_for_assets:
            reason = (
                f"{some_of(candidate.missing_assets)} is missing, which the graph names as an asset; "
                f"after {candidate.asset_wait_ns / NS_PER_SECOND:g} s without a change the version is "
                "loaded without it (--missing_asset_wait_seconds)"
            )
            notes.add(Note.of("version_incomplete", version=version, reason=reason))
    return notes


def next_poll_seconds(state: SourceState, period_seconds: float, now: Instant) -> float | None:
    """The seconds until the next poll, or None if no further poll is needed.

    If a version settles or waits for assets, the next poll is due when that may be over, whatever
    `period_seconds` is. Otherwise it is due after `period_seconds`; if that is not positive, no further
    poll follows.
    """
    candidates = state.candidates.values()
    settling = [settles_in_ns(candidate, now) for candidate in candidates]
    settling += [asset_wait_ends_in_ns(candidate, now) for candidate in candidates]
    unsettled = [remaining_ns / NS_PER_SECOND for remaining_ns in settling if remaining_ns > 0]
    if period_seconds > 0:
        return min([period_seconds, *unsettled])
    return min(unsettled, default=None)
