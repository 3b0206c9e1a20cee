"""The files that one load reads: a version's graph, variables and assets must be of one export."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.base.errors import Unavailable
from serving.base.fingerprint import Fingerprint, fingerprint
from serving.core.servable import ServableId

_READ_FILES = ("saved_model.pb", "saved_model.pbtxt")
_READ_DIRECTORIES = ("variables/", "assets/")


@contextmanager
def unchanged_files(servable_id: ServableId, directory: Path) -> Iterator[None]:
    """Raises Unavailable after the block if files that a load reads have changed meanwhile.

    Otherwise a load could take its graph from one export and its variables from another: when a link on the path
    is switched, or a version is replaced in place. Such a load is tried again. A file of warm-up requests may come
    at any time.
    """
    before = _read_files(directory)
    yield
    if not _read_files(directory).is_as(before):
        raise Unavailable(
            f"{servable_id}: files in {directory} changed during the load; "
            "drop a version by one move, under a number of its own"
        )


def _read_files(directory: Path) -> Fingerprint:
    """The fingerprint of what a load reads; empty if the directory is gone."""
    seen = Fingerprint(())
    with suppress(OSError):
        seen = fingerprint(str(directory))
    return Fingerprint(tuple(entry for entry in seen.entries if _is_read(entry[0])))


def _is_read(path: str) -> bool:
    return path in _READ_FILES or path.startswith(_READ_DIRECTORIES)
