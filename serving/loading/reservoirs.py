"""The reservoirs of recent live requests, one a model."""

import threading
from collections.abc import Callable, Mapping

from serving.data_plane.servables import RequestReservoir


class Reservoirs:
    """Each model's reservoir, made when it is first asked for. Any thread.

    A reservoir is the model's and not a version's: what one version answered, the next ones replay.
    """

    def __init__(self, make: Callable[[], RequestReservoir] | None) -> None:
        """`make` is None where no requests are kept."""
        self._make = make
        self._lock = threading.Lock()
        self._by_name: dict[str, RequestReservoir] = {}

    def of(self, name: str) -> RequestReservoir | None:
        """The model's; None where no requests are kept."""
        if self._make is None:
            return None
        with self._lock:
            if name not in self._by_name:
                self._by_name[name] = self._make()
            return self._by_name[name]

    def by_name(self) -> Mapping[str, RequestReservoir]:
        """Those that there are now."""
        with self._lock:
            return dict(self._by_name)

    def forget(self, name: str) -> None:
        """The model is configured no more. Versions that still serve keep theirs until they end."""
        with self._lock:
            self._by_name.pop(name, None)
