"""Finds labels of versions that do not exist and are not about to load. Pure functions.

Such a label is not an error: its version may be dropped later. Until then the label waits, or keeps
its former version. A mistyped number or a forgotten version policy is the more frequent cause.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

NOT_FOUND = "it is not in the base path"
NOT_SELECTED = "the version policy does not load it"
ROLLED_BACK = "it is blocked"

NO_LABELS: Mapping[str, int] = MappingProxyType({})

REMEDIES = {
    NOT_FOUND: "drop that version or move the label",
    NOT_SELECTED: "name it in model_version_policy or move the label",
    ROLLED_BACK: "unblock it (millpond allow) or move the label",
}


@dataclass(frozen=True)
class AbsentTarget:
    """A `label` whose `version` will not load. `reason` is a key of REMEDIES."""

    label: str
    version: int
    reason: str

    @property
    def remedy(self) -> str:
        return REMEDIES[self.reason]


@dataclass(frozen=True, kw_only=True)
class KnownVersions:
    """The versions of one model, by what is known of them.

    `found` versions are on disk and complete, `unfinished` ones are not complete yet. `selected` versions
    are loaded, or are about to be loaded. `in_effect` holds the labels as requests see them.
    """

    found: Collection[int]
    selected: Collection[int]
    unfinished: Collection[int] = ()
    blocked: Collection[int] = ()
    in_effect: Mapping[str, int]


def absent_targets(labels: Mapping[str, int], known: KnownVersions) -> Iterator[AbsentTarget]:
    """Yields the labels whose versions will not load as things are, by name.

    Skips a label that leads to its version already, because a label keeps its version whatever the policy
    selects. Also skips a label whose version is still being copied.
    """
    for label, version in sorted(labels.items()):
        is_there = known.in_effect.get(label) == version
        if is_there or version in known.selected or version in known.unfinished:
            continue
        yield AbsentTarget(label, version, _reason(version, known))


def _reason(version: int, known: KnownVersions) -> str:
    if version in known.blocked:
        return ROLLED_BACK
    return NOT_SELECTED if version in known.found else NOT_FOUND
