"""FileSystemSource: polls the base path of one model and aspires some of the versions in it.

Here is what touches the disk; what follows from it is decided in `found_versions.py`.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import DataLoss, from_exception
from serving.core.label_targets import NO_LABELS
from serving.core.servable import AspiredVersion
from serving.core.version_selection import VersionSelection
from serving.source.found_versions import (
    SelectionInputs,
    SourceState,
    compared,
    decide,
    is_as_found,
    label_notes,
    next_poll_seconds,
    select_again,
    to_compare,
    to_observe,
    unreadable,
)
from serving.source.listing import Child, Listing, version_directories
from serving.source.notes import Note
from serving.source.poller_pool import Pollable
from serving.source.settling import (
    MISSING_ASSET_WAIT_NS,
    Candidate,
    Fingerprint,
    Instant,
    checked,
    needs_check,
    observe,
)

SetAspired = Callable[[str, Sequence[AspiredVersion]], None]
FailedVersions = Callable[[str], Collection[int]]
FoundAnew = Callable[[str, int], None]
VersionsSeen = Callable[[str, frozenset[int], frozenset[int]], None]
SetNotes = Callable[[str, frozenset[Note], frozenset[int]], None]
LabelsOf = Callable[[str], Mapping[str, int]]
_log = structlog.get_logger(__name__)


def list_children(base_path: str) -> Listing:
    """The entries of `base_path`, symbolic links followed, in the order of their names."""
    try:
        with os.scandir(base_path) as entries:
            children = [Child(entry.name, entry.is_dir()) for entry in entries]
    except OSError as error:
        return Listing(error=str(error))
    return Listing(tuple(sorted(children, key=lambda child: child.name)))


def fingerprint(directory: str) -> Fingerprint:
    """What `directory` holds now. OSError where something in it cannot be looked at."""
    return Fingerprint(tuple(sorted(_entries(directory, ""))))


def _entries(root: str, relative: str) -> Iterable[tuple[str, int, int, int]]:
    status = Path(root, relative).stat()
    yield relative, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    with os.scandir(Path(root, relative)) as entries:
        for entry in entries:
            path = os.path.join(relative, entry.name)
            # A link to a directory is an entry and no way down: it could lead round in a circle.
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(root, path)
            else:
                yield _entry(entry, path)


def _entry(entry: os.DirEntry[str], path: str) -> tuple[str, int, int, int]:
    try:
        status = entry.stat()
    except FileNotFoundError:
        # A link to nothing, or deleted just now. It may be part of a version that loads all the
        # same; the check decides. Should it come, the fingerprint changes.
        return path, -1, 0, 0
    return path, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _group_of(base_path: str) -> str:
    """What lies in the same directory is likely to lie on the same disk."""
    return os.path.dirname(os.path.normpath(base_path))


def _stuck_note(seconds: float) -> Note:
    return Note.of(
        "source_stuck",
        reason=f"a look at the base path did not end within {seconds:.2g} s",
        consequence="new versions are not found; what serves goes on",
        remedy="see whether its disk answers (ls); it is tried again by itself",
    )


class Pollers(Protocol):
    """`PollerPool`, as a source sees it."""

    def add(self, key: str, group: str, source: Pollable, *, is_due: bool) -> None: ...
    def remove(self, key: str) -> None: ...
    def wake(self, key: str, group: str) -> None: ...
    def wait_until_idle(self, key: str, timeout_seconds: float) -> bool: ...


class FileSystemSource:
    """Polls the base path of one model on the threads of `pollers` and sets its aspired versions.

    One source a model: a base path that hangs, fails or lies cannot hold up another's. A poll that
    hangs is reported by a note, `source_stuck`, and another one tries again. `period_seconds` 0
    polls once, negative never, unless something else is wanted later.
    `check` raises where a directory is no complete version, and returns the assets that are missing.
    Without these a version is found once it has not changed for `missing_asset_wait_seconds`.
    `set_aspired` is called, under the source's lock, only when the list changes, and not after
    `stop`. `failed_versions` says which versions of a model have ended with an error: one of these
    whose files change is aspired again under a new `found_at_ns`. `found_anew` hears of each version
    that is found, or found with other files than before, blocked ones too. `versions_seen` hears,
    after each poll that could look, which versions are on the disk, and for the files of which the
    source watches. `set_notes` gets the notes of a poll and the aspired versions, if they differ
    from the poll before.
    `labels_in_effect` are a model's labels as requests see them: people are told of one that waits
    for a version which does not come. Versions that serve are compared with what was found every
    RECHECK_NS, to tell who overwrites one.

    What is wanted may change at any time, from any thread. What follows for the versions that are
    found follows at once, even while the disk hangs.
    """

    def __init__(
        self,
        name: str,
        base_path: str,
        selection: VersionSelection,
        *,
        set_aspired: SetAspired,
        check: Callable[[str], Sequence[str]],
        failed_versions: FailedVersions,
        found_anew: FoundAnew = lambda name, version: None,
        versions_seen: VersionsSeen = lambda name, on_disk, watched: None,
        set_notes: SetNotes = lambda name, notes, aspired: None,
        period_seconds: float,
        missing_asset_wait_seconds: float = MISSING_ASSET_WAIT_NS / NS_PER_SECOND,
        keeps_last: bool = True,
        labels: Mapping[str, int] = NO_LABELS,
        labels_in_effect: LabelsOf = lambda name: NO_LABELS,
        pollers: Pollers,
        clock: Clock,
    ) -> None:
        self._name = name
        self._base_path = base_path
        self._set_aspired = set_aspired
        self._check = check
        self._failed_versions = failed_versions
        self._found_anew = found_anew
        self._versions_seen = versions_seen
        self._set_notes = set_notes
        self._labels_in_effect = labels_in_effect
        self._period_seconds = period_seconds
        self._missing_asset_wait_ns = round(missing_asset_wait_seconds * NS_PER_SECOND)
        self._pollers = pollers
        self._clock = clock
        # Guards all below; not held while the disk is looked at.
        self._lock = threading.RLock()
        self._wanted = SelectionInputs(selection=selection, labels=labels, keeps_last=keeps_last)
        self._memory = SourceState()
        # Of the poll whose result was the last to count.
        self._poll_number = 0
        self._stuck_note: Note | None = None
        self._is_stopping = False

    # --- Any thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts polling; the first poll is at once."""
        is_due = self._period_seconds >= 0
        self._pollers.add(self._name, _group_of(self._base_path), self, is_due=is_due)

    def stop(self) -> None:
        """Ends polling, after the poll under way, which aspires nothing any more. Returns at once."""
        with self._lock:
            self._is_stopping = True
            self._pollers.remove(self._name)
            self._versions_seen(self._name, frozenset(), frozenset())

    def join(self, timeout_seconds: float) -> bool:
        """After `stop`: False if a poll is still under way after `timeout_seconds`."""
        return self._pollers.wait_until_idle(self._name, timeout_seconds)

    def set_selection(
        self, selection: VersionSelection, labels: Mapping[str, int] = NO_LABELS
    ) -> None:
        """Selects otherwise from the versions found, and looks for new ones at once.

        `labels` are those of the model now, in effect as far as they can be. Both at once: a label
        is not to be taken for one of a version that the policy before did not select.
        """
        with self._lock:
            self._select_again(replace(self._wanted, selection=selection, labels=labels))
            self._poll_soon()

    def set_blocked(self, versions: frozenset[int]) -> None:
        """Leaves `versions` out of what is selected until told otherwise. Looks at no disk."""
        with self._lock:
            self._select_again(replace(self._wanted, blocked=versions))

    def set_base_path(self, base_path: str) -> None:
        """Looks elsewhere, at once. What is aspired stays until a version is complete there."""
        with self._lock:
            self._base_path = base_path
            self._poll_soon()

    def notes(self) -> list[Note]:
        """What there was to tell people after the last poll, in a fixed order."""
        with self._lock:
            stuck = {self._stuck_note} if self._stuck_note else set()
            return sorted(self._memory.notes | stuck, key=repr)

    def found_versions(self) -> frozenset[int]:
        """Those that the last poll found on disk, blocked ones too."""
        with self._lock:
            return frozenset(self._memory.found)

    def selectable_versions(self) -> frozenset[int]:
        """Of these, the ones that the selection would take if they were the only ones."""
        with self._lock:
            selection, found = self._wanted.selection, frozenset(self._memory.found)
        return frozenset(version for version in found if selection.select([version]).versions)

    def poll(self, number: int | None = None) -> float | None:
        """Looks once, sets what is aspired, and returns the seconds until the next poll or None.

        See `Pollable.poll`; without a number this poll is the latest.
        """
        now = Instant(self._clock.now_ns(), self._clock.wall_ns())
        with self._lock:
            before, base_path, blocked = self._memory, self._base_path, self._wanted.blocked
        decide_on = self._look(before, base_path, blocked, now)
        with self._lock:
            # Where it looked elsewhere than it should by now, the next poll is due already.
            number = self._poll_number + 1 if number is None else number
            if base_path == self._base_path and number > self._poll_number:
                self._poll_number = number
                self._remember(decide_on(self._memory, self._wanted))
            return next_poll_seconds(self._memory, self._period_seconds, now)

    def stuck_changed(self, stuck_seconds: Callable[[], float | None]) -> None:
        """See `Pollable`. Reports that a poll hangs, and that it is over, once each."""
        with self._lock:
            seconds = None if self._is_stopping else stuck_seconds()
            note = None if seconds is None else self._stuck_note or _stuck_note(seconds)
            before = {self._stuck_note} if self._stuck_note else set()
            self._stuck_note = note
            self._log_changes(frozenset(before), frozenset({note} if note else ()))

    # --- Under the lock ---------------------------------------------------------------------------

    def _select_again(self, wanted: SelectionInputs) -> None:
        self._wanted = wanted
        self._remember(select_again(self._memory, wanted))

    def _poll_soon(self) -> None:
        self._pollers.wake(self._name, _group_of(self._base_path))

    def _remember(self, memory: SourceState) -> None:
        if self._is_stopping:
            return
        before, self._memory = self._memory, memory
        self._log_changes(before.notes, memory.notes)
        aspired = memory.aspired
        if (before.notes, before.aspired) != (memory.notes, aspired) or before.on_disk is None:
            # Before the manager learns of the versions: a request in between waits for them.
            versions = frozenset(item.version for item in aspired or ())
            self._set_notes(self._name, memory.notes, versions)
        self._log_versions(before, memory)
        if aspired is not None and aspired != before.aspired:
            _log.info("aspired", model=self._name, versions=[item.version for item in aspired])
            self._set_aspired(self._name, aspired)

    def _log_versions(self, before: SourceState, after: SourceState) -> None:
        for version, found in after.found.items():
            if before.found.get(version) != found:
                self._found_anew(self._name, version)
        if after.on_disk is not None:
            aspired = {item.version for item in after.aspired or ()}
            self._versions_seen(self._name, after.on_disk, self._wanted.blocked | aspired)

    # --- On a thread of the pool ----------------------------------------------------------------

    def _look(
        self, memory: SourceState, base_path: str, blocked: frozenset[int], now: Instant
    ) -> Callable[[SourceState, SelectionInputs], SourceState]:
        """Looks at the disk; returns what makes a new memory of the one at the time and of what is
        wanted by then. `memory` and `blocked` are those to know which versions to look at.
        """
        listing = list_children(base_path)
        if listing.error:
            # Nothing is known about the versions, so nothing about them changes.
            return lambda memory, wanted: unreadable(memory, listing.error)
        known = {version: Path(item.directory).name for version, item in memory.found.items()}
        names, name_notes = version_directories(listing, known, base_path)
        directories = {version: str(Path(base_path, name)) for version, name in names.items()}
        failed = self._failed_versions(self._name)
        observed = to_observe(memory, directories, failed, blocked)
        candidates, read_notes = self._candidates(memory, observed, now)
        live = self._fingerprints(to_compare(memory, directories, failed, now))

        def decide_on(memory: SourceState, wanted: SelectionInputs) -> SourceState:
            after = decide(compared(memory, live, now), directories, candidates, wanted, now)
            # Under the lock, so that labels that were put into effect before `set_selection` are.
            of_labels = label_notes(after, wanted, self._labels_in_effect(self._name))
            return replace(after, notes=after.notes | name_notes | read_notes | of_labels)

        return decide_on

    def _candidates(
        self, memory: SourceState, directories: Mapping[int, str], now: Instant
    ) -> tuple[dict[int, Candidate], frozenset[Note]]:
        candidates, notes = {}, set()
        for version, directory in directories.items():
            try:
                seen = fingerprint(directory)
            except OSError as error:
                notes.add(Note.of("version_unreadable", version=version, reason=str(error)))
                continue
            if is_as_found(memory, version, directory, seen):
                continue
            candidate = observe(memory.candidates.get(version), directory, seen, now)
            if needs_check(candidate, now):
                candidate = self._checked(candidate, now)
            candidates[version] = candidate
        return candidates, frozenset(notes)

    def _fingerprints(self, directories: Mapping[int, str]) -> dict[int, Fingerprint]:
        """Of those that can be read. One that cannot is not known to be another one."""
        seen = {}
        for version, directory in directories.items():
            with suppress(OSError):
                seen[version] = fingerprint(directory)
        return seen

    def _checked(self, candidate: Candidate, now: Instant) -> Candidate:
        try:
            missing_assets = tuple(self._check(candidate.directory))
        except DataLoss:
            return checked(candidate, "", now, is_broken=True)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
            return checked(candidate, from_exception(error).message or type(error).__name__, now)
        return checked(
            candidate,
            "",
            now,
            missing_assets=missing_assets,
            asset_wait_ns=self._missing_asset_wait_ns,
        )

    def _log_changes(self, before: frozenset[Note], after: frozenset[Note]) -> None:
        where = {"model": self._name, "base_path": self._base_path}
        for note in sorted(after - before, key=repr):
            getattr(_log, note.level)(note.event, **where, **dict(note.values))
        still_there = {note.event for note in after}
        for event in sorted({note.event for note in before if note.level == "warning"}):
            if event not in still_there:
                _log.info("warning_over", warning=event, **where)
