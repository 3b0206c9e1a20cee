"""The values of a store: the objects of a version, and the protocol that reads them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from serving.base.errors import Unavailable
from serving.source.listing import Child

JOURNAL_NAME = ".millpond-copy.json"
"""The file of a copied version that lists its objects. A store's own object of that name is left out."""

_GRAPH_NAMES = frozenset({"saved_model.pb", "saved_model.pbtxt"})

# The ETag of S3 for an object that was uploaded in parts: the MD5 of the MD5s of the parts, and their count.
_DIGEST_OF_PARTS = re.compile(r"[0-9a-f]{32}-[0-9]+")


class StoreError(Unavailable):
    """The store did not answer, or refused. The message has no credentials."""


@dataclass(frozen=True, order=True)
class StoredObject:
    """One object below a version's directory.

    `tag` changes with the content; "" if the store has none. `modified_ns` is on the store's wall
    clock; 0 if it is unknown. `digest` is "ALGORITHM:HEX" of the content, or "". If `is_digest_sure`
    is False, the digest may be of an encrypted content: S3 has such ETags.
    """

    path: str
    size: int
    tag: str = ""
    modified_ns: int = 0
    digest: str = ""
    is_digest_sure: bool = True

    @property
    def content(self) -> tuple[str, int, str]:
        """Equal for two objects of the same content, as far as the store shows it."""
        return self.path, self.size, self.tag

    @property
    def file_content(self) -> tuple[str, int] | None:
        """Equal for two files of the same bytes, wherever they are in the store; None if it is unknown.

        An encrypted object of S3 has an ETag that is no digest, and that no other object has.
        """
        digest = self.digest or (self.tag if _DIGEST_OF_PARTS.fullmatch(self.tag) else "")
        return (digest, self.size) if digest else None


Objects = tuple[StoredObject, ...]
"""The objects of one version, in the order of their paths."""


class ObjectStore(Protocol):
    """One base path in object storage. Each method raises StoreError."""

    def children(self) -> Sequence[Child]:
        """Lists what is right below the base path; empty if nothing is."""
        ...

    def objects(self, name: str) -> Objects:
        """Lists all objects below the directory `name`, in the order of their paths."""
        ...

    def read(self, name: str, path: str, offset: int, size: int) -> bytes:
        """Reads up to `size` bytes of an object, from `offset` on."""
        ...


def contents(objects: Objects) -> tuple[tuple[str, int, str], ...]:
    """The contents of the objects, for a comparison of two listings."""
    return tuple(item.content for item in objects)


def total_bytes(objects: Objects) -> int:
    return sum(item.size for item in objects)


def distinct_bytes(versions: Iterable[Objects]) -> int:
    """The bytes on the disk of these versions, of which files with the same bytes are linked."""
    files = [item for objects in versions for item in objects]
    shared = {item.file_content for item in files} - {None}
    own_bytes = sum(item.size for item in files if item.file_content is None)
    return own_bytes + sum(content[1] for content in shared if content is not None)


def fault_of_objects(objects: Objects) -> str:
    """The reason why the objects cannot be a version's files; "" if they can."""
    if not any(item.path in _GRAPH_NAMES for item in objects):
        return "saved_model.pb is not there yet"
    paths = {item.path for item in objects}
    for path in paths:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in path or not path.isprintable():
            return f"the object {path!r} has a name that is no path of a file"
        if any(str(parent) in paths for parent in PurePosixPath(path).parents):
            return f"the object {path!r} is below an object that is a file"
    return ""
