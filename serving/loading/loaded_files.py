"""The files that one load reads: a version's graph, variables and assets must be of one export."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.base.errors import Cancelled, Unavailable
from serving.base.fingerprint import Entry, Fingerprint, fingerprint, stamp_of
from serving.core.servable import ServableId

_READ_FILES = ("saved_model.pb", "saved_model.pbtxt")
_READ_DIRECTORIES = ("variables", "assets")


@contextmanager
def unchanged_files(servable_id: ServableId, directory: Path) -> Iterator[None]:
    """Raises Unavailable after the block, or for its error, if files that a load reads have changed meanwhile.

    Otherwise a load could take its graph from one export and its variables from another: when a link on the path
    is switched, or a version is replaced in place. Such a load is tried again, also if the mixture failed it: by a
    key or a checksum that one export does not have. A file of warm-up requests may come
    at any time.
    """
    before = _read_files(directory)
    failure: Exception | None = None
    try:
        yield
    except Cancelled:
        raise
    except Exception as error:  # noqa: BLE001 (of the load, and raised again)
        failure = error
    after = _read_files(directory)
    # The error of a load whose files are gone says so.
    is_gone = failure is not None and not after.entries
    if not is_gone and not after.is_as(before):
        # The data plane's errors are a code and a message.
        found = f", which failed ({failure.args[-1]})" if failure and failure.args else ""
        raise Unavailable(
            f"{servable_id}: files in {directory} changed during the load{found}; "
            "drop a version by one move, under a number of its own"
        ) from failure
    if failure is not None:
        raise failure


def _read_files(directory: Path) -> Fingerprint:
    """The fingerprint of what a load reads; empty if the directory is gone. A directory may be a link."""
    entries: list[Entry] = []
    for name in _READ_FILES:
        with suppress(OSError):
            status = (directory / name).stat()
            entries.append((name, status.st_size, status.st_mtime_ns, stamp_of(status)))
    for name in _READ_DIRECTORIES:
        with suppress(OSError):
            entries += (
                (f"{name}/{path}", size_bytes, mtime_ns, stamp)
                for path, size_bytes, mtime_ns, stamp in fingerprint(str(directory / name)).entries
            )
    return Fingerprint(tuple(entries))
