"""Aspired-version policies: what to do next for one servable stream. Pure functions on values.

`POLICIES` holds one policy for each name that a settings file can give. A further policy is a class
and an entry of that table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.model_settings import ModelSettings, PolicyName
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
    """Chooses at most one action from the versions of one stream. Stateless."""

    def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
        """The one action to perform now, or None. The caller performs it and asks again."""
        ...

    def may_retry(self, snapshots: Sequence[ServableSnapshot]) -> bool:
        """True if a failed load may take memory again now."""
        ...

    def unloads_first(self, *, is_under_pressure: bool) -> bool:
        """True if an old version is unloaded before a new one is loaded.

        `is_under_pressure` is True if a new version did not fit into memory beside the old one. If
        this method returns True, no version is kept for a rollback.
        """
        ...


class AvailabilityPreserving:
    """Keeps a version serving at the price of memory for two; the default.

    0. If a version was given up because a load needs its memory, unload it now.
    1. If no version is aspired, or an aspired version is ready, or several versions that are not
       aspired are ready: unload the lowest ready version that is not aspired, but a blocked version
       first.
    2. Otherwise load the highest aspired version in START.

    If both an unload and a load are possible, the unload comes first. At most one old version keeps
    serving while its successors load or fail. With `Latest(1)` the peak is two versions in memory.

    A kept version is neither unloaded nor counted. If one version is kept for a rollback, the peak is
    three versions.
    """

    def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
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
        """Always True, because memory for two versions is reserved."""
        del snapshots
        return True

    def unloads_first(self, *, is_under_pressure: bool) -> bool:
        del is_under_pressure
        return False


class ResourcePreserving:
    """Needs memory for one version. Requests fail between the old version and the new one.

    1. If a version that is not aspired is ready: unload the lowest. The last such version stays while no
       load needs its memory, because every aspired version has failed or is still being unloaded.
    2. Otherwise, while a version that is not aspired is being loaded or unloaded: do nothing, and retry no
       failed load.
    3. Otherwise load the highest aspired version in START.

    With `Latest(1)` the peak is one version in memory.
    """

    def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
        idle = _idle(snapshots)
        aspired = [row for row in snapshots if row.is_aspired]
        may_serve = not aspired or any(row.state not in (UNLOADING, END) for row in aspired)
        if idle and (may_serve or len(idle) > 1):
            return Unload(idle[0])
        if not self.may_retry(snapshots):
            return None
        loadable = [row.id for row in snapshots if row.is_aspired and row.state is START]
        return Load(max(loadable)) if loadable else None

    def may_retry(self, snapshots: Sequence[ServableSnapshot]) -> bool:
        """False while a version that is not aspired is in memory, as for a first load."""
        others = [row for row in snapshots if not row.is_aspired and not row.is_kept]
        return all(row.state in (START, END) for row in others)

    def unloads_first(self, *, is_under_pressure: bool) -> bool:
        del is_under_pressure
        return True


class PressureDriven:
    """Preserves availability until a version does not fit beside the old one: `auto` in settings.

    While a version waits for memory (`is_pressing`) this is ResourcePreserving, so that the old
    version is unloaded first. Otherwise it is AvailabilityPreserving.
    """

    _AVAILABILITY = AvailabilityPreserving()
    _RESOURCE = ResourcePreserving()

    def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
        return self._policy(snapshots).next_action(snapshots)

    def may_retry(self, snapshots: Sequence[ServableSnapshot]) -> bool:
        return self._policy(snapshots).may_retry(snapshots)

    def unloads_first(self, *, is_under_pressure: bool) -> bool:
        return is_under_pressure

    def _policy(self, snapshots: Sequence[ServableSnapshot]) -> AspiredVersionPolicy:
        is_under_pressure = any(row.is_pressing for row in snapshots)
        return self._RESOURCE if is_under_pressure else self._AVAILABILITY


POLICIES: dict[PolicyName, AspiredVersionPolicy] = {
    PolicyName.AVAILABILITY: AvailabilityPreserving(),
    PolicyName.RESOURCE: ResourcePreserving(),
    PolicyName.AUTO: PressureDriven(),
}
"""The policy of each name. A test checks that each `PolicyName` has an entry."""


def policy_for(settings: ModelSettings) -> AspiredVersionPolicy:
    """The policy of a model with these settings."""
    return POLICIES[settings.aspired_version_policy]


def _idle(snapshots: Sequence[ServableSnapshot]) -> list[ServableId]:
    """The ready versions that are neither aspired nor kept, in the order to unload them."""
    idle = [
        row
        for row in snapshots
        if row.state is AVAILABLE and not row.is_aspired and not row.is_kept
    ]
    return [row.id for row in sorted(idle, key=lambda row: (not row.is_blocked, row.id))]
