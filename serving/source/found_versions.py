"""Found versions: which directories below a base path are versions. Pure functions on values.

A poll looks at the disk (`source.py`) and hands what it saw, with what was known before, to
`decide`, which says what is known now: what is found, what is aspired, and what to tell people.

A version is *found* when its directory has settled and is complete, and stays found while the
directory exists, or comes back as it was. One whose load failed for good is *found anew*, and
thereby loaded again, once its files have changed, settled and are complete: so it can be mended in
place. One that serves stays what was loaded, whatever becomes of its files; people are told.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import MappingProxyType

from serving.base.clock import NS_PER_SECOND
from serving.core.label_targets import KnownVersions, absent_targets
from serving.core.servable import AspiredVersion
from serving.core.version_selection import (
    Latest,
    Specific,
    VersionSelection,
    select_unbarred,
)

SETTLE_NS = NS_PER_SECOND
"""A directory that has not changed for this long has settled.

Long enough for the pause between two files of a copy; a copy that stalls for longer is caught by
the completeness check. Short, because every version that is copied and not renamed waits it out.
"""

RECHECK_NS = 10 * NS_PER_SECOND
"""An incomplete version that does not change is checked again after this long, and the files of one
that serves are looked at again.

What failed may not have been the files (a network disk), but parsing a graph costs CPU that
requests would use, and a look walks a whole directory.
"""

MISSING_ASSET_WAIT_NS = 30 * NS_PER_SECOND
"""A version that lacks an asset is found once it has not changed for this long, by default.

TensorFlow loads a graph that reads none of the missing assets. A copy may bring them last.
"""

VERSION_MAX = 2**63 - 1
"""Versions are int64 on the wire."""

_VERSION_NAME = re.compile(r"[0-9]+", re.ASCII)
_SAVED_MODEL_NAMES = frozenset({"saved_model.pb", "saved_model.pbtxt"})


@dataclass(frozen=True)
class Instant:
    """Now, on both clocks: `now_ns` for durations, `wall_ns` to compare with file times."""

    now_ns: int
    wall_ns: int


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What people want of the versions found.

    `barred` were rolled back and are not to be loaded again. `keeps_last`: a base path that is
    emptied leaves what is aspired as it is (--servable_versions_always_present). `labels` aspire
    nothing: people are told of those that wait for what nothing aspires.
    """

    selection: VersionSelection = Latest(1)
    labels: Mapping[str, int] = field(default_factory=dict)
    barred: frozenset[int] = frozenset()
    keeps_last: bool = True


@dataclass(frozen=True)
class Child:
    """One entry of a base path."""

    name: str
    is_directory: bool


