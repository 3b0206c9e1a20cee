"""The thread that reports the state of a server to its service manager."""

from serving.base.periodic_thread import PeriodicThread
from serving.base.service_manager import ServiceManager
from serving.core.servable import LOADING, START, ServableStatus
from serving.data_plane.requests import GrpcServer
from serving.http.listener import HttpListener
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import StateMonitor
from serving.server.foundation import Foundation
from serving.server.service_notices import (
    ServiceNotices,
    ServiceState,
    answers_grpc,
    answers_http,
)
from serving.server.status import Status
from serving.server.stop_timeouts import SOURCE_TIMEOUT_SECONDS


class ServiceReports:
    """The thread `service`: reports each change of a server's state, and that its ports answer.

    It also updates `status` if a model has become refused. The thread that changes a note cannot do that,
    because it holds locks.
    """

    def __init__(
        self,
        foundation: Foundation,
        *,
        status: Status,
        monitor: StateMonitor,
        notes: NotePublisher,
        grpc: GrpcServer,
        http: HttpListener,
    ) -> None:
        """Follows `monitor` and `notes` from now on."""
        self._config = foundation.config
        self._status = status
        self._notes = notes
        self._grpc = grpc
        self._http = http
        self._refused: frozenset[str] = frozenset()
        self._notices = ServiceNotices(ServiceManager(), self._state, self._is_answering)
        self._thread = PeriodicThread(
            "service",
            self._take_turn,
            wait_seconds=self._notices.wait_seconds,
            failure_event="service_notices_failed",
            clock=foundation.clock,
        )
        notes.add_refused_listener(self._thread.wake)
        monitor.add_listener(self._on_status)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def report_soon(self) -> None:
        """Makes the thread report what has changed. Any thread."""
        self._thread.wake()

    def report_stop(self) -> None:
        """Reports that this server drains, and ends the thread. `join` waits for it."""
        self._thread.stop()
        self._notices.report_stop()

    def join(self) -> bool:
        """Waits for the thread, after `report_stop`. Returns False if it still runs."""
        return self._thread.join(SOURCE_TIMEOUT_SECONDS)

    def _on_status(self, status: ServableStatus) -> None:
        # START and LOADING are left out, because they change no report.
        if status.state not in (START, LOADING):
            self._thread.wake()

    # --- The thread -------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        refused = self._notes.refused
        if refused != self._refused:
            self._refused = refused
            self._status.update()
        self._notices.report()

    def _state(self) -> ServiceState:
        view = self._status.health.view()
        return ServiceState(
            is_ready=view.is_serving and self._status.readiness.is_listening,
            model_count=len(view.models),
            unavailable=[name for name in view.models if not view.is_model_serving(name)],
        )

    def _is_answering(self) -> bool:
        """True if each open port answers."""
        config, http_port, port = self._config, self._http.port, self._grpc.port
        has_tls = config.rest_ssl_config_file != ""
        if http_port is not None and not answers_http(config.http_host, http_port, has_tls=has_tls):
            return False
        is_grpc_over_tcp = self._status.readiness.is_listening and port != 0
        return not is_grpc_over_tcp or answers_grpc(config.host, port)
