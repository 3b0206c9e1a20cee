"""Version selection: chooses the found versions that should be loaded. Pure functions on values."""

from collections.abc import Collection
from dataclasses import dataclass

from serving.base.errors import InvalidConfig


@dataclass(frozen=True)
class Selected:
    """The `versions` to aspire, and the `missing` versions that were requested and not found.

    Both ascend.
    """

    versions: tuple[int, ...]
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Latest:
    """The `version_count` numerically highest versions. Raises InvalidConfig for a count below 1."""

    version_count: int = 1

    def __post_init__(self) -> None:
        if self.version_count < 1:
            raise InvalidConfig(
                f"version selection latest: num_versions is {self.version_count}; give 1 or more"
            )

    def select(self, found: Collection[int]) -> Selected:
        return Selected(tuple(sorted(set(found))[-self.version_count :]))

    def __str__(self) -> str:
        return f"latest {self.version_count}"


@dataclass(frozen=True)
class All:
    """Every version."""

    def select(self, found: Collection[int]) -> Selected:
        return Selected(tuple(sorted(set(found))))

    def __str__(self) -> str:
        return "all"


@dataclass(frozen=True)
class Specific:
    """These versions and no others. An empty set unloads every version, as in TensorFlow Serving."""

    versions: frozenset[int]

    def select(self, found: Collection[int]) -> Selected:
        present = self.versions.intersection(found)
        return Selected(tuple(sorted(present)), tuple(sorted(self.versions - present)))

    def __str__(self) -> str:
        return f"specific {', '.join(map(str, sorted(self.versions))) or '(none)'}"


NOTHING = Specific(frozenset())
"""No version: the model is unloaded."""

# Each class has `select(found) -> Selected`, which is pure and independent of the order of `found`.
# Its `str` is for people.
VersionSelection = Latest | All | Specific


def select_unblocked(
    selection: VersionSelection, found: Collection[int], blocked: Collection[int]
) -> Selected:
    """Selects as if the versions in `blocked` did not exist. They do not count as missing either."""
    selected = selection.select(set(found) - set(blocked))
    missing = tuple(version for version in selected.missing if version not in blocked)
    return Selected(selected.versions, missing)
