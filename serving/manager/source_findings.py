"""Connects the sources with the manager: findings go one way, the states of versions the other."""

from collections.abc import Collection, Mapping, Sequence

from serving.base.fingerprint import Fingerprint
from serving.core.servable import AspiredVersion
from serving.manager.manager import AspiredVersionsManager
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.source.file_system_source import SourceListener
from serving.source.notes import Note


class SourceFindings(SourceListener):
    """Passes the findings of sources to the manager, the state monitor and the note publisher."""

    def __init__(
        self, manager: AspiredVersionsManager, monitor: StateMonitor, notes: NotePublisher
    ) -> None:
        self._manager = manager
        self._monitor = monitor
        self._notes = notes

    def set_aspired(
        self, name: str, versions: Sequence[AspiredVersion], left_out: frozenset[int]
    ) -> None:
        self._manager.set_aspired(name, versions, left_out)

    def found_anew(self, name: str, version: int, files: Fingerprint | None) -> None:
        self._manager.found_anew(name, version, files)

    def versions_seen(self, name: str, on_disk: frozenset[int], watched: frozenset[int]) -> None:
        self._monitor.versions_seen(name, on_disk, watched)

    def set_notes(self, name: str, notes: frozenset[Note], aspired: frozenset[int]) -> None:
        self._notes.set_source_notes(name, notes, aspired)


class SourceModelStatus:
    """Answers the sources' questions from the state monitor and the streams."""

    def __init__(self, monitor: StateMonitor, streams: Streams) -> None:
        self._monitor = monitor
        self._streams = streams

    def failed_versions(self, name: str) -> Collection[int]:
        return self._monitor.failed_versions(name)

    def lost_versions(self, name: str) -> Mapping[int, int]:
        return self._monitor.lost_versions(name)

    def available_versions(self, name: str) -> Collection[int]:
        return self._monitor.available_versions(name)

    def labels_in_effect(self, name: str) -> Mapping[str, int]:
        return self._streams.labels(name)
