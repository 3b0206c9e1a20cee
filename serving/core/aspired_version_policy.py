"""Aspired-version policy: what to do next for one servable stream. Pure functions on values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.servable import AVAILABLE, END, START, UNLOADING, ServableId, ServableSnapshot


@dataclass(frozen=True)
class Load:
    """Load this version, which is in START."""

    id: ServableId


@dataclass(frozen=True)
class Unload:
    """Unload this version, which is AVAILABLE and not aspired."""

    id: ServableId


Action = Load | Unload


class AspiredVersionPolicy(Protocol):
    """From the versions of one stream to at most one action. Stateless."""

    def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
        """The one thing to do now, or None. The caller does it and asks again."""
        ...

    def may_retry(self, snapshots: Sequence[ServableSnapshot]) -> bool:
        """Whether a load that failed may have memory again now."""
        ...


class AvailabilityPreserving:
    """Keeps a version serving at the price of memory for two; the default.

    0. A version that was given up for a load goes at once.
    1. Where no version is aspired, or an aspired one is ready, or more than one that is not aspired
       is ready: unload the lowest ready version that is not aspired, a blocked one first.
    2. Else load the highest aspired version in START.

    So unloading goes first where it is safe, and at most one old version is kept as cover while its
    successors load or fail. For `Latest(1)` the peak is two versions in memory. A kept version is
    neither unloaded nor counted: with one that is kept for a rollback the peak is three.
    """

    def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
        """See `AspiredVersionPolicy`."""
        aspired = [row for row in snapshots if row.is_aspired]
        idle = _idle(snapshots)
        given_up = [row.id for row in snapshots if row.is_given_up and row.id in idle]
        if given_up:
            return Unload(given_up[0])
        is_aspired_ready = any(row.state is AVAILABLE for row in aspired)
        if idle and (not aspired or is_aspired_ready or len(idle) > 1):
            return Unload(idle[0])
        loadable = [row.id for row in aspired if row.state is START]
        return Load(max(loadable)) if loadable else None

    def may_retry(self, snapshots: Sequence[ServableSnapshot]) -> bool:
        """Always: see `AspiredVersionPolicy`."""
        del snapshots
        return True


class ResourcePreserving:
    """Never has memory for a version that is not aspired beside a load; requests wait for nothing
    and fail in between.

    1. Where a version that is not aspired is ready: unload the lowest. The last one stays where all
       that is aspired has failed, or is still on its way out: it would go for nothing.
    2. Else, while one is on its way in or out: nothing, and no load that failed is retried.
    3. Else load the highest aspired version in START.

    For `Latest(1)` the peak is one version in memory.
    """

    def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
        """See `AspiredVersionPolicy`."""
        idle = _idle(snapshots)
        aspired = [row for row in snapshots if row.is_aspired]
        has_hope = not aspired or any(row.state not in (UNLOADING, END) for row in aspired)
        if idle and (has_hope or len(idle) > 1):
            return Unload(idle[0])
        if not self.may_retry(snapshots):
            return None
        loadable = [row.id for row in snapshots if row.is_aspired and row.state is START]
        return Load(max(loadable)) if loadable else None

    def may_retry(self, snapshots: Sequence[ServableSnapshot]) -> bool:
        """As for a first load: not beside a version that is not aspired. See `AspiredVersionPolicy`."""
        others = [row for row in snapshots if not row.is_aspired and not row.is_kept]
        return all(row.state in (START, END) for row in others)


def _idle(snapshots: Sequence[ServableSnapshot]) -> list[ServableId]:
    """Ready, and in memory for nobody's sake, in the order in which they should go."""
    idle = [
        row
        for row in snapshots
        if row.state is AVAILABLE and not row.is_aspired and not row.is_kept
    ]
    return [row.id for row in sorted(idle, key=lambda row: (not row.is_blocked, row.id))]
