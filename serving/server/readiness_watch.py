"""Finds out when gRPC's port may open, and when a server is ready because no model is awaited any more."""

import threading
from collections.abc import Callable, Collection, Mapping

import structlog

from serving.base.clock import Clock
from serving.http.health_routes import readiness
from serving.manager.startup_wait import AwaitedModel, StartupWait, is_decided
from serving.manager.state_monitor import StateMonitor
from serving.reload.served_models import ServedModels
from serving.rpc.health import HealthReporter, why_unavailable

_log = structlog.get_logger(__name__)


class ReadinessWatch:
    """Waits for the awaited models, and logs once that the port is open and no model is awaited.

    One thread calls `wait`. Any thread may call the other methods.
    """

    def __init__(
        self,
        *,
        models: ServedModels,
        monitor: StateMonitor,
        health: HealthReporter,
        excused: Callable[[], Collection[str]],
        max_startup_wait_seconds: float,
        on_ready: Callable[[int], None],
        clock: Clock,
    ) -> None:
        """`on_ready` is called once, with gRPC's port. Models that `excused` returns are not awaited."""
        self._models = models
        self._monitor = monitor
        self._health = health
        self._excused = excused
        self._on_ready = on_ready
        self._awaited_model = AwaitedModel(self._is_decided)
        self._startup_wait = StartupWait(
            self._awaited_models, max_seconds=max_startup_wait_seconds, clock=clock
        )
        # Held by `report`, so that only one thread finds that the server is ready.
        self._lock = threading.Lock()
        self._port: int | None = None
        self._is_reported = False

    @property
    def is_listening(self) -> bool:
        """True if gRPC's port is open."""
        return self._port is not None

    def wait(self) -> bool:
        """Waits until no model is awaited. Returns False if `cancel` ended the wait."""
        return self._startup_wait.wait()

    def cancel(self) -> None:
        """Ends `wait`, also one that begins later, because the server stops."""
        self._startup_wait.cancel()

    def note_listening(self, port: int) -> None:
        """Notes that gRPC's port is open."""
        self._port = port

    def reasons(self) -> Mapping[str, str | None]:
        """The reason why each model is not ready; None for a ready model."""
        return readiness(self._health.view(), self._models.notes).reason_by_model

    def report(self) -> None:
        """Logs that the port is open and no model is awaited, if that is so and was not logged before."""
        with self._lock:
            names = self._models.names
            if self._is_reported or self._awaited_model.find(names, self._excused()):
                return
            self._startup_wait.changed()
            port = self._port
            if port is None:
                return
            self._is_reported = True
        statuses = self._monitor.statuses()
        unavailable = [name for name in names if why_unavailable(statuses.get(name, ()))]
        # Operators wait for this line, so it is a warning if any model is unavailable.
        report = _log.warning if unavailable else _log.info
        report("ready", port=port, models=list(names), unavailable=unavailable)
        self._on_ready(port)

    def _awaited_models(self) -> dict[str, str]:
        """The models that keep gRPC's port closed, with the reason for each."""
        reasons, excused = self.reasons(), self._excused()
        return {
            name: reasons.get(name) or "no version is available"
            for name in self._models.names
            if name not in excused and not self._is_decided(name)
        }

    def _is_decided(self, name: str) -> bool:
        return is_decided(self._monitor.versions(name), self._models.aspired_versions(name))