@dataclass(frozen=True)
class Listing:
    """What a base path held; `error` says why it could not be read."""

    children: tuple[Child, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Fingerprint:
    """Relative path, size in bytes, mtime_ns and ctime_ns of everything below a directory, and of
    itself, whose path is "".

    ctime, because a copy that keeps the times (`cp -p`, `rsync -a`) can put other bytes under the
    same size and mtime.
    """

    entries: tuple[tuple[str, int, int, int], ...]

    def has_the_files_of(self, other: "Fingerprint") -> bool:
        """Whether they differ at most in the ctime of the directory itself, as after it was moved
        away and back.
        """
        return _without_own_ctime(self) == _without_own_ctime(other)

    @property
    def mtime_ns_newest(self) -> int:
        """The latest change of a file or directory, on the clock of the file system."""
        return max((mtime_ns for _, _, mtime_ns, _ in self.entries), default=0)


def _without_own_ctime(fingerprint: Fingerprint) -> list[tuple[str, int, int, int]]:
    return [entry if entry[0] else (*entry[:3], 0) for entry in fingerprint.entries]


@dataclass(frozen=True)
class Note:
    """Something to tell people, once: it is logged where the poll before did not say the same."""

    event: str
    level: str = "warning"
    values: tuple[tuple[str, object], ...] = ()

    @classmethod
    def of(cls, event: str, level: str = "warning", /, **values: object) -> "Note":
        """A note with `values` as the log line's key-values."""
        return cls(event, level, tuple(values.items()))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A version directory that is not found yet, or changes after a failed load: it settles, or it
    is incomplete.

    `unchanged_since_ns` and `detected_at_ns`, when its directory was first seen, are monotonic;
    `reason` says what the last check missed. `missing_assets` are paths below the directory; their
    absence alone makes it incomplete until the directory is unchanged for `asset_wait_ns`.
    """

    directory: str
    fingerprint: Fingerprint
    unchanged_since_ns: int
    detected_at_ns: int = 0
    checked_at_ns: int | None = None
    reason: str = ""
    is_broken: bool = False
    missing_assets: tuple[str, ...] = ()
    asset_wait_ns: int = 0
    # At the last check the missing assets could still come.
    waits_for_assets: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the last check found nothing missing that may still come: the version is found."""
        return self.checked_at_ns is not None and not self.reason and not self.waits_for_assets


@dataclass(frozen=True, kw_only=True)
class Memory:
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


OTHER_NAME_COUNT_MAX = 3
"""Of directories that are no versions, and of missing assets: as many are named."""


def version_directories(
    listing: Listing, known: Mapping[int, str] = MappingProxyType({}), base_path: str = ""
) -> tuple[dict[int, str], frozenset[Note]]:
    """The directory name of each version in `listing`, and what is odd about `base_path` and the
    numeric names in it.

    A version is a directory whose name is a decimal int64. Where several spell the same number
    ("1", "001") the one in `known` stays while it is there, else the shortest is taken. Names that
    are no number are nobody's business: renaming is how a version is withdrawn.
    """
    spellings: dict[int, list[str]] = {}
    notes = set()
    for child in listing.children:
        if not _VERSION_NAME.fullmatch(child.name):
            continue
        if not child.is_directory:
            notes.add(Note.of("numeric_file_ignored", name=child.name, remedy="use a directory"))
        elif int(child.name) > VERSION_MAX:
            notes.add(Note.of("version_above_int64_ignored", name=child.name))
        else:
            spellings.setdefault(int(child.name), []).append(child.name)
    chosen = {}
    for version, names in spellings.items():
        name = known[version] if known.get(version) in names else min(names, key=len)
        chosen[version] = name
        for other in set(names) - {name}:
            notes.add(Note.of("duplicate_version_ignored", name=other, used=name))
    if not chosen and any(child.name in _SAVED_MODEL_NAMES for child in listing.children):
        notes.add(_base_path_is_version_note(base_path))
    elif not chosen and not notes:
        notes.update(_no_version_names_note(listing, base_path))
    return chosen, frozenset(notes)


def _no_version_names_note(listing: Listing, base_path: str) -> Iterator[Note]:
    """Somebody meant a version by "v1", or gave the directory above the model's."""
    # A copy that is under way is called .8 or so.
    names = [item.name for item in listing.children if item.is_directory and item.name[:1] != "."]
    if names:
        yield Note.of(
            "no_directory_is_named_by_a_number",
            "info",
            directories=", ".join(names[:OTHER_NAME_COUNT_MAX]),
            remedy=f"name a version's directory by its number, like {PurePath(base_path) / '1'}, "
            "or give the directory that holds such as the base path",
        )


def _base_path_is_version_note(base_path: str) -> Note:
    path = PurePath(base_path)
    if _VERSION_NAME.fullmatch(path.name):
        remedy = f"give {path.parent} as the base path: it holds version {path.name}"
    else:
        remedy = f"move its files into a version's directory, like {path / '1'}"
    return Note.of("base_path_is_a_version", remedy=remedy)


def unfound(memory: Memory, directories: Mapping[int, str]) -> dict[int, str]:
    """Those of `directories` (by version) that are not found yet, or gone and now back."""
    return {
        version: directory
        for version, directory in directories.items()
        if version in memory.missing
        or version not in memory.found
        or memory.found[version].directory != directory
    }


def to_observe(
    memory: Memory,
    directories: Mapping[int, str],
    failed: Collection[int],
    barred: frozenset[int] = frozenset(),
) -> dict[int, str]:
    """Those of `directories` that may be loaded once they are seen to be complete: not found, or
    `failed` and aspired, or `failed` and `barred` for that. Their files are to be looked at.
    """
    aspired = {item.version for item in memory.aspired or ()}
    wanted = unfound(memory, directories).keys() | ((aspired | barred) & set(failed))
    return {version: directories[version] for version in directories if version in wanted}


def to_compare(
    memory: Memory, directories: Mapping[int, str], failed: Collection[int], now: Instant
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


def _is_look_due(memory: Memory, version: int, now: Instant) -> bool:
    return now.now_ns - _looked_at_ns(memory, version) >= RECHECK_NS


def _looked_at_ns(memory: Memory, version: int) -> int:
    return memory.looked_at_ns.get(version, memory.found[version].found_at_ns)


def compared(memory: Memory, seen: Mapping[int, Fingerprint], now: Instant) -> Memory:
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


def is_as_found(memory: Memory, version: int, directory: str, fingerprint: Fingerprint) -> bool:
    """Whether the version is found and holds what it held then: nothing in it was mended."""
    is_found = not unfound(memory, {version: directory})
    return is_found and memory.fingerprints.get(version) == fingerprint


def observe(
    previous: Candidate | None, directory: str, fingerprint: Fingerprint, now: Instant
) -> Candidate:
    """The candidate after one more look: as it was where nothing changed, else starting over."""
    if previous and (previous.directory, previous.fingerprint) == (directory, fingerprint):
        return previous
    is_same = previous is not None and previous.directory == directory
    return Candidate(
        directory=directory,
        fingerprint=fingerprint,
        unchanged_since_ns=now.now_ns,
        detected_at_ns=previous.detected_at_ns if previous and is_same else now.now_ns,
    )


def settles_in_ns(candidate: Candidate, now: Instant) -> int:
    """Nanoseconds until the candidate has settled, if nothing changes; 0 where it has.

    Settled by age, so that a server that starts on old files does not wait: the newest mtime is
    SETTLE_NS ago, and not in the future. Or by having been watched for as long: file systems'
    clocks may be wrong.
    """
    return max(0, SETTLE_NS - _still_ns(candidate, now))


def _still_ns(candidate: Candidate, now: Instant) -> int:
    watched_ns = now.now_ns - candidate.unchanged_since_ns
    age_ns = now.wall_ns - candidate.fingerprint.mtime_ns_newest
    return max(watched_ns, age_ns)


def asset_wait_ends_in_ns(candidate: Candidate, now: Instant) -> int:
    """Returns the nanoseconds until a candidate that waits for assets is found without them, if
    nothing changes. Returns 0 if the time is over, or if it waits for none.
    """
    if not candidate.waits_for_assets:
        return 0
    return max(0, candidate.asset_wait_ns - _still_ns(candidate, now))


def needs_check(candidate: Candidate, now: Instant) -> bool:
    """Whether to check completeness now: settled, and not checked or not lately; or checked when
    assets could still come, and that time is over.
    """
    if settles_in_ns(candidate, now) > 0:
        return False
    if candidate.checked_at_ns is None or now.now_ns - candidate.checked_at_ns >= RECHECK_NS:
        return True
    return candidate.waits_for_assets and asset_wait_ends_in_ns(candidate, now) == 0


def checked(
    candidate: Candidate,
    reason: str,
    now: Instant,
    *,
    is_broken: bool = False,
    missing_assets: tuple[str, ...] = (),
    asset_wait_ns: int = MISSING_ASSET_WAIT_NS,
) -> Candidate:
    """The candidate after a check; `reason` is "" where it is complete.

    One that `is_broken` is found too: its load ends with the error, for status and page to show.
    One that lacks assets is complete if nothing in it has changed for `asset_wait_ns`.
    """
    return replace(
        candidate,
        checked_at_ns=now.now_ns,
        reason=reason,
        is_broken=is_broken,
        missing_assets=missing_assets,
        asset_wait_ns=asset_wait_ns,
        waits_for_assets=bool(missing_assets) and _still_ns(candidate, now) < asset_wait_ns,
    )


def decide(
    memory: Memory,
    directories: Mapping[int, str],
    candidates: Mapping[int, Candidate],
    wanted: Wanted,
    now: Instant,
) -> Memory:
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
    notes |= {_asset_missing_note(version, paths) for version, paths in missing_assets.items()}
    return select_again(
        Memory(
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
            notes=frozenset(notes | {_overwritten_note(version) for version in overwritten}),
        ),
        wanted,
    )


def select_again(memory: Memory, wanted: Wanted) -> Memory:
    """What is known once what is found or `wanted` has changed: `aspired` follows from it.

    A list becomes empty where nothing is wanted; not because what is wanted is not there.
    """
    selected = select_unbarred(wanted.selection, memory.found, wanted.barred)
    # A broken version takes no place: what would be selected without it serves beside it.
    sound = select_unbarred(wanted.selection, memory.found.keys() - memory.broken, wanted.barred)
    versions = sorted({*selected.versions, *sound.versions})
    notes = {note for note in memory.notes if note.event not in _SELECTION_EVENTS}
    if selected.missing:
        notes.add(Note.of("specific_version_not_found", versions=selected.missing))
    aspired: tuple[AspiredVersion, ...] | None
    aspired = tuple(memory.found[version] for version in versions)
    if not aspired and not _may_be_empty(memory, wanted):
        aspired = memory.aspired
        if wanted.barred.intersection(item.version for item in aspired or ()):
            notes.add(Note.of("last_version_blocked", remedy="drop another version"))
        elif aspired is None and wanted.barred & memory.found.keys():
            notes.add(_only_barred_note(wanted.barred & memory.found.keys()))
    return replace(memory, aspired=aspired, notes=frozenset(notes))


_SELECTION_EVENTS = (
    "specific_version_not_found",
    "last_version_blocked",
    "only_blocked_versions_found",
)


def _only_barred_note(versions: Collection[int]) -> Note:
    """After a restart nothing serves that could go on. Whether one of these has to is the manager's to
    say (`Stream.find_last_resort`).
    """
    return Note.of(
        "only_blocked_versions_found",
        versions=tuple(sorted(versions)),
        remedy="drop another version, or unblock one of these: millpond allow",
    )


def _may_be_empty(memory: Memory, wanted: Wanted) -> bool:
    if memory.aspired is None:
        return False
    is_all_unwanted = wanted.selection == Specific(frozenset())
    return is_all_unwanted or (not memory.found and not wanted.keeps_last)


def label_notes(memory: Memory, wanted: Wanted, in_effect: Mapping[str, int]) -> frozenset[Note]:
    """What to tell of the labels in `wanted` after a poll; `in_effect` are those requests see."""
    known = KnownVersions(
        found=memory.found,
        selected=[item.version for item in memory.aspired or ()],
        unfinished=memory.candidates,
        barred=wanted.barred,
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


def _overwritten_note(version: int) -> Note:
    return Note.of(
        "live_version_overwritten", version=version, remedy="drop other files under a new version"
    )


def _asset_missing_note(version: int, paths: Collection[str]) -> Note:
    return Note.of(
        "asset_missing",
        version=version,
        files=_some_of(paths),
        remedy="drop the whole export under a new version; a graph that reads such a file fails",
    )


def _some_of(paths: Collection[str]) -> str:
    more_count = len(paths) - OTHER_NAME_COUNT_MAX
    more = f" and {more_count} more" if more_count > 0 else ""
    return ", ".join([*paths][:OTHER_NAME_COUNT_MAX]) + more


def unreadable(memory: Memory, reason: str) -> Memory:
    """What is known after a poll that could not read the base path: as much as before."""
    notes = {note for note in memory.notes if note.event != "base_path_unreadable"}
    return replace(
        memory, notes=frozenset({*notes, Note.of("base_path_unreadable", reason=reason)})
    )


def _found(
    memory: Memory, directories: Mapping[int, str], complete: Mapping[int, Candidate]
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
                f"{_some_of(candidate.missing_assets)} is missing, which the graph names as an asset; "
                f"after {candidate.asset_wait_ns / NS_PER_SECOND:g} s without a change the version is "
                "loaded without it (--missing_asset_wait_seconds)"
            )
            notes.add(Note.of("version_incomplete", version=version, reason=reason))
    return notes


def next_poll_seconds(memory: Memory, period_seconds: float, now: Instant) -> float | None:
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
