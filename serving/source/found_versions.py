"""Found versions: which directories below a base path are versions. Pure functions on values.

A poll looks at the disk (`source.py`) and hands what it saw, with what was known before, to
`decide`, which says what is known now: what is found, what is aspired, and what to tell people.

A version is *found* when its directory has settled and is complete, and stays found while the
directory exists, or comes back as it was. One whose load failed for good is *found anew*, and
thereby loaded again, once its files have changed, settled and are complete: so it can be mended in
place. One that serves stays what was loaded, whatever becomes of its files; people are told.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from serving.base.clock import NS_PER_SECOND
from serving.core.label_targets import KnownVersions, absent_targets
from serving.core.servable import AspiredVersion
from serving.core.version_selection import (
    Latest,
    Specific,
    VersionSelection,
    select_unblocked,
)
from serving.source.notes import (
    Note,
    asset_missing_note,
    only_blocked_note,
    overwritten_note,
    some_of,
)
from serving.source.settling import (
    RECHECK_NS,
    Candidate,
    Fingerprint,
    Instant,
    asset_wait_ends_in_ns,
    settles_in_ns,
)


@dataclass(frozen=True, kw_only=True)
class SelectionInputs:
    """What people want of the versions found.

    `blocked` were rolled back and are not to be loaded again. `keeps_last`: a base path that is
    emptied leaves what is aspired as it is (--servable_versions_always_present). `labels` aspire
    nothing: people are told of those that wait for what nothing aspires.
    """

    selection: VersionSelection = Latest(1)
    labels: Mapping[str, int] = field(default_factory=dict)
    blocked: frozenset[int] = frozenset()
    keeps_last: bool = True


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """What a source knows between two polls.

    `fingerprints`: of each found version, as it was when it was found. `missing`: found, kept, but
    gone from the disk. `looked_at_ns`: when the files of a version that may serve were last
    compared with what was found; `overwritten`: those that differed. `on_disk`: those that have a
    directory, None until it is known.
    """

    found: Mapping[int, AspiredVersion] = field(default_factory=dict)
    fingerprints: Mapping[int, Fingerprint] = field(default_factory=dict)
    looked_at_ns: Mapping[int, int] = field(default_factory=dict)
    overwritten: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()
    # Found with a file that does not parse: aspired so that it ends with its error, and takes no place.
    broken: frozenset[int] = frozenset()
    # Of found versions that lack assets.
    missing_assets: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    on_disk: frozenset[int] | None = None
    candidates: Mapping[int, Candidate] = field(default_factory=dict)
    # None until the first version is aspired: nothing can be omitted before.
    aspired: tuple[AspiredVersion, ...] | None = None
    notes: frozenset[Note] = frozenset()


def unfound(memory: SourceState, directories: Mapping[int, str]) -> dict[int, str]:
    """Those of `directories` (by version) that are not found yet, or gone and now back."""
    return {
        version: directory
        for version, directory in directories.items()
        if version in memory.missing
        or version not in memory.found
        or memory.found[version].directory != directory
    }


def to_observe(
    memory: SourceState,
    directories: Mapping[int, str],
    failed: Collection[int],
    blocked: frozenset[int] = frozenset(),
) -> dict[int, str]:
    """Those of `directories` that may be loaded once they are seen to be complete: not found, or
    `failed` and aspired, or `failed` and `blocked` for that. Their files are to be looked at.
    """
    aspired = {item.version for item in memory.aspired or ()}
    wanted = unfound(memory, directories).keys() | ((aspired | blocked) & set(failed))
    return {version: directories[version] for version in directories if version in wanted}


def to_compare(
    memory: SourceState, directories: Mapping[int, str], failed: Collection[int], now: Instant
) -> dict[int, str]:
    """Those of `directories` that are aspired and did not fail, so that they load or serve, and
    whose files were not looked at for RECHECK_NS or were missing.
    """
    aspired = {item.version for item in memory.aspired or ()}
    none_missing = replace(memory, missing=frozenset())
    live = aspired - set(failed) - unfound(none_missing, directories).keys()
    return {
        version: directory
        for version, directory in directories.items()
        if version in live and (version in memory.missing or _is_look_due(memory, version, now))
    }


def _is_look_due(memory: SourceState, version: int, now: Instant) -> bool:
    return now.now_ns - _looked_at_ns(memory, version) >= RECHECK_NS


def _looked_at_ns(memory: SourceState, version: int) -> int:
    return memory.looked_at_ns.get(version, memory.found[version].found_at_ns)


def compared(memory: SourceState, seen: Mapping[int, Fingerprint], now: Instant) -> SourceState:
    """What is known once the files of live versions were `seen`.

    A version that was missing and is back with the files that were loaded was only away. A change of
    owner or mode of a file counts as one of content: both change the ctime only.
    """
    as_loaded = {
        version: fingerprint
        for version, fingerprint in seen.items()
        if version in memory.fingerprints
        and fingerprint.has_the_files_of(memory.fingerprints[version])
    }
    others = seen.keys() - as_loaded.keys() - memory.missing
    return replace(
        memory,
        fingerprints={**memory.fingerprints, **as_loaded},
        looked_at_ns={**memory.looked_at_ns, **dict.fromkeys(seen, now.now_ns)},
        overwritten=(memory.overwritten - as_loaded.keys()) | others,
        missing=memory.missing - as_loaded.keys(),
    )


def is_as_found(
    memory: SourceState, version: int, directory: str, fingerprint: Fingerprint
) -> bool:
    """Whether the version is found and holds what it held then: nothing in it was mended."""
    is_found = not unfound(memory, {version: directory})
    return is_found and memory.fingerprints.get(version) == fingerprint


def decide(
    memory: SourceState,
    directories: Mapping[int, str],
    candidates: Mapping[int, Candidate],
    wanted: SelectionInputs,
    now: Instant,
) -> SourceState:
    """What is known after a poll that could read the base path.

    `directories`: the path of each version on disk; `candidates`: those that are not found, or have
    changed after a failed load, as far as they could be read, observed and checked. A version that
    is gone is omitted, which unloads it. But where that would leave nothing, because the base path
    came back empty or the versions that the selection names are not there, everything stays as it
    was: an emptied disk must not stop a server that serves (unless `wanted` says that it may). Nor
    do versions whose only successors settle or are incomplete, in the same base path or in another
    one, whatever `wanted` says.
    """
    candidates = {
        version: item
        for version, item in candidates.items()
        if not is_as_found(memory, version, item.directory, item.fingerprint)
    }
    complete = {version: item for version, item in candidates.items() if item.is_complete}
    found = _found(memory, directories, complete)
    fresh_fingerprints = {version: item.fingerprint for version, item in complete.items()}
    fingerprints = {**memory.fingerprints, **fresh_fingerprints}
    notes = _candidate_notes(candidates, now)
    missing: frozenset[int] = frozenset()
    if memory.found and not found and (wanted.keeps_last or directories):
        found, missing = dict(memory.found), frozenset(memory.found)
        notes.add(Note.of("last_version_gone_from_disk", kept=tuple(sorted(found))))
    if not directories and not memory.found:
        notes.add(Note.of("no_version_in_base_path", "info"))
    # What is found anew is not what was compared.
    known = found.keys() - complete.keys()
    overwritten = memory.overwritten & known
    missing_assets = {key: paths for key, paths in memory.missing_assets.items() if key in known}
    missing_assets |= {
        version: item.missing_assets for version, item in complete.items() if item.missing_assets
    }
    notes |= {asset_missing_note(version, paths) for version, paths in missing_assets.items()}
    return select_again(
        SourceState(
            found=found,
            fingerprints={key: seen for key, seen in fingerprints.items() if key in found},
            looked_at_ns={key: at for key, at in memory.looked_at_ns.items() if key in known},
            overwritten=overwritten,
            missing=missing,
            broken=(memory.broken & known)
            | {version for version, item in complete.items() if item.is_broken},
            missing_assets=missing_assets,
            on_disk=frozenset(directories),
            candidates={key: item for key, item in candidates.items() if key not in complete},
            aspired=memory.aspired,
            notes=frozenset(notes | {overwritten_note(version) for version in overwritten}),
        ),
        wanted,
    )


def select_again(memory: SourceState, wanted: SelectionInputs) -> SourceState:
    """What is known once what is found or `wanted` has changed: `aspired` follows from it.

    A list becomes empty where nothing is wanted; not because what is wanted is not there.
    """
    selected = select_unblocked(wanted.selection, memory.found, wanted.blocked)
    # A broken version takes no place: what would be selected without it serves beside it.
    sound = select_unblocked(wanted.selection, memory.found.keys() - memory.broken, wanted.blocked)
    versions = sorted({*selected.versions, *sound.versions})
    notes = {note for note in memory.notes if note.event not in _SELECTION_EVENTS}
    if selected.missing:
        notes.add(Note.of("specific_version_not_found", versions=selected.missing))
    aspired: tuple[AspiredVersion, ...] | None
    aspired = tuple(memory.found[version] for version in versions)
    if not aspired and not _may_be_empty(memory, wanted):
        aspired = memory.aspired
        if wanted.blocked.intersection(item.version for item in aspired or ()):
            notes.add(Note.of("last_version_blocked", remedy="drop another version"))
        elif aspired is None and wanted.blocked & memory.found.keys():
            notes.add(only_blocked_note(wanted.blocked & memory.found.keys()))
    return replace(memory, aspired=aspired, notes=frozenset(notes))


_SELECTION_EVENTS = (
    "specific_version_not_found",
    "last_version_blocked",
    "only_blocked_versions_found",
)


def _may_be_empty(memory: SourceState, wanted: SelectionInputs) -> bool:
    if memory.aspired is None:
        return False
    is_all_unwanted = wanted.selection == Specific(frozenset())
    return is_all_unwanted or (not memory.found and not wanted.keeps_last)


def label_notes(
    memory: SourceState, wanted: SelectionInputs, in_effect: Mapping[str, int]
) -> frozenset[Note]:
    """What to tell of the labels in `wanted` after a poll; `in_effect` are those requests see."""
    known = KnownVersions(
        found=memory.found,
        selected=[item.version for item in memory.aspired or ()],
        unfinished=memory.candidates,
        blocked=wanted.blocked,
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
        for target in absent_targets(wanted.labels, known)
    )


def unreadable(memory: SourceState, reason: str) -> SourceState:
    """What is known after a poll that could not read the base path: as much as before."""
    notes = {note for note in memory.notes if note.event != "base_path_unreadable"}
    return replace(
        memory, notes=frozenset({*notes, Note.of("base_path_unreadable", reason=reason)})
    )


def _found(
    memory: SourceState, directories: Mapping[int, str], complete: Mapping[int, Candidate]
) -> dict[int, AspiredVersion]:
    fresh = unfound(memory, directories)
    found = {version: memory.found[version] for version in directories if version not in fresh}
    for version, candidate in complete.items():
        if candidate.checked_at_ns is not None:
            found[version] = AspiredVersion(
                version=version,
                directory=candidate.directory,
                found_at_ns=candidate.checked_at_ns,
                detected_at_ns=candidate.detected_at_ns,
            )
    return found


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


def next_poll_seconds(memory: SourceState, period_seconds: float, now: Instant) -> float | None:
    """Seconds until the next poll; None where there is none.

    `period_seconds` 0 polls once. While a version settles the next poll comes as soon as it may
    have, however long the period is, and then even where polling is once. So it does for one that
    waits for assets.
    """
    candidates = memory.candidates.values()
    settling = [settles_in_ns(candidate, now) for candidate in candidates]
    settling += [asset_wait_ends_in_ns(candidate, now) for candidate in candidates]
    unsettled = [remaining_ns / NS_PER_SECOND for remaining_ns in settling if remaining_ns > 0]
    if period_seconds > 0:
        return min([period_seconds, *unsettled])
    return min(unsettled, default=None)
