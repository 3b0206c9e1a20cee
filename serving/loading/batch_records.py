"""Records of the batches of all versions, also of versions that are gone."""

import threading
from collections.abc import Sequence

from serving.core.servable import END, ServableId, ServableStatus
from serving.data_plane.servables import Servable, SignatureBatching

ENDED_COUNT_MAX = 32
"""The number of versions that are gone whose batches are kept, like their other records of requests."""


class BatchRecords:
    """The batches of each version. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All guarded by `_lock`. The oldest of the ended versions comes first.
        self._loaded: dict[ServableId, Servable] = {}
        self._ended: dict[ServableId, Sequence[SignatureBatching]] = {}

    def add(self, servable_id: ServableId, servable: Servable) -> None:
        """Records a version from now on, until `on_status` reports its end."""
        with self._lock:
            self._end(servable_id)
            self._ended.pop(servable_id, None)
            self._loaded[servable_id] = servable

    def on_status(self, status: ServableStatus) -> None:
        """Keeps the last figures of a version that has ended. A listener of StateMonitor."""
        if status.state is END:
            with self._lock:
                self._end(status.id)

    def of(self, servable_id: ServableId) -> Sequence[SignatureBatching]:
        """The batching of a version's signatures; empty if they are not to be batched."""
        with self._lock:
            servable = self._loaded.get(servable_id)
            ended = self._ended.get(servable_id, ())
        return ended if servable is None else servable.batching()

    def _end(self, servable_id: ServableId) -> None:
        servable = self._loaded.pop(servable_id, None)
        if servable is None:
            return
        self._ended[servable_id] = servable.batching()
        while len(self._ended) > ENDED_COUNT_MAX:
            self._ended.pop(next(iter(self._ended)))
