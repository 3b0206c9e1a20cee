"""FileSystemSource: polls the base path of one model and aspires some of the versions in it.

This module reads the disk; `found_versions.py` decides what follows from it.
"""

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import DataLoss, PermissionDenied, from_exception
from serving.base.fingerprint import Fingerprint, fingerprint
from serving.core.label_targets import NO_LABELS
from serving.core.servable import AspiredVersion
from serving.core.version_selection import VersionSelection
from serving.source.found_versions import (
    SelectionInputs,
    SourceState,
    after_unreadable,
    decide,
    found_fingerprint,
    granted_anew,
    in_new_base_path,
    is_as_found,
    is_at_rest,
    known_to_serve,
    label_notes,
    next_comparison_seconds,
    next_poll_seconds,
    select_again,
    selectable_versions,
    to_compare,
    to_observe,
    with_comparison,
    without_lost_files,
)
from serving.source.glance import Identity, Sight, after_listing, glance
from serving.source.listing import Child, FilesCheck, Listing, version_directories
from serving.source.mounts import DATED_FILE_SYSTEMS, file_system_of
from serving.source.notes import Note
from serving.source.poller_pool import PollerPool
from serving.source.settling import (
    MISSING_ASSET_WAIT_NS,
    Candidate,
    Instant,
    after_check,
    needs_check,
    observe,
)

_log = structlog.get_logger(__name__)


def list_children(base_path: str) -> Listing:
    """Lists the entries of `base_path` in the order of their names; follows symbolic links."""
    try:
        with os.scandir(base_path) as entries:
            children = [
                Child(entry.name, _is_directory(entry), entry.is_symlink()) for entry in entries
            ]
    except OSError as error:
        return Listing(error=str(error))
    return Listing(tuple(sorted(children, key=lambda child: child.name)))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """True if `entry` is a directory, or cannot be looked at, like a link that leads in a circle.

    Such an entry hides no other one. If it is a version that serves, the version stays. If it is a new
    version, the poll notes that it cannot be read.
    """
    try:
        return entry.is_dir()
    except OSError:
        return True


def _is_dated(base_path: str) -> bool:
    return file_system_of(os.path.realpath(base_path)) in DATED_FILE_SYSTEMS


def _group_of(base_path: str) -> str:
    """The parent directory. Base paths that share it are likely to share a disk, and to hang together."""
    return os.path.dirname(os.path.normpath(base_path))


_EXPLAINED_BY_STORE = ("base_path_unreadable", "no_version_in_base_path")


def _stuck_note(seconds: float) -> Note:
    return Note.of(
        "source_stuck",
        reason=f"reading the base path has not finished within {seconds:.2g} s",
        consequence="new versions are not found; the loaded versions keep serving",
        remedy="check that its disk responds (ls); the server retries by itself",
    )


class SourceListener:
    """Receives the findings of a source. Each method does nothing unless it is overridden.

    All methods are called under the source's lock, on any thread. `name` is the model's.
    """

    def set_aspired(
        self, name: str, versions: Sequence[AspiredVersion], left_out: frozenset[int]
    ) -> None:
        """Called each time that the list of aspired versions has changed. Not called after `stop`.

        `left_out` are the blocked versions that the list was made without.
        """

    def found_anew(self, name: str, version: int, files: Fingerprint | None) -> None:
        """Called when a version is found, or is found again with other files, even if it is blocked.

        `files` are its files as they were found. None if it is to be loaded again whatever its files.
        """

    def versions_seen(self, name: str, on_disk: frozenset[int], watched: frozenset[int]) -> None:
        """Receives the versions on disk, and the versions whose files the source watches.

        Called after each poll that could read the base path.
        """

    def set_notes(self, name: str, notes: frozenset[Note], aspired: frozenset[int]) -> None:
        """Receives the notes and the aspired versions of a poll if they differ from those of the last poll."""


