"""Reads and writes the blocked versions on disk, while no server runs."""

from collections.abc import Mapping
from pathlib import Path

from serving.base.errors import DataLoss
from serving.core.blocked_versions import BlockedVersion, BlockedVersions
from serving.manager.blocked_version_rows import (
    FILE_NAME,
    read_blocked_versions,
    write_blocked_versions,
)
from serving.supervisor.crash_page import MarkedVersion


class BlockStore:
    """The file of blocked versions in the state directory. The server reads the file at its start.

    Call no method while the server runs, because only the server may use the directory then.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def read(self) -> Mapping[str, BlockedVersions]:
        """Reads the blocked versions by model. Raises OSError or DataLoss."""
        return read_blocked_versions(self._path)

    def add(self, blocks: Mapping[MarkedVersion, BlockedVersion]) -> str:
        """Adds `blocks` to the file. Returns the reason if they cannot be written, and "" otherwise."""
        try:
            changed = dict(self.read())
            for marked, block in blocks.items():
                changed[marked.name] = {**changed.get(marked.name, {}), marked.version: block}
            write_blocked_versions(self._path, changed)
        except (DataLoss, OSError) as error:
            return str(error)
        return ""
