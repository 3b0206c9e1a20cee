"""Notes: what a source reports of a model beside its versions."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """Something to tell people, once: it is logged where the poll before did not say the same."""

    event: str
    level: str = "warning"
    values: tuple[tuple[str, object], ...] = ()

    @classmethod
    def of(cls, event: str, level: str = "warning", /, **values: object) -> "Note":
        """A note with `values` as the log line's key-values."""
        return cls(event, level, tuple(values.items()))


OTHER_NAME_COUNT_MAX = 3
"""Of directories that are no versions, and of missing assets: as many are named."""


def only_blocked_note(versions: Collection[int]) -> Note:
    """After a restart nothing serves that could go on. Whether one of these has to is the manager's to
    say (`Stream.find_last_resort`).
    """
    return Note.of(
        "only_blocked_versions_found",
        versions=tuple(sorted(versions)),
        remedy="drop another version, or unblock one of these: millpond allow",
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
