"""ManagerListener: the events of a manager that other parts act on, and two queries to them."""

from collections.abc import Collection

from serving.core.blocked_versions import BlockedVersions

ROLLED_BACK = "rolled_back"
PROMOTED = "promoted"
"""The two ways in which a version becomes the default version without a load."""


class ManagerListener:
    """Base class with no-op methods. All are called on the control thread, so none may block."""

    def found_versions(self, name: str) -> Collection[int]:
        """The versions of a model on disk that its version policy would select."""
        del name
        return ()

    def awaited_base_path(self, name: str) -> str:
        """The model's base path if no version of it is found yet, while a version of the former one serves; else ""."""
        del name
        return ""

    def blocked_versions_changed(self, name: str, versions: frozenset[int]) -> None:
        """Takes the versions of a model that its source should leave out."""

    def keep_blocked_versions(self, name: str, blocked_versions: BlockedVersions) -> None:
        """Stores the versions of a model that stay blocked in the next process."""

    def default_version_changed(
        self, name: str, version: int, previous_version: int | None, how: str
    ) -> None:
        """Takes a change of a model's default version that needed no load.

        `how` is ROLLED_BACK or PROMOTED.
        """
