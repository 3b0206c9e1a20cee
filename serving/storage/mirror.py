"""Mirror: copies the versions of one base path in object storage to a local directory.

Theory of operation. A look lists the store, decides (`mirror_plan.py`), deletes what is gone, and then
copies for one period at most. The next look begins with a listing again, so a version that is removed or
replaced while it is copied is noticed, and a newer one is copied first. All state of a copy is on disk
(`version_copy.py`), so a look that fails or a process that ends loses at most one read.
"""

import errno
import fcntl
import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import DataLoss, from_exception
from serving.base.periodic_thread import PeriodicThread
from serving.loading.background_work import BackgroundWork
from serving.source.listing import FilesCheck, Listing, version_directories
from serving.source.notes import Note
from serving.storage.fsspec_store import reading_threads
from serving.storage.mirror_plan import (
    MirrorView,
    RemoteVersion,
    copied_files,
    listed,
    mirror_notes,
    next_copy,
    next_look_seconds,
    partials_to_drop,
    selected_versions,
    to_evict,
    to_list,
    to_remove,
)
from serving.storage.stored_objects import Objects, ObjectStore, StoreError, contents, total_bytes
from serving.storage.version_copy import (
    Experience,
    VersionCopy,
    partial_directory,
    raise_if_incomplete,
    remove_leftovers,
    remove_tree,
    remove_version,
    whole_objects,
    work_directory,
)

_log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1.0
"""The wait after the first failure of the store; it doubles up to the period."""

_LOCK_NAME = ".lock"


class Versions(Protocol):
    """The model, as its mirror sees it. Safe to call from any thread."""

    def select(self, versions: Collection[int]) -> Collection[int]:
        """Selects the versions that the model's selection takes among these."""
        ...

    def in_use(self) -> Collection[int]:
        """The versions that are aspired, load, serve or unload."""
        ...

    def failed(self) -> Collection[int]:
        """The versions whose last load has ended with an error."""
        ...

    def files_changed(self) -> None:
        """Makes the source look at the local directory at once."""
        ...

    def set_store_notes(self, notes: frozenset[Note]) -> None:
        """Receives the notes of each look."""
        ...


@dataclass(frozen=True, kw_only=True)
class MirrorSettings:
    """A version that lacks assets waits beside its place until it has been unchanged for
    `missing_asset_wait_seconds`.
    """

    period_seconds: float
    budget_bytes: int
    keeps_last: bool = True
    missing_asset_wait_seconds: float = 30.0


