"""Glance: a look at a base path that costs one `fstat`, and tells if its entries may have changed."""

import os
from dataclasses import dataclass

from serving.base.clock import NS_PER_SECOND

MTIME_GRAIN_NS = 2 * NS_PER_SECOND
"""The coarsest step of a directory's mtime. An entry that comes within one step of a listing may leave the
mtime as it was, so that a listing counts only if the mtime was this old."""

Identity = tuple[tuple[int, ...], ...]


def glance(base_path: str, links: tuple[str, ...]) -> Identity | None:
    """The marks of a change of the directory, and of the places that its `links` lead to.

    None if the directory cannot be opened. It is opened because NFS asks its server only then.
    """
    try:
        descriptor = os.open(base_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        own = _identity(os.fstat(descriptor))
        return (own, *(_identity_of_link(name, descriptor) for name in links))
    finally:
        os.close(descriptor)


def _identity_of_link(name: str, directory: int) -> tuple[int, ...]:
    try:
        return _identity(os.stat(name, dir_fd=directory))
    except OSError:
        return ()


def _identity(status: os.stat_result) -> tuple[int, ...]:
    which = (status.st_dev, status.st_ino)
    return (*which, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True)
class Sight:
    """The look of a base path just before its last listing, which began at `listed_ns`.

    `identity` is what a glance at `links` returned, the same since `since_ns`. `is_dated` is False on file
    systems whose mtimes tell nothing.
    """

    identity: Identity
    links: tuple[str, ...]
    since_ns: int
    listed_ns: int
    is_dated: bool

    def has_entries_of(self, seen: Identity | None) -> bool:
        """True if a base path that is `seen` like this now still has the entries of the last listing."""
        return self.shows_changes and seen == self.identity

    @property
    def shows_changes(self) -> bool:
        """True if any entry that comes or goes after the listing changes the identity."""
        return self.is_dated and self.listed_ns - self.since_ns >= MTIME_GRAIN_NS

    @property
    def device(self) -> int:
        """The number of the disk."""
        return self.identity[0][0] if self.identity else 0


def after_listing(
    before: Sight | None,
    seen: Identity | None,
    links: tuple[str, ...],
    *,
    now_ns: int,
    is_dated: bool,
) -> Sight | None:
    """The sight after a listing that found `links`, and began at `now_ns` after a glance at `before.links`.

    None if the glance could not open the base path.
    """
    if seen is None:
        return None
    # A glance at other links is like no later glance, so that the next poll lists again.
    identity = seen if links == (before.links if before else ()) else ()
    is_same = before is not None and before.identity == identity
    since_ns = before.since_ns if before is not None and is_same else now_ns
    return Sight(identity, links, since_ns, now_ns, is_dated)
