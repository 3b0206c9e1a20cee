"""The blocked versions on disk, which the supervisor changes while the server is down."""

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
    """Reads and writes the file in the state directory that the server reads at its start.

    The server holds the directory's lock while it lives, so call no method during that time.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def read(self) -> Mapping[str, BlockedVersions]:
        """Reads the blocked versions by model. Raises OSError or DataLoss."""
        return read_blocked_versions(self._path)

    def add(self, blocks: Mapping[MarkedVersion, BlockedVersion]) -> str:
        """Adds `blocks` to the file; returns "" or the reason why they are not on disk."""
        try:
            changed = dict(self.read())
            for marked, block in blocks.items():
                changed[marked.name] = {**changed.get(marked.name, {}), marked.version: block}
            write_blocked_versions(self._path, changed)
        except (DataLoss, OSError) as error:
            return str(error)
        return ""
