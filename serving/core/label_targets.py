"""Label targets: labels of versions that are not there and not about to come. Pure functions.

Such a label is no error: its version may be dropped later, and until then it waits, or stays where
it was. But more often somebody has mistyped a number or forgot a version policy.
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
    """A `label` that waits for a `version` that does not come, for a `reason` of REMEDIES."""

    label: str
    version: int
    reason: str

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return REMEDIES[self.reason]


@dataclass(frozen=True, kw_only=True)
class KnownVersions:
    """What is known of one model's versions.

    `found` are on disk and complete, `unfinished` on disk and not complete yet, `selected` those
    that are, or are going to be, loaded; `in_effect` are the labels as requests see them.
    """

    found: Collection[int]
    selected: Collection[int]
    unfinished: Collection[int] = ()
    blocked: Collection[int] = ()
    in_effect: Mapping[str, int]


def absent_targets(labels: Mapping[str, int], known: KnownVersions) -> Iterator[AbsentTarget]:
    """The labels that will not lead to their versions as things are, by name.

    One that leads there already is none of them, whatever the policy selects: a label keeps its
    version. Nor is one of a version that is still being copied.
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
