"""Status: reports the state of a server, as health, as readiness and to a service manager."""

from collections.abc import Callable, Sequence

from serving.base.periodic_thread import PeriodicThread
from serving.base.service_manager import ServiceManager
from serving.config.server_config import ServerConfig
from serving.core.servable import LOADING, START, ServableStatus
from serving.data_plane.requests import GrpcServer
from serving.http.server import HttpServer
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import StateMonitor
from serving.reload.served_models import ServedModels
from serving.rpc.health import HealthReporter
from serving.server.drain import DrainNotice
from serving.server.foundation import Foundation
from serving.server.readiness_watch import ReadinessWatch
from serving.server.service_notices import (
    ServiceNotices,
    ServiceState,
    answers_grpc,
    answers_http,
)
from serving.server.stop_timeouts import SOURCE_TIMEOUT_SECONDS


class Status:
    """Follows the models, and reports changes. Its thread `service` talks to the service manager."""

    # The ports, which are made later: see `attach`.
    _grpc: GrpcServer
    _http: HttpServer

    def __init__(
        self,
        foundation: Foundation,
        *,
        served: ServedModels,
        monitor: StateMonitor,
        notes: NotePublisher,
        on_ready: Callable[[int], None],
    ) -> None:
        """`on_ready` is called with the port once it is open and no model is awaited."""
        config: ServerConfig = foundation.config
        self._config = config
        self._served = served
        self._notes = notes
        self._refused: frozenset[str] = frozenset()
        self.drain_notice = DrainNotice(foundation.clock)
        self.health = HealthReporter(
            [model.name for model in config.models], monitor, excused=self._excused
        )
        self.readiness = ReadinessWatch(
            models=served,
            monitor=monitor,
            health=self.health,
            excused=self._excused,
            max_startup_wait_seconds=config.max_startup_wait_seconds,
            on_ready=on_ready,
            clock=foundation.clock,
        )
        self._notices = ServiceNotices(ServiceManager(), self._state, self._is_answering)
        self._thread = PeriodicThread(
            "service",
            self._take_turn,
            wait_seconds=self._notices.wait_seconds,
            failure_event="service_notices_failed",
            clock=foundation.clock,
        )
        notes.on_refused_changed = self._thread.wake
        monitor.add_listener(self._on_status)

    def attach(self, grpc: GrpcServer, http: HttpServer) -> None:
        """Pushes the health to `grpc` from now on. Call it once, before `start`."""
        self._grpc, self._http = grpc, http
        self.health.push_to(grpc)

    def start(self) -> None:
        """Reports to the service manager from now on."""
        self._thread.start()

    def names_changed(self, names: Sequence[str]) -> None:
        """Follows these models from now on."""
        self.health.set_models(names)
        self._notes.set_models(names)
        self.readiness.report()

    def listens(self, port: int) -> None:
        """Reports that gRPC's port is open."""
        self.readiness.note_listening(port)
        self._thread.wake()

    def report_stop(self) -> None:
        """Reports that this server drains. For a member of a fleet, waits until the fleet knows."""
        self._thread.stop()
        self._notices.report_stop()
        self.health.drain()
        if self._config.fleet_member and self.readiness.is_listening:
            self.drain_notice.wait(self._config.drain_seconds)

    def join(self) -> bool:
        """Waits for the thread, after `report_stop`; returns False if it still runs."""
        return self._thread.join(SOURCE_TIMEOUT_SECONDS)

    def _excused(self) -> frozenset[str]:
        """The models that the server is ready without."""
        return frozenset(self._served.unloaded) | self._notes.refused

    def _on_status(self, status: ServableStatus) -> None:
        # Skips START and LOADING: they change neither result, and both calls visit all models.
        if status.state not in (START, LOADING):
            self._report()
            self._thread.wake()

    def _report(self) -> None:
        self.health.update()
        self.readiness.report()

    # --- The thread `service` ---------------------------------------------------------------------

    def _take_turn(self) -> None:
        """Looks for models that have become refused, and reports to the service manager."""
        refused = self._notes.refused
        if refused != self._refused:
            self._refused = refused
            self._report()
        self._notices.report()

    def _state(self) -> ServiceState:
        view = self.health.view()
        return ServiceState(
            is_ready=view.is_serving and self.readiness.is_listening,
            model_count=len(view.models),
            unavailable=[name for name in view.models if not view.is_model_serving(name)],
        )

    def _is_answering(self) -> bool:
        """True if the open ports answer."""
        config, http_port, port = self._config, self._http.port, self._grpc.port
        if http_port is not None and not answers_http(config.http_host, http_port):
            return False
        is_grpc_over_tcp = self.readiness.is_listening and port != 0
        return not is_grpc_over_tcp or answers_grpc(config.host, port)
