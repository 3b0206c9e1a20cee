"""Notes: warnings and remarks that a source reports beside the versions of a model."""

from collections.abc import Collection
from dataclasses import dataclass

from serving.base.name_text import encodable


@dataclass(frozen=True)
class Note:
    """A remark for operators. It is logged once: only if the last poll did not have the same note."""

    event: str
    level: str = "warning"
    values: tuple[tuple[str, object], ...] = ()

    @classmethod
    def of(cls, event: str, level: str = "warning", /, **values: object) -> "Note":
        """A note with `values` as the log line's key-values."""
        shown = (
            (key, encodable(value) if isinstance(value, str) else value)
            for key, value in values.items()
        )
        return cls(event, level, tuple(shown))


OTHER_NAME_COUNT_MAX = 3
"""The number of names listed: of directories that are not versions, and of missing assets."""


def only_blocked_note(versions: Collection[int]) -> Note:
    """The note for a base path whose only versions are blocked, as after a restart.

    The note does not decide which of them serves: that is `BlockedState.find_fallback`.
    """
    return Note.of(
        "only_blocked_versions_found",
        versions=tuple(sorted(versions)),
        remedy="drop another version, or unblock one of these: millpond allow",
    )


def grant_awaited_note(versions: tuple[int, ...]) -> Note:
    """The note for a member of a fleet that has found versions and was granted none of them."""
    return Note.of(
        "grant_awaited",
        versions=versions,
        reason="the fleet's coordinator has granted none of them",
        remedy="start it (millpond fleet start), or start this server without --fleet_member",
    )


def overwritten_note(version: int) -> Note:
    return Note.of(
        "live_version_overwritten", version=version, remedy="drop other files under a new version"
    )


def asset_missing_note(version: int, paths: Collection[str]) -> Note:
    return Note.of(
        "asset_missing",
        version=version,
        files=some_of(paths),
        remedy="drop the whole export under a new version; a graph that reads such a file fails",
    )


def some_of(paths: Collection[str]) -> str:
    more_count = len(paths) - OTHER_NAME_COUNT_MAX
    more = f" and {more_count} more" if more_count > 0 else ""
    return ", ".join([*paths][:OTHER_NAME_COUNT_MAX]) + more