class Mirror:
    """The mirror of one model's base path into `directory`. `look` runs on one thread.

    `url` is for logs.
    """

    def __init__(
        self,
        model: str,
        url: str,
        directory: Path,
        *,
        store: ObjectStore,
        settings: MirrorSettings,
        versions: Versions,
        check: FilesCheck,
        clock: Clock,
    ) -> None:
        self._model = model
        self._url = url
        self._directory = directory
        self._store = store
        self._settings = settings
        self._versions = versions
        self._check = check
        self._clock = clock
        self._listed: dict[int, RemoteVersion] = {}
        self._gone: frozenset[int] = frozenset()
        self._experience = Experience()
        self._failure_count = 0
        self._notes: frozenset[Note] = frozenset()
        self._lock_descriptor: int | None = None
        # Orders `stop` and notes, so that no note is set after `stop` has returned.
        self._lock = threading.Lock()
        self._is_disk_full = False
        self._is_stopping = False

    def begin(self) -> None:
        """Notes that nothing was read yet. Call it before the first look."""
        self._set_notes(frozenset({Note.of("store_not_read", "info")}))

    def look(self) -> float:
        """Looks once, and returns the seconds until the next look."""
        try:
            if not self._take_lock():
                self._set_notes(frozenset({_locked_note(self._directory)}))
                return self._settings.period_seconds
            seconds, notes = self._look()
            self._failure_count, self._is_disk_full = 0, False
        except StoreError as error:
            return self._failed(
                Note.of("store_unreadable", reason=error.message, remedy=_STORE_REMEDY)
            )
        except OSError as error:
            # Until a look succeeds, only the versions that are selected or in use are kept.
            self._is_disk_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = error.strerror or type(error).__name__
            reason = f"{what}: {error.filename or self._directory}"
            return self._failed(
                Note.of("model_cache_unwritable", reason=reason, remedy=_DISK_REMEDY)
            )
        self._set_notes(notes)
        return seconds

    def stop(self) -> None:
        """Ends the look under way after its read, and keeps it from setting notes. Any thread."""
        with self._lock:
            self._is_stopping = True

    def close(self) -> None:
        """Lets another mirror use the directory. Call it after the last look."""
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def _look(self) -> tuple[float, frozenset[Note]]:
        listing = Listing(tuple(self._store.children()))
        names, name_notes = version_directories(listing, base_path=self._url)
        self._listed = {v: item for v, item in self._listed.items() if v in names}
        view = self._view(frozenset(names))
        for version in to_remove(view):
            self._remove(version, "it is gone from the store")
        self._gone = frozenset(view.local) - view.remote
        view = self._view(view.remote)
        selected = self._selected(view)
        for version in partials_to_drop(view, selected):
            remove_tree(partial_directory(self._directory, version))
        for version in to_list(view, selected):
            self._listed[version] = listed(
                self._listed.get(version), self._store.objects(names[version]), view.now_ns
            )
        view = self._view(view.remote)
        copied = next_copy(view, selected)
        if copied is not None and not self._is_stopping:
            self._make_room(view, selected, copied)
            self._copy(copied, names[copied])
        view = self._view(view.remote)
        selected = self._selected(view)
        self._make_room(view, selected, None)
        if not view.remote or view.local:
            # From now on the directory shows the versions that are there. Until it exists, a source keeps
            # its aspired versions.
            self._directory.mkdir(parents=True, exist_ok=True)
        seconds = next_look_seconds(view, selected, self._settings.period_seconds)
        return seconds, mirror_notes(view, selected) | name_notes

    def _selected(self, view: MirrorView) -> frozenset[int]:
        return selected_versions(view, self._versions.select)

    def _view(self, remote: frozenset[int]) -> MirrorView:
        local, partial = local_versions(self._directory)
        return MirrorView(
            remote=remote,
            listed=dict(self._listed),
            local=local,
            partial=partial,
            gone_before=self._gone,
            in_use=self._in_use(),
            failed=self._failed_versions(),
            keeps_last=self._settings.keeps_last,
            budget_bytes=0 if self._is_disk_full else self._settings.budget_bytes,
            now_ns=self._clock.now_ns(),
        )

    def _in_use(self) -> frozenset[int]:
        return frozenset(self._versions.in_use())

    def _failed_versions(self) -> frozenset[int]:
        return frozenset(self._versions.failed())

    def _make_room(self, view: MirrorView, selected: frozenset[int], incoming: int | None) -> None:
        for version in to_evict(view, selected, incoming):
            self._remove(version, "the cache is above --model_cache_bytes")

    def _remove(self, version: int, reason: str) -> None:
        remove_version(self._directory, version)
        self._log("store_copy_removed", version=version, reason=reason)
        self._versions.files_changed()

    def _copy(self, version: int, name: str) -> None:
        """Copies for one period.

        A complete copy is checked, its objects are listed again, and it is renamed in.
        """
        item = self._listed[version]
        copy = VersionCopy(
            self._directory,
            version,
            item.objects,
            store=self._store,
            name=name,
            experience=self._experience,
            copied=self._copied_files(),
        )
        try:
            if not self._advance(copy, item):
                return
            again = listed(item, self._store.objects(name), self._clock.now_ns())
            self._listed[version] = again
            if contents(again.objects) != contents(item.objects):
                return
            linked_bytes = copy.linked_bytes()
            published = copy.publish(
                lambda directory: self._checked(directory, again),
                lambda: version in self._in_use() - self._failed_versions(),
            )
            if published is None:
                return
        except (StoreError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 (any error of the check is why it is refused)
            reason = from_exception(error).message or type(error).__name__
            now_ns = self._clock.now_ns()
            self._listed[version] = replace(
                self._listed[version], refusal=reason, refused_at_ns=now_ns
            )
            return
        self._log(
            "store_copy_complete",
            version=version,
            bytes=total_bytes(item.objects),
            linked_bytes=linked_bytes,
        )
        self._versions.files_changed()

    def _copied_files(self) -> Mapping[tuple[str, int], Path]:
        """A file of each content that is in the cache already."""
        local, _ = local_versions(self._directory)
        return {
            content: self._directory / str(version) / path
            for content, (version, path) in copied_files(local).items()
        }

    def _advance(self, copy: VersionCopy, item: RemoteVersion) -> bool:
        """Copies on for one period. Raises what the copy raises."""
        until_ns = self._clock.now_ns() + round(self._settings.period_seconds * NS_PER_SECOND)
        try:
            return copy.advance(lambda: self._is_stopping or self._clock.now_ns() >= until_ns)
        except StoreError as error:
            if not (item.refusal or self._experience.is_stuck):
                raise
            # The store lists the version but does not give it. It rests, so that other versions are copied.
            raise DataLoss(error.message) from None

    def _checked(self, directory: str, item: RemoteVersion) -> Sequence[str]:
        missing_assets = self._check(directory)
        unchanged_ns = self._clock.now_ns() - item.unchanged_since_ns
        if unchanged_ns < self._settings.missing_asset_wait_seconds * NS_PER_SECOND:
            raise_if_incomplete(missing_assets)
        return missing_assets

    def _take_lock(self) -> bool:
        """Takes the directory for this process, which alone may write there; False if another one has it."""
        if self._lock_descriptor is not None:
            return True
        parent = self._directory.parent
        parent.mkdir(parents=True, exist_ok=True)
        # Lies beside the directory, which must not exist before the first look has succeeded.
        path = parent / f".{self._directory.name}{_LOCK_NAME}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        try:
            remove_leftovers(self._directory)
        except OSError:
            os.close(descriptor)
            raise
        self._lock_descriptor = descriptor
        return True

    def _failed(self, note: Note) -> float:
        self._set_notes(frozenset({note}))
        self._failure_count += 1
        retry_seconds: float = _RETRY_SECONDS * 2 ** min(self._failure_count - 1, 10)
        return min(retry_seconds, self._settings.period_seconds)

    def _set_notes(self, notes: frozenset[Note]) -> None:
        with self._lock:
            # A look that outlives `stop` must not set notes, because they are the next mirror's now.
            if notes != self._notes and not self._is_stopping:
                self._notes = notes
                self._versions.set_store_notes(notes)

    def _log(self, event: str, **values: object) -> None:
        _log.info(event, model=self._model, base_path=self._url, **values)


_STORE_REMEDY = (
    "check the URL, the network and the credentials of the storage; the server tries again by itself, "
    "and the versions that it has keep serving"
)
_DISK_REMEDY = "make room on the disk, or give another --model_cache_directory; the server tries again by itself"


def _locked_note(directory: Path) -> Note:
    return Note.of(
        "model_cache_in_use",
        directory=str(directory),
        consequence="the copies of the other server are served, and this server fetches nothing",
        remedy="give each server its own --model_cache_directory",
    )


def local_versions(directory: Path) -> tuple[Mapping[int, Objects], frozenset[int]]:
    """The objects of each whole copy below `directory`, and the versions of interrupted copies.

    For a copy that is not whole the objects are (), so that it differs from every listing.
    """
    local = {int(name): whole_objects(directory / name) for name in _version_names(directory, "")}
    partial = _version_names(work_directory(directory), ".partial")
    return local, frozenset(int(name.partition(".")[0]) for name in partial)


def _version_names(directory: Path, suffix: str) -> Sequence[str]:
    pattern = re.compile(rf"(0|[1-9][0-9]*){re.escape(suffix)}", re.ASCII)
    names = os.listdir(directory) if directory.exists() else []
    return [name for name in names if pattern.fullmatch(name)]


class MirrorThread:
    """Runs the looks of one mirror on a thread of its own, so that a slow store delays no other model.

    The thread is a daemon, because a dead network can hold it.
    """

    def __init__(
        self,
        mirror: Mirror,
        name: str,
        *,
        background: BackgroundWork,
        clock: Clock,
    ) -> None:
        self._mirror = mirror
        self._background = background
        self._seconds = 0.0
        self._thread = PeriodicThread(
            f"mirror-{name}",
            self._turn,
            wait_seconds=lambda: self._seconds,
            failure_event="mirror_failed",
            at_start=background.enter,
            at_end=mirror.close,
            clock=clock,
        )

    def start(self) -> None:
        self._mirror.begin()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its read under way. Returns at once."""
        self._mirror.stop()
        self._thread.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits, after `stop`; returns False at the timeout."""
        return self._thread.join(timeout_seconds)

    def _turn(self) -> None:
        # Pauses, so that a bug in a look does not become a busy loop.
        self._seconds = _RETRY_SECONDS
        with self._background.watched(helpers=reading_threads):
            self._seconds = self._mirror.look()
