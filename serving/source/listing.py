"""Names and listing: which folders below a base path are versions."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

from serving.source.notes import (
    OTHER_NAME_COUNT_MAX,
    Note,
)

VERSION_MAX = 2**63 - 1
"""Versions are int64 on the wire."""


_VERSION_NAME = re.compile(r"[0-9]+", re.ASCII)


_SAVED_MODEL_NAMES = frozenset({"saved_model.pb", "saved_model.pbtxt"})


FilesCheck = Callable[[str], Sequence[str]]
"""Returns the missing assets of a version's directory. Raises if the version is incomplete."""


@dataclass(frozen=True)
class Child:
    """One entry of a base path."""

    name: str
    is_directory: bool
    is_link: bool = False


@dataclass(frozen=True)
class Listing:
    """The entries of a base path; `error` is the reason if it could not be read."""

    children: tuple[Child, ...] = ()
    error: str = ""

    @property
    def links(self) -> tuple[str, ...]:
        """The names of the entries that are symbolic links."""
        return tuple(child.name for child in self.children if child.is_link)


def version_directories(
    listing: Listing, known: Mapping[int, str] = MappingProxyType({}), base_path: str = ""
) -> tuple[dict[int, str], frozenset[Note]]:
    """The directory name of each version in `listing`, and notes on unusual entries.

    A version is a directory whose name is a decimal int64. If several names spell the same number
    ("1", "001"), the name in `known` is kept while it exists; otherwise the shortest is taken.
    Names that are not numbers are ignored without a note: renaming a version withdraws it.
    """
    spellings: dict[int, list[str]] = {}
    notes = set()
    for child in listing.children:
        if not _VERSION_NAME.fullmatch(child.name):
            continue
        if not child.is_directory:
            remedy = "let the link lead to a directory" if child.is_link else "use a directory"
            notes.add(Note.of("numeric_file_ignored", name=child.name, remedy=remedy))
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
    """Yields a note if there are only other names: "v1" for a version, or a wrong base path.

    The base path may be the directory above the model's.
    """
    # Names like ".8" are copies that are under way.
    names = [item.name for item in listing.children if item.is_directory and item.name[:1] != "."]
    if names:
        yield Note.of(
            "no_directory_is_named_by_a_number",
            "info",
            directories=", ".join(names[:OTHER_NAME_COUNT_MAX]),
            remedy=f"name a version's directory by its number, like {PurePath(base_path) / '1'}, "
            "or give the directory that holds such directories as the base path",
        )


def _base_path_is_version_note(base_path: str) -> Note:
    path = PurePath(base_path)
    if _VERSION_NAME.fullmatch(path.name):
        remedy = f"give {path.parent} as the base path: it holds version {path.name}"
    else:
        remedy = f"move its files into a version's directory, like {path / '1'}"
    return Note.of("base_path_is_a_version", remedy=remedy)
