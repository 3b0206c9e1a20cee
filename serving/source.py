"""FileSystemSource: polls the base path of one model and aspires some of the versions in it.

Here is what touches the disk; what follows from it is decided in `found_versions.py`.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from serving.clock import Clock
from serving.errors import from_exception
from serving.found_versions import (
    Candidate,
    Child,
    Fingerprint,
    Instant,
    Listing,
    Memory,
    Note,
    checked,
    decide,
    is_as_found,
    needs_check,
    next_poll_seconds,
    observe,
    to_observe,
    unreadable,
    version_directories,
)
from serving.servable import AspiredVersion
from serving.version_selection import VersionSelection

SetAspired = Callable[[str, Sequence[AspiredVersion]], None]
FailedVersions = Callable[[str], Collection[int]]
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


class FileSystemSource:
    """Polls the base path of one model on a thread of its own and sets its aspired versions.

    One source a model: a base path that hangs, fails or lies cannot hold up another's. The thread
    `source-NAME` sleeps between polls and is a daemon, because a dead network disk can hold it for
    ever. `period_seconds` 0 polls once, negative never. `check` raises where a directory is no
    complete version. `set_aspired` is called only when the list changes. `failed_versions` says
    which versions of a model have ended with an error: their files alone are watched for a change
    once they are found, and one that changes is aspired again under a new `found_at_ns`.
    """

    def __init__(
        self,
        name: str,
        base_path: str,
        selection: VersionSelection,
        *,
        set_aspired: SetAspired,
        check: Callable[[str], None],
        failed_versions: FailedVersions,
        period_seconds: float,
        clock: Clock,
    ) -> None:
        self._name = name
        self._base_path = base_path
        self._selection = selection
        self._set_aspired = set_aspired
        self._check = check
        self._failed_versions = failed_versions
        self._period_seconds = period_seconds
        self._clock = clock
        self._memory = Memory()
        self._is_stopping = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"source-{name}", daemon=True)

    def start(self) -> None:
        """Starts polling; the first poll is at once."""
        if self._period_seconds >= 0:
            self._thread.start()

    def stop(self) -> None:
        """Ends polling, after the poll under way. Returns at once."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()

    def join(self, timeout_seconds: float) -> bool:
        """After `stop`: False where the disk still holds the thread after `timeout_seconds`."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def poll(self) -> float | None:
        """Looks once, sets what is aspired, and returns the seconds until the next poll or None.

        On one thread at a time: the source's own, or a test's.
        """
        now = Instant(self._clock.now_ns(), self._clock.wall_ns())
        before, self._memory = self._memory, self._look(self._memory, now)
        self._tell_changes(before.notes, self._memory.notes)
        aspired = self._memory.aspired
        if aspired is not None and aspired != before.aspired:
            _log.info("aspired", model=self._name, versions=[item.version for item in aspired])
            self._set_aspired(self._name, aspired)
        return next_poll_seconds(self._memory, self._period_seconds, now)

    def _run(self) -> None:
        while not self._is_stopping:
            delay_seconds: float | None = self._period_seconds or None
            try:
                delay_seconds = self.poll()
            except Exception:  # noqa: BLE001 (a bug; the next poll may fare better)
                _log.exception("poll_failed", model=self._name, base_path=self._base_path)
            if delay_seconds is None:
                return
            with self._wake:
                if not self._is_stopping:
                    self._clock.wait(self._wake, delay_seconds)

    def _look(self, memory: Memory, now: Instant) -> Memory:
        listing = list_children(self._base_path)
        if listing.error:
            # Nothing is known about the versions, so nothing about them changes.
            return unreadable(memory, listing.error)
        known = {version: Path(item.directory).name for version, item in memory.found.items()}
        names, name_notes = version_directories(listing, known)
        directories = {version: str(Path(self._base_path, name)) for version, name in names.items()}
        candidates, read_notes = self._candidates(memory, directories, now)
        after = decide(memory, directories, candidates, self._selection, now)
        return replace(after, notes=after.notes | name_notes | read_notes)

    def _candidates(
        self, memory: Memory, directories: Mapping[int, str], now: Instant
    ) -> tuple[dict[int, Candidate], frozenset[Note]]:
        candidates, notes = {}, set()
        failed = self._failed_versions(self._name)
        for version, directory in to_observe(memory, directories, failed).items():
            try:
                seen = fingerprint(directory)
            except OSError as error:
                notes.add(Note.of("version_unreadable", version=version, reason=str(error)))
                continue
            if is_as_found(memory, version, directory, seen):
                continue
            candidate = observe(memory.candidates.get(version), directory, seen, now)
            if needs_check(candidate, now):
                candidate = checked(candidate, self._reason(directory), now)
            candidates[version] = candidate
        return candidates, frozenset(notes)

    def _reason(self, directory: str) -> str:
        """Why `directory` is not complete, or ""."""
        try:
            self._check(directory)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
            return from_exception(error).message or type(error).__name__
        return ""

    def _tell_changes(self, before: frozenset[Note], after: frozenset[Note]) -> None:
        where = {"model": self._name, "base_path": self._base_path}
        for note in sorted(after - before, key=repr):
            getattr(_log, note.level)(note.event, **where, **dict(note.values))
        still_there = {note.event for note in after}
        for event in sorted({note.event for note in before if note.level == "warning"}):
            if event not in still_there:
                _log.info("warning_over", warning=event, **where)
