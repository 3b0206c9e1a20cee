"""The reservoirs of recent live requests, one a model."""

import threading
from collections.abc import Callable, Mapping

from serving.data_plane.servables import RequestReservoir


class Reservoirs:
    """The reservoirs by model, each made at its first use. Any thread.

    A reservoir belongs to a model, because later versions replay the requests of earlier ones.
    """

    def __init__(self, make: Callable[[], RequestReservoir] | None) -> None:
        """Takes the factory of reservoirs; None if no requests are kept."""
        self._make = make
        self._lock = threading.Lock()
        self._by_name: dict[str, RequestReservoir] = {}

    def of(self, name: str) -> RequestReservoir | None:
        """The model's reservoir, made at its first use; None if no requests are kept."""
        if self._make is None:
            return None
        with self._lock:
            if name not in self._by_name:
                self._by_name[name] = self._make()
            return self._by_name[name]

    def by_name(self) -> Mapping[str, RequestReservoir]:
        """The present reservoirs by model name."""
        with self._lock:
            return dict(self._by_name)

    def forget(self, name: str) -> None:
        """Forgets a model that was removed from the configuration. Its live versions keep their reservoir."""
        with self._lock:
            self._by_name.pop(name, None)
