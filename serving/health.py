"""Health: what grpc.health.v1 says of the server and of each model."""

import threading
from collections.abc import Callable, Iterable

from serving.servable import AVAILABLE
from serving.state_monitor import Statuses

# "" is the whole server. The two others are TensorFlow Serving's services, which probes may name.
SERVER_SERVICES = (
    "",
    "tensorflow.serving.PredictionService",
    "tensorflow.serving.ModelService",
)

SetHealth = Callable[[str, bool], None]


def serving_by_service(models: Iterable[str], statuses: Statuses) -> dict[str, bool]:
    """Whether each service name is SERVING. Pure.

    A model is, where it has an AVAILABLE version; the server is, where every configured model is.
    """
    serving = {
        name: any(status.state is AVAILABLE for status in statuses.get(name, ())) for name in models
    }
    is_server_serving = all(serving.values())
    return {**serving, **dict.fromkeys(SERVER_SERVICES, is_server_serving)}


class HealthReporter:
    """Pushes changes of health to the gRPC server, which answers Check and Watch.

    `update` looks at all there is and pushes what differs, so it may be called too often and in any
    order; any thread. After `drain` everything is NOT_SERVING for good.
    """

    def __init__(
        self,
        models: Iterable[str],
        statuses: Callable[[], Statuses],
        set_health: SetHealth,
        remove_health: Callable[[str], None],
    ) -> None:
        self._models = tuple(models)
        self._statuses = statuses
        self._set_health = set_health
        self._remove_health = remove_health
        self._pushed: dict[str, bool] = {}
        self._is_draining = False
        # Held while pushing, so that an older view never overwrites a newer one.
        self._lock = threading.Lock()

    def update(self) -> None:
        """Brings the gRPC server's view up to date."""
        with self._lock:
            self._push(serving_by_service(self._models, self._statuses()))

    def set_models(self, models: Iterable[str]) -> None:
        """Reports these from now on; one that is no longer among them is a service unknown."""
        with self._lock:
            self._models = tuple(models)
            self._push(serving_by_service(self._models, self._statuses()))

    def drain(self) -> None:
        """Everything is NOT_SERVING from now on: balancers send their requests elsewhere."""
        with self._lock:
            self._is_draining = True
            self._push(self._pushed)

    def _push(self, wanted: dict[str, bool]) -> None:
        for service in self._pushed.keys() - wanted.keys():
            self._remove_health(service)
        for service, is_serving in wanted.items():
            value = is_serving and not self._is_draining
            if self._pushed.get(service) != value:
                self._set_health(service, value)
        self._pushed = {service: wanted[service] and not self._is_draining for service in wanted}