class ModelStatus(Protocol):
    """The state of a model outside of its source. Safe to call from any thread."""

    def failed_versions(self, name: str) -> Collection[int]:
        """The versions of the model that have ended with an error."""
        ...

    def lost_versions(self, name: str) -> Mapping[int, int]:
        """The failed versions whose directory was gone, with the `found_at_ns` of what was to be loaded."""
        ...

    def available_versions(self, name: str) -> Collection[int]:
        """The versions of the model that are AVAILABLE."""
        ...

    def labels_in_effect(self, name: str) -> Mapping[str, int]:
        """The model's labels as requests see them."""
        ...


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """The settings that a source starts with.

    `period_seconds` is the time between two polls. If it is 0, the source polls once. If it is negative,
    the source does not poll. A change of the selection or of the base path always causes one poll. A
    version that lacks assets is found without them once it has stayed unchanged for
    `missing_asset_wait_seconds`. The other fields are those of `SelectionInputs`.
    """

    base_path: str
    selection: VersionSelection
    labels: Mapping[str, int] = field(default_factory=dict)
    keeps_last: bool = True
    period_seconds: float
    missing_asset_wait_seconds: float = MISSING_ASSET_WAIT_NS / NS_PER_SECOND


class FileSystemSource:
    """Polls the base path of one model on the threads of `pollers` and sets its aspired versions.

    Each model has a source of its own, so a base path that hangs or fails delays no other model. A
    poll that hangs is reported by the note `source_stuck`, and another poll tries again.

    `check` returns the missing assets of a version directory, and raises if it is incomplete.
    A failed version (`ModelStatus.failed_versions`) whose files change is aspired again with a new
    `found_at_ns`, and so is one whose directory was gone and is back. Every RECHECK_NS the source compares
    the files of live versions with the files that were found, and warns if they were overwritten. It also
    warns of a label whose version does not appear.

    A base path at rest is not listed: a poll only glances at its directory. If `pollers` can watch the
    directory, no poll is due until it changes, or until the files of its versions are compared again.

    The selection, the labels, the blocked versions and the base path may change at any time, from
    any thread. A change is applied to the versions found so far at once, even while the disk hangs.
    """

    def __init__(
        self,
        name: str,
        settings: SourceSettings,
        *,
        listener: SourceListener,
        model_status: ModelStatus,
        check: FilesCheck,
        pollers: PollerPool,
        clock: Clock,
    ) -> None:
        self._name = name
        self._base_path = settings.base_path
        self._listener = listener
        self._model_status = model_status
        self._check = check
        self._period_seconds = settings.period_seconds
        self._missing_asset_wait_ns = round(settings.missing_asset_wait_seconds * NS_PER_SECOND)
        self._pollers = pollers
        self._clock = clock
        # Guards all fields below; not held while the disk is read. `_state` is a value, replaced as a whole.
        self._lock = threading.RLock()
        self._inputs = SelectionInputs(
            selection=settings.selection, labels=settings.labels, keeps_last=settings.keeps_last
        )
        self._state = SourceState()
        # None makes the next poll list the base path.
        self._sight: Sight | None = None
        # The sight for which a watch was refused.
        self._unwatched: Sight | None = None
        # The number of the latest poll whose result was used.
        self._poll_number = 0
        self._stuck_note: Note | None = None
        # The notes of a mirror in front of the base path, and the notes that were shown last.
        self._store_notes: frozenset[Note] = frozenset()
        self._shown_notes: frozenset[Note] = frozenset()
        self._is_stopping = False

    # --- Any thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts polling; the first poll is due at once."""
        is_due = self._period_seconds >= 0
        self._pollers.add(self._name, _group_of(self._base_path), self, is_due=is_due)

    def stop(self) -> None:
        """Ends polling and returns at once. The result of a poll under way is dropped."""
        with self._lock:
            self._is_stopping = True
            self._pollers.remove(self._name)
            self._listener.versions_seen(self._name, frozenset(), frozenset())

    def join(self, timeout_seconds: float) -> bool:
        """Waits, after `stop`, for the poll under way; returns False if it outlasts the timeout."""
        return self._pollers.wait_until_idle(self._name, timeout_seconds)

    def set_selection(
        self, selection: VersionSelection, labels: Mapping[str, int] = NO_LABELS
    ) -> None:
        """Replaces the selection and the labels, and polls at once.

        `labels` are the model's new labels. The caller has already put into effect each label whose
        version serves. The selection and the labels change together. If they did not, the source could
        report a label only because the old selection lacks its version.
        """
        with self._lock:
            self._select_again(replace(self._inputs, selection=selection, labels=labels))
            self._poll_soon()

    def set_blocked(self, versions: frozenset[int]) -> None:
        """Excludes `versions` from selection until the next call. Does not read the disk."""
        with self._lock:
            self._select_again(replace(self._inputs, blocked=versions))

    def set_granted(self, versions: frozenset[int]) -> None:
        """Selects only among `versions` until the next call, as a member of a fleet.

        A version that was not granted before and has failed, maybe in an earlier process that has blocked it, is
        loaded again.
        """
        failed = frozenset(self._model_status.failed_versions(self._name))
        available = frozenset(self._model_status.available_versions(self._name))
        with self._lock:
            fresh = versions - (self._inputs.granted or frozenset())
            unserved = failed | (self._inputs.blocked - available)
            before = self._state.found
            self._state = granted_anew(self._state, fresh, unserved, self._clock.now_ns())
            for version, found in self._state.found.items():
                if found != before[version]:
                    # An operator wants it, whatever its files. It may be blocked.
                    self._listener.found_anew(self._name, version, None)
            self._select_again(replace(self._inputs, granted=versions))

    def set_base_path(
        self,
        base_path: str,
        selection: VersionSelection,
        labels: Mapping[str, int] = NO_LABELS,
    ) -> None:
        """Replaces the base path, the selection and the labels (`set_selection`) at once, and polls.

        The aspired versions stay until a version in the new base path is complete. Until then a new
        selection adds none of the former base path.
        """
        with self._lock:
            if base_path != self._base_path:
                self._state = in_new_base_path(self._state)
            self._base_path = base_path
            self.set_selection(selection, labels)

    def notes(self) -> list[Note]:
        """The notes of the last poll, in a fixed order."""
        with self._lock:
            stuck = {self._stuck_note} if self._stuck_note else set()
            return sorted(self._shown_notes | stuck, key=repr)

    def set_store_notes(self, notes: frozenset[Note]) -> None:
        """Replaces the notes of the mirror that fills the base path; empty if there is none."""
        with self._lock:
            self._store_notes = notes
            self._set_state(self._state)

    def poll_soon(self) -> None:
        """Makes a poll due now, because the base path has changed."""
        with self._lock:
            self._poll_soon()

    def selected_among(self, versions: Collection[int]) -> frozenset[int]:
        """The versions that would be aspired if these were found."""
        with self._lock:
            inputs = self._inputs
        return frozenset(inputs.select(versions).versions)

    def aspired_versions(self) -> frozenset[int]:
        """The versions that are aspired now. Takes no lock, because callers hold locks of their own."""
        return frozenset(item.version for item in self._state.aspired or ())

    def found_versions(self) -> frozenset[int]:
        """The versions that the last poll found on disk, including blocked versions."""
        with self._lock:
            return frozenset(self._state.found)

    def selectable_versions(self) -> frozenset[int]:
        """The versions that would be aspired, each if it were the only one that may be: of a former base path those
        alone that are aspired already.
        """
        with self._lock:
            return selectable_versions(self._state, self._inputs)

    def awaited_base_path(self) -> str:
        """The base path of which no version is found yet, so that those of the former one stay; "" if none is."""
        with self._lock:
            return self._base_path if self._state.is_of_former_base_path else ""

    def poll(self, number: int | None = None) -> float | None:
        """Polls once, sets the aspired versions, and returns the seconds until the next poll or None.

        See `Pollable.poll`. Without a number this poll counts as the latest.
        """
        now = Instant(self._clock.now_ns(), self._clock.wall_ns())
        with self._lock:
            before, base_path, inputs = self._state, self._base_path, self._inputs
            sight = self._sight
        is_at_rest = self._is_at_rest(before, inputs)
        # Before the disk is read, so that no change is missed.
        is_watched = is_at_rest and self._is_watched(base_path, sight)
        seen = glance(base_path, sight.links if sight else ())
        if is_watched and (sight is None or sight.identity != seen):
            # It has just changed, and may change on. It is watched again once a poll finds nothing new.
            self._pollers.forget_watch(self._name)
            is_watched = False
        if is_at_rest and self._finds_nothing_new(before, sight, seen, now):
            return self._next_seconds(before, now, is_watched=is_watched)
        listing = list_children(base_path)
        decide_on = self._look(before, base_path, listing, inputs.blocked, now)
        is_dated = _is_dated(base_path) if sight is None else sight.is_dated
        with self._lock:
            # If the base path has changed meanwhile, the result is dropped; a new poll is due.
            number = self._poll_number + 1 if number is None else number
            if base_path == self._base_path and number > self._poll_number:
                self._poll_number = number
                # If the source was woken meanwhile, the next poll lists again.
                if sight is self._sight:
                    self._sight = after_listing(
                        sight, seen, listing.links, now_ns=now.now_ns, is_dated=is_dated
                    )
                self._set_state(decide_on(self._state, self._inputs))
            is_watched = is_watched and self._is_at_rest(self._state, self._inputs)
            return self._next_seconds(self._state, now, is_watched=is_watched)

    def _is_at_rest(self, state: SourceState, inputs: SelectionInputs) -> bool:
        failed = self._model_status.failed_versions(self._name)
        return self._period_seconds > 0 and is_at_rest(state, inputs, failed)

    def _is_watched(self, base_path: str, sight: Sight | None) -> bool:
        """Begins to watch the base path, unless it is watched already.

        After a refusal, tries again after the next listing.
        """
        if sight is None or self._is_stopping or sight is self._unwatched:
            return False
        is_watched = self._pollers.watch(self._name, base_path, sight, self._period_seconds)
        self._unwatched = None if is_watched else sight
        return is_watched

    def _finds_nothing_new(
        self, state: SourceState, sight: Sight | None, seen: Identity | None, now: Instant
    ) -> bool:
        if sight is None or not sight.has_entries_of(seen):
            return False
        return next_comparison_seconds(state, self._pollers.source_count, now) > 0

    def _next_seconds(self, state: SourceState, now: Instant, *, is_watched: bool) -> float | None:
        if not is_watched:
            return next_poll_seconds(state, self._period_seconds, now)
        count = self._pollers.source_count
        return max(self._period_seconds, next_comparison_seconds(state, count, now))

    def stuck_changed(self, stuck_seconds: Callable[[], float | None]) -> None:
        """See `Pollable`. Logs once that a poll hangs, and once that it no longer does."""
        with self._lock:
            seconds = None if self._is_stopping else stuck_seconds()
            note = None if seconds is None else self._stuck_note or _stuck_note(seconds)
            before = {self._stuck_note} if self._stuck_note else set()
            self._stuck_note = note
            self._log_changes(frozenset(before), frozenset({note} if note else ()))

    # --- Under the lock ---------------------------------------------------------------------------

    def _select_again(self, inputs: SelectionInputs) -> None:
        self._inputs = inputs
        self._set_state(select_again(self._state, inputs))

    def _poll_soon(self) -> None:
        self._sight = None
        self._pollers.wake(self._name, _group_of(self._base_path))

    def _set_state(self, state: SourceState) -> None:
        if self._is_stopping:
            return
        before, self._state = self._state, state
        shown_before, self._shown_notes = self._shown_notes, self._notes_to_show()
        self._log_changes(shown_before, self._shown_notes)
        aspired = state.aspired
        were_shown = (shown_before, before.aspired)
        if were_shown != (self._shown_notes, aspired) or before.on_disk is None:
            # Notes come before the aspired versions, so that a request in between waits for them.
            versions = frozenset(item.version for item in aspired or ())
            self._listener.set_notes(self._name, self._shown_notes, versions)
        self._log_versions(before, state)
        if aspired is not None and aspired != before.aspired:
            _log.info("aspired", model=self._name, versions=[item.version for item in aspired])
            self._listener.set_aspired(self._name, aspired, self._inputs.blocked)

    def _notes_to_show(self) -> frozenset[Note]:
        """The notes of the last poll and of the store.

        If the directory of a mirror is missing or empty, the mirror's notes explain that better.
        """
        if not self._store_notes:
            return self._state.notes
        own = {note for note in self._state.notes if note.event not in _EXPLAINED_BY_STORE}
        return self._store_notes | own

    def _log_versions(self, before: SourceState, after: SourceState) -> None:
        for version, found in after.found.items():
            if before.found.get(version) != found:
                self._listener.found_anew(self._name, version, found.fingerprint)
        if after.on_disk is not None:
            aspired = {item.version for item in after.aspired or ()}
            self._listener.versions_seen(self._name, after.on_disk, self._inputs.blocked | aspired)

    # --- On a thread of the pool ----------------------------------------------------------------

    def _look(
        self,
        state: SourceState,
        base_path: str,
        listing: Listing,
        blocked: frozenset[int],
        now: Instant,
    ) -> Callable[[SourceState, SelectionInputs], SourceState]:
        """Reads the version directories and returns the function that decides on what was read.

        That function is called later, under the lock, with the state and inputs of that time.
        `state` and `blocked`, from before the read, only choose which versions to read.
        """
        if listing.error:
            # The versions below an unreadable base path are unknown, so they stay as they are.
            return lambda state, inputs: after_unreadable(state, listing.error)
        known = {version: Path(item.directory).name for version, item in state.found.items()}
        names, name_notes = version_directories(listing, known, base_path)
        directories = {version: str(Path(base_path, name)) for version, name in names.items()}
        # In this order, so that a version that fails in between is not lost without having failed.
        lost = self._model_status.lost_versions(self._name)
        failed = self._model_status.failed_versions(self._name)
        state = without_lost_files(state, lost)
        observed = to_observe(state, directories, failed, blocked)
        candidates, read_notes = self._candidates(state, observed, now)
        live = self._fingerprints(to_compare(state, directories, failed, now))

        def decide_on(state: SourceState, inputs: SelectionInputs) -> SourceState:
            available = self._model_status.available_versions(self._name)
            state = without_lost_files(state, lost)
            before = known_to_serve(with_comparison(state, live, now), available)
            after = decide(before, directories, candidates, inputs, now)
            # Read under the lock, so that labels put into effect before `set_selection` are seen.
            of_labels = label_notes(after, inputs, self._model_status.labels_in_effect(self._name))
            return replace(after, notes=after.notes | name_notes | read_notes | of_labels)

        return decide_on

    def _candidates(
        self, state: SourceState, directories: Mapping[int, str], now: Instant
    ) -> tuple[dict[int, Candidate], frozenset[Note]]:
        candidates, notes = {}, set()
        for version, directory in directories.items():
            try:
                seen = fingerprint(directory)
            except OSError as error:
                notes.add(Note.of("version_unreadable", version=version, reason=str(error)))
                continue
            if is_as_found(state, version, directory, seen):
                continue
            found = found_fingerprint(state, version, directory)
            candidate = observe(state.candidates.get(version), directory, seen, now, found)
            if needs_check(candidate, now):
                candidate = self._checked(candidate, now)
            candidates[version] = candidate
        return candidates, frozenset(notes)

    def _fingerprints(self, directories: Mapping[int, str]) -> dict[int, Fingerprint]:
        """The fingerprints of the directories that can be read.

        Unreadable directories are left out, because they are not known to have changed.
        """
        seen = {}
        for version, directory in directories.items():
            with suppress(OSError):
                seen[version] = fingerprint(directory)
        return seen

    def _checked(self, candidate: Candidate, now: Instant) -> Candidate:
        try:
            missing_assets = tuple(self._check(candidate.directory))
        except (DataLoss, PermissionDenied):
            return after_check(candidate, "", now, is_broken=True)
        except Exception as error:  # noqa: BLE001 (any error is the reason of incompleteness)
            return after_check(
                candidate, from_exception(error).message or type(error).__name__, now
            )
        return after_check(
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
