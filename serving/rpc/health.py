"""Health: the status of the server and of each model for grpc.health.v1."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from serving.base.errors import StatusCode
from serving.core.servable import AVAILABLE, END, ServableStatus
from serving.data_plane.requests import GrpcServer
from serving.manager.state_monitor import StateMonitor, Statuses

# "" is the whole server. The other names are those of TensorFlow Serving's services, which probes may ask
# for: short, as TensorFlow Serving has them, and long, as is gRPC's convention.
SERVER_SERVICES = (
    "",
    "ModelService",
    "PredictionService",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
)


def serving_by_service(
    models: Iterable[str], statuses: Statuses, needed: Collection[str] = ()
) -> dict[str, bool]:
    """Decides for each service name if it is SERVING. Pure.

    A model is SERVING if it has an AVAILABLE version. The server is SERVING if at least one model is, and
    so is each model of `needed`, which are among `models`. A server that is configured without models is
    SERVING too, because a client must reach it to add the first one.
    """
    serving = {name: is_available(statuses.get(name, ())) for name in models}
    has_any = any(serving.values()) or not serving
    is_server_serving = has_any and all(serving[name] for name in needed)
    return {**serving, **dict.fromkeys(SERVER_SERVICES, is_server_serving)}


def is_available(versions: Iterable[ServableStatus]) -> bool:
    """True if one of a model's versions is AVAILABLE. Pure."""
    return any(status.state is AVAILABLE for status in versions)


@dataclass(frozen=True, kw_only=True)
class HealthView:
    """The inputs of a decision about health, at one moment. A value."""

    models: tuple[str, ...]
    statuses: Statuses
    needed: frozenset[str]
    is_draining: bool

    @property
    def is_serving(self) -> bool:
        return not self.is_draining and self._serving[""]

    def is_model_serving(self, name: str) -> bool:
        return not self.is_draining and self._serving[name]

    # Once for all models, because callers ask for each of them.
    @cached_property
    def _serving(self) -> Mapping[str, bool]:
        return serving_by_service(self.models, self.statuses, self.needed)


def why_unavailable(versions: Iterable[ServableStatus]) -> str | None:
    """The reason why no version of a model is AVAILABLE; None if a version is. Pure.

    `versions` are in ascending order. The reason is that of the latest version.
    """
    latest: ServableStatus | None = None
    for latest in versions:
        if latest.state is AVAILABLE:
            return None
    if latest is None:
        return "no version has been found in its base path"
    version = f"version {latest.id.version}"
    if latest.health.code is not StatusCode.OK:
        doing = "failed" if latest.state is END else f"is {latest.state.name} again after"
        return f"{version} {doing}: {latest.health.code.name}: {latest.health.message}"
    if latest.state is END:
        return f"{version} was unloaded"
    stage = f" ({latest.stage.value})" if latest.stage else ""
    return f"{version} is {latest.state.name}{stage}"


@dataclass(frozen=True)
class ServerHealth:
    """The health of the server itself. A value."""

    is_serving: bool
    is_draining: bool


class HealthReporter:
    """Pushes changes of health to the gRPC server, which answers Check and Watch.

    `update` and `model_changed` push every difference, so extra calls do no harm. Any thread. After `drain` everything
    stays NOT_SERVING.

    A server that starts is NOT_SERVING until every model has come. Once it was SERVING, an added model
    counts only after it has come. So a slow or broken model does not send away the requests for all
    other models.
    """

    def __init__(
        self,
        models: Iterable[str],
        monitor: StateMonitor,
        *,
        excused: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`excused` returns the models that a client has unloaded: the server is SERVING without them.

        Such a model counts again once it is loaded.
        """
        self._models = tuple(models)
        self._known = frozenset(self._models)
        self._monitor = monitor
        self._grpc: GrpcServer | None = None
        # The models that the server needs to be SERVING: all at first, then the models that came.
        self._needed = frozenset(self._models)
        self._excused = excused
        self._has_served = False
        # The models that are SERVING.
        self._serving: set[str] = set()
        self._pushed: dict[str, bool] = {}
        self._is_draining = False
        self._server = ServerHealth(is_serving=False, is_draining=False)
        self._listeners: list[Callable[[], None]] = []
        # Held while pushing, so that an older view never overwrites a newer one.
        self._lock = threading.Lock()

    def push_to(self, grpc: GrpcServer) -> None:
        """Makes the gRPC server answer with the health from the next `update` on. Call it once."""
        self._grpc = grpc

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of `server`. Call this before the first one."""
        self._listeners.append(listener)

    @property
    def server(self) -> ServerHealth:
        """The server's own state as it was pushed last."""
        return self._server

    def update(self) -> None:
        """Brings the gRPC server's view up to date."""
        with self._changing():
            # Each update covers all models, and in a stop the states of all models change. So a drain needs
            # no updates.
            if not self._is_draining:
                self._look()

    def model_changed(self, name: str) -> None:
        """Brings the view of one model up to date, and of the server. Looks at no other model."""
        with self._changing():
            if self._is_draining or name not in self._known:
                return
            self._set_serving(name)
            self._decide([name])

    def set_models(self, models: Iterable[str]) -> None:
        """Reports these models from now on. A model that is no longer among them is SERVICE_UNKNOWN."""
        with self._changing():
            self._models = tuple(models)
            self._known = frozenset(self._models)
            kept = self._needed.intersection(self._models)
            self._needed = kept if self._has_served else frozenset(self._models)
            self._look()

    def view(self) -> HealthView:
        """The present state, for probes that do not come over gRPC."""
        with self._lock:
            return HealthView(
                models=self._models,
                statuses=self._monitor.statuses(),
                needed=self._needed,
                is_draining=self._is_draining,
            )

    def drain(self) -> None:
        """Reports everything as NOT_SERVING from now on, so that balancers send their requests elsewhere."""
        with self._changing():
            self._is_draining = True
            self._server = ServerHealth(is_serving=False, is_draining=True)
            self._push(dict(self._pushed))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds `_lock`. Calls the listeners after its release, because they read this object."""
        with self._lock:
            before = self._server
            yield
            is_changed = before != self._server
        for listener in self._listeners if is_changed else ():
            listener()

    # --- Holding `_lock` --------------------------------------------------------------------------

    def _look(self) -> None:
        self._serving &= self._known
        for name in self._models:
            self._set_serving(name)
        for service in self._pushed.keys() - self._known - set(SERVER_SERVICES):
            del self._pushed[service]
            if self._grpc is not None:
                self._grpc.remove_health(service)
        self._decide(self._models)

    def _set_serving(self, name: str) -> None:
        if is_available(self._monitor.versions(name)):
            self._serving.add(name)
        else:
            self._serving.discard(name)

    def _decide(self, names: Iterable[str]) -> None:
        """Decides on the server, and pushes the health of `names` and of the server."""
        self._needed -= frozenset(self._excused())
        has_any = bool(self._serving) or not self._models
        is_server_serving = has_any and self._needed <= self._serving
        self._server = ServerHealth(is_serving=is_server_serving, is_draining=False)
        self._has_served |= is_server_serving
        if self._has_served:
            self._needed |= self._serving
        services = dict.fromkeys(SERVER_SERVICES, is_server_serving)
        self._push({**{name: name in self._serving for name in names}, **services})

    def _push(self, serving: Mapping[str, bool]) -> None:
        if self._grpc is None:
            return
        for service, is_serving in serving.items():
            value = is_serving and not self._is_draining
            if self._pushed.get(service) != value:
                self._grpc.set_health(service, value)
                self._pushed[service] = value
