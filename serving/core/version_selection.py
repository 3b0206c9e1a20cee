"""Version selection: which of the versions found should be loaded. Pure functions on values."""

from collections.abc import Collection
from dataclasses import dataclass

from serving.base.errors import InvalidConfig


@dataclass(frozen=True)
class Selected:
    """`versions` to aspire, ascending; `missing` were asked for and not found, ascending."""

    versions: tuple[int, ...]
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Latest:
    """The `version_count` numerically highest versions; InvalidConfig below 1."""

    version_count: int = 1

    def __post_init__(self) -> None:
        if self.version_count < 1:
            raise InvalidConfig(
                f"version selection latest: num_versions is {self.version_count}; give 1 or more"
            )

    def select(self, found: Collection[int]) -> Selected:
        """See `VersionSelection`."""
        return Selected(tuple(sorted(set(found))[-self.version_count :]))

    def __str__(self) -> str:
        return f"latest {self.version_count}"


@dataclass(frozen=True)
class All:
    """Every version."""

    def select(self, found: Collection[int]) -> Selected:
        """See `VersionSelection`."""
        return Selected(tuple(sorted(set(found))))

    def __str__(self) -> str:
        return "all"


@dataclass(frozen=True)
class Specific:
    """These versions and no others; none at all unloads every version, as in TensorFlow Serving."""

    versions: frozenset[int]

    def select(self, found: Collection[int]) -> Selected:
        """See `VersionSelection`."""
        present = self.versions.intersection(found)
        return Selected(tuple(sorted(present)), tuple(sorted(self.versions - present)))

    def __str__(self) -> str:
        return f"specific {', '.join(map(str, sorted(self.versions))) or '(none)'}"


# Each has `select(found) -> Selected`: pure, and the same for any order of `found`; `str` is for
# people.
VersionSelection = Latest | All | Specific


def select_unblocked(
    selection: VersionSelection, found: Collection[int], blocked: Collection[int]
) -> Selected:
    """What `selection` selects where the versions `blocked`, rolled back by somebody, do not exist.

    They are not missing either.
    """
    selected = selection.select(set(found) - set(blocked))
    missing = tuple(version for version in selected.missing if version not in blocked)
    return Selected(selected.versions, missing)
