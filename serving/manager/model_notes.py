"""The reasons why requests find no version, which the data plane adds to NOT_FOUND.

`model_notes` derives the notes of a model, which also decide if a request may wait. `NotePublisher`
passes them to the serving map when they change. A request reads them only after a failed look-up.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import MappingProxyType

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.core.blocked_versions import BlockedVersion, BlockedVersions
from serving.core.servable import AVAILABLE, END, LOADING, START, ServableStatus
from serving.data_plane.servables import ServingMap
from serving.source.notes import Note

VERSION_COUNT_MAX = 32
"""The highest versions of a model that keep a reason of their own. Clients request recent versions."""

_NOT_READ = "its base path has not been read yet"


@dataclass(frozen=True, kw_only=True)
class ModelNotes:
    """The reasons why requests for one model find no version.

    Requests wait for `awaited_versions`, which are loading while the model has no version that
    answers. If a version answers, `reason` is "". Requests to a model that `is_refused` do not wait.
    """

    reason: str = ""
    is_awaited: bool = False
    is_refused: bool = False
    version_reasons: Mapping[int, str] = field(default_factory=dict)
    awaited_versions: tuple[int, ...] = ()


def model_notes(
    statuses: Sequence[ServableStatus],
    notes: Collection[Note] | None,
    aspired: Collection[int] = (),
    crashed: BlockedVersions = MappingProxyType({}),
) -> ModelNotes:
    """Derives the notes of a model from its versions, ascending, and the notes of its source. Pure.

    `crashed` are the versions that have crashed an earlier process. If the source finds no other versions,
    requests for the model are refused until a crashed version is tried again.

    `notes` is None until the source has read the base path; requests wait for that. `aspired` are the
    versions that the source aspires. If a version has no status, it is still on its way to the manager.
    """
    if notes is None and not statuses:
        return ModelNotes(reason=_NOT_READ, is_awaited=True)
    coming = sorted({*aspired} - {status.id.version for status in statuses})
    by_version = {
        **{version: _crash_reason(version, block) for version, block in crashed.items()},
        **_note_reasons(notes or ()),
        **{version: f"version {version} is loading, stage wait" for version in coming},
        **_status_reasons(statuses),
    }
    kept = dict(sorted(by_version.items())[-VERSION_COUNT_MAX:])
    if any(status.state is AVAILABLE for status in statuses):
        return ModelNotes(version_reasons=kept)
    awaited = [status.id.version for status in statuses if _is_loading(status)]
    awaited += [_version_of(note) for note in notes or () if note.event == "version_settling"]
    awaited += coming
    is_refused = not awaited and bool(crashed.keys() & _only_blocked(notes or ()))
    return ModelNotes(
        reason=_model_reason(by_version, awaited, notes or ()),
        is_awaited=bool(awaited),
        is_refused=is_refused,
        version_reasons=kept,
        awaited_versions=tuple(sorted(set(awaited) & kept.keys())),
    )


def _model_reason(
    by_version: Mapping[int, str], awaited: Sequence[int], notes: Collection[Note]
) -> str:
    if awaited:
        return by_version[max(awaited)]
    if by_version:
        return by_version[max(by_version)]
    return "; ".join(sorted(filter(None, map(_base_path_reason, notes))))


# The reasons of notes on a base path as a whole, with the note's own reason.
_BASE_PATH_REASONS = {
    "no_version_in_base_path": "base path holds no version directory",
    "base_path_unreadable": "base path cannot be read: {reason}",
    "store_not_read": "its object storage has not been read yet",
    "store_unreadable": "object storage cannot be read: {reason}",
    "no_version_in_store": "its base path in object storage holds no version directory",
    "model_cache_unwritable": "the cache of models cannot be written: {reason}",
}


def _crash_reason(version: int, block: BlockedVersion) -> str:
    at = datetime.fromtimestamp(block.not_before_wall_ns // NS_PER_SECOND, timezone.utc)
    return (
        f"version {version} is blocked ({block.reason}), and is tried again from {at:%H:%M:%SZ} on"
    )


def _only_blocked(notes: Collection[Note]) -> set[int]:
    """The versions on disk if all of them are blocked."""
    found: set[int] = set()
    for note in notes:
        if note.event == "only_blocked_versions_found":
            versions = dict(note.values)["versions"]
            found.update(versions if isinstance(versions, tuple) else ())
    return found


def _base_path_reason(note: Note) -> str:
    reason = _BASE_PATH_REASONS.get(note.event, "")
    return reason.replace("{reason}", str(dict(note.values).get("reason")))


def _status_reasons(statuses: Sequence[ServableStatus]) -> dict[int, str]:
    return {
        status.id.version: _status_reason(status)
        for status in statuses
        if status.state is not AVAILABLE
    }


def _status_reason(status: ServableStatus) -> str:
    version = f"version {status.id.version}"
    if status.health.code is StatusCode.CANCELLED:
        return f"{version} was not loaded: {status.health.message}"
    if _is_loading(status):
        return f"{version} is loading{_stage_text(status)}"
    if status.health.code is not StatusCode.OK:
        again = "" if status.state is END else " and is tried again"
        return f"{version} failed{again}: {status.health.message or status.health.code.name}"
    return f"{version} was unloaded" if status.state is END else f"{version} is being unloaded"


def _stage_text(status: ServableStatus) -> str:
    if status.stage is not None:
        return f", stage {status.stage.value}"
    if status.is_given_room:
        return f", stage wait: it {status.health.message}"
    return ", stage wait" if status.state is START else ""


def _is_loading(status: ServableStatus) -> bool:
    is_sound = status.health.code is StatusCode.OK or status.is_given_room
    return status.state in (START, LOADING) and is_sound


def _note_reasons(notes: Collection[Note]) -> dict[int, str]:
    reasons = {}
    for note in notes:
        reason = dict(note.values).get("reason")
        if note.event == "version_settling":
            reasons[_version_of(note)] = (
                f"version {_version_of(note)} is loading, stage settle: its files changed just now"
            )
        elif note.event == "version_incomplete":
            reasons[_version_of(note)] = f"version {_version_of(note)} is being copied: {reason}"
        elif note.event == "version_fetching":
            reasons[_version_of(note)] = f"version {_version_of(note)} is being fetched: {reason}"
        elif note.event == "version_unreadable":
            reasons[_version_of(note)] = f"version {_version_of(note)} cannot be read: {reason}"
    return reasons


def _version_of(note: Note) -> int:
    return int(str(dict(note.values)["version"]))


class NotePublisher:
    """Keeps the notes of the serving map up to date. Any thread. `versions` is `StateMonitor.versions`.

    A source may call `set_source_notes` with its own lock held, so no method here calls a source.
    """

    def __init__(
        self,
        serving_map: ServingMap,
        versions: Callable[[str], Sequence[ServableStatus]],
        crashed: Mapping[str, BlockedVersions] = MappingProxyType({}),
    ) -> None:
        """`crashed` are the versions of each model that have crashed an earlier process."""
        self._map = serving_map
        self._refused_listeners: list[Callable[[], None]] = []
        self._listeners: list[Callable[[str], None]] = []
        self._versions = versions
        # Held while publishing, so that older notes never replace newer ones.
        self._lock = threading.Lock()
        self._names: frozenset[str] = frozenset()
        self._source_notes: dict[str, tuple[Collection[Note], Collection[int]]] = {}
        self._published: dict[str, ModelNotes] = {}
        # Replaced as a whole, because it is read at each change of a version.
        self._refused: frozenset[str] = frozenset()
        self._crashed = crashed

    def add_refused_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when `refused` has changed, from now on.

        It is called with locks held, so it must return at once. Call this before the first model.
        """
        self._refused_listeners.append(listener)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with the name of each model whose source has other notes, from now on.

        A source may have its own lock held meanwhile. Call this before the first model.
        """
        self._listeners.append(listener)

    def source_notes(self, name: str) -> Collection[Note]:
        """The last notes of a model's source; empty before the first ones."""
        return self._source_notes.get(name, ((), ()))[0]

    def set_models(self, names: Collection[str]) -> None:
        """Publishes notes of these models from now on, and of no others."""
        with self._lock:
            gone, self._names = self._names - frozenset(names), frozenset(names)
            for name in gone:
                self._source_notes.pop(name, None)
            for name in gone | self._names:
                self._publish(name)

    @property
    def refused(self) -> frozenset[str]:
        """The models whose only versions have crashed the server and wait for their next try."""
        return self._refused

    def set_source_notes(
        self, name: str, notes: Collection[Note], aspired: Collection[int] = ()
    ) -> None:
        """Replaces the notes of a source on its base path, and the versions that it aspires."""
        with self._lock:
            is_new = self._source_notes.get(name, ((), ()))[0] != notes
            self._source_notes[name] = (notes, aspired)
            self._publish(name)
        for listener in self._listeners if is_new else ():
            listener(name)

    def on_status(self, status: ServableStatus) -> None:
        """Publishes the notes of a model after a change of a version's state or stage."""
        with self._lock:
            self._publish(status.id.name)

    def _publish(self, name: str) -> None:
        notes = ModelNotes()
        if name in self._names:
            found, aspired = self._source_notes.get(name, (None, ()))
            notes = model_notes(self._versions(name), found, aspired, self._crashed.get(name, {}))
        before = self._published.get(name, ModelNotes())
        if notes == before:
            return
        self._published[name] = notes
        self._map.set_notes(
            name,
            reason=notes.reason,
            is_awaited=notes.is_awaited,
            is_refused=notes.is_refused,
            version_reasons=notes.version_reasons,
            awaited_versions=notes.awaited_versions,
        )
        if notes == ModelNotes():
            del self._published[name]
        if notes.is_refused != before.is_refused:
            self._refused ^= {name}
            for listener in self._refused_listeners:
                listener()
