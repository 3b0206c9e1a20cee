"""The blocked versions of one stream: a value, and the rules on it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from serving.core.blocked_versions import BlockedBy, BlockedVersion, BlockedVersions, crashed_of


@dataclass(frozen=True)
class BlockedState:
    """The blocked versions of a stream, and the version of them that still serves as the fallback.

    A version is *rolled back* if a person, a canary's rule or a crash blocked it. No other block replaces such a
    block, because only an operator removes it.
    """

    by_version: BlockedVersions = field(default_factory=dict)
    # A rolled back version that serves because no other version loads.
    fallback: int | None = None

    @cached_property
    def versions(self) -> frozenset[int]:
        """All blocked versions. One of them is aspired only as the fallback, or if no other version is left (see
        `StreamState.effective_aspired`).
        """
        return frozenset(self.by_version)

    @property
    def rolled_back(self) -> BlockedVersions:
        """The blocks that only an operator removes."""
        return {key: block for key, block in self.by_version.items() if block.needs_operator}

    @property
    def kept(self) -> BlockedVersions:
        """The blocks that outlive the process."""
        return {key: block for key, block in self.by_version.items() if block.is_kept}

    @cached_property
    def crashed(self) -> frozenset[int]:
        """The versions that have crashed an earlier process."""
        return frozenset(crashed_of(self.by_version))

    @property
    def refused(self) -> frozenset[int]:
        """The versions that gates have refused."""
        return frozenset(key for key, item in self.by_version.items() if item.by is BlockedBy.GATE)

    @cached_property
    def left_out(self) -> frozenset[int]:
        """The blocked versions without the fallback. A source leaves them out."""
        return self.versions - {self.fallback}

    def with_fallback(self, version: int | None) -> "BlockedState":
        return self if version == self.fallback else replace(self, fallback=version)

    def with_block(self, versions: Iterable[int], block: BlockedVersion) -> "BlockedState":
        """Adds `block` for each of `versions`."""
        blocks = {**self.by_version, **dict.fromkeys(versions, block), **self.rolled_back}
        return replace(self, by_version=blocks)

    def without(self, version: int) -> "BlockedState":
        """Unblocks `version`."""
        blocks = {key: block for key, block in self.by_version.items() if key != version}
        return replace(self, by_version=blocks)

    def find_fallback(
        self,
        found: Collection[int],
        ready: Collection[int],
        failed: Collection[int],
        now_wall_ns: int = 0,
    ) -> int | None:
        """Finds the rolled back version among `found` that must still serve; None if no version must.

        A rolled back version serves only if every version on disk (`found`) is blocked or has `failed`,
        every one in memory (`ready`) is blocked, and its own load has not failed. Among several such
        versions, the one that answered last is returned: the lowest of those that were blocked last. A
        version that crashed the server waits (`BlockedVersion.wait_ns`), unless it is ready.
        """
        if ({*found} - {*failed} | {*ready}) - self.versions:
            return None
        candidates = [
            (block.since_wall_ns, -version)
            for version, block in self.rolled_back.items()
            if version in found
            and version not in failed
            and (version in ready or not block.wait_ns(now_wall_ns))
        ]
        return -max(candidates)[1] if candidates else None

    def wait_ns(self, now_wall_ns: int) -> int | None:
        """The time until the next version that crashed may serve as the fallback.

        Returns None if no version waits for that, or if a fallback serves.
        """
        waits = [block.wait_ns(now_wall_ns) for block in self.by_version.values()]
        return min(filter(None, waits), default=None) if self.fallback is None else None

    def unblocked_of(self, versions: Iterable[int]) -> list[int]:
        """The versions of `versions` that are not blocked, in the same order."""
        return [version for version in versions if version not in self.by_version]

    def blocked_of(self, versions: Iterable[int]) -> list[int]:
        """The versions of `versions` that are blocked, in the same order."""
        return [version for version in versions if version in self.by_version]

    def __contains__(self, version: object) -> bool:
        return version in self.by_version

    def __bool__(self) -> bool:
        return bool(self.by_version)
