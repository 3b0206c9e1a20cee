"""ManagerView: the state of a manager that other threads read without waiting for the control thread."""

from collections.abc import Collection, Mapping

from serving.base.clock import Clock
from serving.core.blocked_versions import BlockedVersions
from serving.core.model_settings import ModelSettings
from serving.core.servable import ServableId
from serving.data_plane.servables import Servable
from serving.manager.router import Canary, Router
from serving.manager.stream import StreamStatus

_DEFAULT_SETTINGS = ModelSettings()


class ManagerView:
    """Values by model. Any thread reads them; only the control thread changes them.

    It needs no lock, because each value is replaced as a whole and never changed in place. Two reads
    may see two moments: a caller that reads twice must expect a version to have ended in between.
    """

    def __init__(self, router: Router, clock: Clock) -> None:
        self._router = router
        self._clock = clock
        self._settings: dict[str, ModelSettings] = {}
        self._statuses: dict[str, StreamStatus] = {}
        self._servables: dict[str, Mapping[int, Servable]] = {}
        self._blocked: dict[str, frozenset[int]] = {}
        self._blocks: dict[str, BlockedVersions] = {}
        # The versions that were first aspired together with each version of a name.
        self._companions: dict[str, Mapping[int, frozenset[int]]] = {}
        # Since when a name has had a version AVAILABLE without a break (monotonic).
        self._served_since_ns: dict[str, int] = {}

    # --- Any thread -------------------------------------------------------------------------------

    def settings(self, name: str) -> ModelSettings:
        """Returns the settings of a model; the defaults if it has none."""
        return self._settings.get(name, _DEFAULT_SETTINGS)

    def status(self, name: str) -> StreamStatus | None:
        """Returns the status of a stream; None if it has no version."""
        return self._statuses.get(name)

    def servable(self, servable_id: ServableId) -> Servable | None:
        """Returns the version if it is AVAILABLE. It may be unloaded at any time after."""
        return self._servables.get(servable_id.name, {}).get(servable_id.version)

    def blocked(self, name: str) -> frozenset[int]:
        """Returns the versions that the source of a model leaves out."""
        return self._blocked.get(name, frozenset())

    def blocks(self, name: str) -> BlockedVersions:
        """Returns the blocked versions of a model with their blocks, the last resort included."""
        return self._blocks.get(name, {})

    def incumbent(self, servable_id: ServableId) -> Servable | None:
        """Returns the version whose clients `servable_id` will get: the one that answers now.

        The result is None for a version that takes over no clients: a version lower than the one
        that answers; a version first aspired together with it, as at the start of a server with
        several versions; and a version that follows one that was rolled back.
        """
        name = servable_id.name
        servables = self._servables.get(name, {})
        default = self._router.answering(name)
        version = default if default in servables else max(servables, default=None)
        companions = self._companions.get(name, {}).get(servable_id.version, frozenset())
        if version is None or version in companions or version in self.blocked(name):
            return None
        return servables.get(version) if version < servable_id.version else None

    def first_canary(self, servable_id: ServableId, began_at_ns: int) -> Canary | None:
        """Returns the canary that a version begins as, by the settings of its model.

        The result is None if no version was AVAILABLE yet at `began_at_ns` (monotonic), when this
        one was first aspired: the first versions of a model get all requests at once.
        """
        wanted = self.settings(servable_id.name).canary
        served_since_ns = self._served_since_ns.get(servable_id.name)
        is_further = served_since_ns is not None and began_at_ns >= served_since_ns
        if wanted.weight == 0 or not is_further:
            return None
        return Canary.of(servable_id.version, wanted)

    # --- The control thread -----------------------------------------------------------------------

    def set_settings(self, name: str, settings: ModelSettings) -> None:
        self._settings[name] = settings

    def set_status(self, name: str, status: StreamStatus) -> None:
        self._statuses[name] = status

    def set_blocked(self, name: str, versions: frozenset[int], blocks: BlockedVersions) -> None:
        """`versions` are those of `blocks` that the source leaves out."""
        self._blocked[name] = versions
        self._blocks[name] = blocks

    def add_companions(self, name: str, begun: Collection[int], known: Collection[int]) -> None:
        """Records that the versions `begun` were first aspired together. Keeps the records of `known`."""
        before = self._companions.get(name, {})
        kept = {version: before[version] for version in known if version in before}
        self._companions[name] = {**kept, **dict.fromkeys(begun, frozenset(begun))}

    def add_servable(self, servable_id: ServableId, servable: Servable) -> None:
        """Notes that a version is AVAILABLE."""
        name = servable_id.name
        self._servables[name] = {**self._servables.get(name, {}), servable_id.version: servable}
        self._served_since_ns.setdefault(name, self._clock.now_ns())

    def remove_servable(self, servable_id: ServableId) -> None:
        """Notes that a version is not AVAILABLE any more."""
        left = dict(self._servables.get(servable_id.name, {}))
        left.pop(servable_id.version, None)
        if left:
            self._servables[servable_id.name] = left
        else:
            self._servables.pop(servable_id.name, None)
            self._served_since_ns.pop(servable_id.name, None)

    def forget_versions(self, name: str) -> None:
        """Removes all that is kept of a stream but its settings and blocked versions."""
        self._statuses.pop(name, None)
        self._companions.pop(name, None)

    def forget_blocked(self, name: str) -> None:
        self._blocked.pop(name, None)
        self._blocks.pop(name, None)
