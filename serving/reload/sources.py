"""Sources: finds the source of a model by the model's name."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from serving.core.version_selection import VersionSelection
from serving.source.notes import Note


class Source(Protocol):
    """`FileSystemSource`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def join(self, timeout_seconds: float) -> bool: ...
    def set_selection(self, selection: VersionSelection, labels: Mapping[str, int]) -> None: ...
    def set_blocked(self, versions: frozenset[int]) -> None: ...
    def set_granted(self, versions: frozenset[int]) -> None: ...
    def set_base_path(
        self, base_path: str, selection: VersionSelection, labels: Mapping[str, int]
    ) -> None: ...
    def notes(self) -> list[Note]: ...
    def found_versions(self) -> frozenset[int]: ...
    def selectable_versions(self) -> frozenset[int]: ...
    def awaited_base_path(self) -> str: ...
    def selected_among(self, versions: Collection[int]) -> frozenset[int]: ...
    def aspired_versions(self) -> frozenset[int]: ...
    def poll_soon(self) -> None: ...
    def set_store_notes(self, notes: frozenset[Note]) -> None: ...


class Sources:
    """The source of each served model. Any thread reads; one thread at a time changes it.

    It is made before the manager, which asks it for versions, and before `ServedModels`, which fills it.
    """

    def __init__(self) -> None:
        # Replaced as a whole, so that it can be read without a lock.
        self._by_name: Mapping[str, Source] = {}

    def of(self, name: str) -> Source | None:
        """The source of a model; None for a model that is not served."""
        return self._by_name.get(name)

    def all(self) -> Sequence[Source]:
        """The sources of all models, in the order in which the models were added."""
        return tuple(self._by_name.values())

    def add(self, name: str, source: Source) -> None:
        """Finds `source` by the model's name from now on."""
        self._by_name = {**self._by_name, name: source}

    def remove(self, name: str) -> None:
        """Finds no source of the model any more. Does nothing for a model that has none."""
        self._by_name = {key: item for key, item in self._by_name.items() if key != name}

    def selectable_versions(self, name: str) -> frozenset[int]:
        """The found versions that the model's version policy could select."""
        source = self.of(name)
        return source.selectable_versions() if source else frozenset()

    def awaited_base_path(self, name: str) -> str:
        """The model's base path if no version of it is found yet, while a version of the former one serves; else ""."""
        source = self.of(name)
        return source.awaited_base_path() if source else ""

    def set_blocked(self, name: str, versions: frozenset[int]) -> None:
        """Excludes `versions` from the selection of the model's source until the next call."""
        source = self.of(name)
        if source is not None:
            source.set_blocked(versions)

    def set_granted(self, name: str, versions: frozenset[int]) -> None:
        """Lets the model's source select only among `versions`, as a member of a fleet."""
        source = self.of(name)
        if source is not None:
            source.set_granted(versions)
