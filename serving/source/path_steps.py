"""Path steps: the directories and symbolic links that the kernel passes on its way along a path."""

import errno
import os
import stat
from collections import deque
from dataclasses import dataclass

LINK_COUNT_MAX = 40
"""The kernel follows no more links along one path; see path_resolution(7)."""


@dataclass(frozen=True)
class PathSteps:
    """The steps of a path to its `end`: the `directories` above the end, and the `links` on the way.

    No path in it leads over a link. The path leads elsewhere only after one of `directories` or `end` was
    moved or removed, one of `links` was replaced, or something was mounted.
    """

    end: str
    directories: frozenset[str]
    links: frozenset[str]

    @property
    def decisive_directories(self) -> frozenset[str]:
        """The directories whose file systems decide if a change is seen: those of the links, and the end."""
        return frozenset({self.end, *(os.path.dirname(link) for link in self.links)})


def path_steps(path: str) -> PathSteps:
    """Walks along `path`. Raises OSError if it leads nowhere or in a circle."""
    left, here = deque(os.path.join(os.getcwd(), path).split("/")), "/"
    directories, links = {here}, set[str]()
    count = 0
    while left:
        name = left.popleft()
        if name == "..":
            here = os.path.dirname(here)
        if name in ("", ".", ".."):
            continue
        step = os.path.join(here, name)
        if not stat.S_ISLNK(os.lstat(step).st_mode):
            here = step
            directories.add(here)
            continue
        count += 1
        if count > LINK_COUNT_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(step)
        links.add(step)
        left.extendleft(reversed(target.split("/")))
        here = "/" if target.startswith("/") else here
    return PathSteps(here, frozenset(directories - {here}), frozenset(links))
