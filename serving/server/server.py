"""The server: makes all parts once, and starts and stops them in one place.

Read it from top to bottom: the parts of a server, its start, its stop. Each part is a class in a module
of its own, which makes what it consists of from the flags.
"""

import queue
from collections.abc import Callable, Sequence
from dataclasses import asdict

import structlog

from serving.base.clock import Clock, SystemClock
from serving.base.deferred_module import load_deferred_modules
from serving.base.errors import OperatorError
from serving.config.lab_settings import LAB_VARIABLE, NO_LAB
from serving.config.plan import plan_change
from serving.config.server_config import ServerConfig
from serving.data_plane.plane import DataPlane, native_module
from serving.data_plane.request_statistics import RequestStatistics
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import StateMonitor
from serving.server import monitoring_parts, rpc_parts
from serving.server.foundation import Foundation
from serving.server.front import Front
from serving.server.logs import flush_logs
from serving.server.models import Models, check_platforms
from serving.server.port_reservation import PortReservation
from serving.server.request_parts import make_request_parts
from serving.server.status import Status
from serving.server.stop_signals import StopSignals
from serving.server.versions import Versions

_log = structlog.get_logger(__name__)


class Server:
    """One model server. It is started once and stopped once; `run` does both and handles signals.

    `start` opens the HTTP port and reserves gRPC's port. Health is NOT_SERVING until every model has
    an AVAILABLE version. `wait` opens gRPC's port once no model is awaited, or after
    `max_startup_wait_seconds`. A model is awaited until one of its versions is AVAILABLE, or has
    failed for good. If `listen_before_ready` is set, `start` opens gRPC's port instead.

    `on_listening` is called when gRPC's port is open. `on_ready` is called when it is open and no
    model is awaited. Both get the port.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        native: DataPlane | None = None,
        clock: Clock | None = None,
        reserved_port: PortReservation | None = None,
        on_listening: Callable[[int], None] | None = None,
        on_ready: Callable[[int], None] | None = None,
    ) -> None:
        """Makes all parts. Raises InvalidConfig. Nothing listens, polls or loads yet.

        `reserved_port` is a reservation of gRPC's port, which the server takes over and closes. If it
        is None, `start` reserves the port.
        """
        foundation = Foundation(config, native or native_module(), clock or SystemClock())
        self._config = config
        self._stop_requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._first_plan = plan_change((), config.models)
        check_platforms(config)
        _warn_of_lab(config)
        rpc_parts.initialize(foundation)
        # Each part needs the parts before it.
        tracing = monitoring_parts.make_tracing(foundation)
        self._requests = make_request_parts(foundation, spans=tracing.requests)
        self._monitor = StateMonitor(foundation.clock)
        notes = NotePublisher(self._requests.serving_map, self._monitor.versions)
        self._monitor.add_stage_listener(notes.on_status)
        self._versions = Versions(
            foundation,
            requests=self._requests,
            monitor=self._monitor,
            notes=notes,
            tracing=tracing,
        )
        self._models = Models(
            foundation,
            self._versions,
            admission=self._requests.admission,
            notes=notes,
            names_changed=self._on_names_changed,
        )
        self._status = Status(
            foundation,
            served=self._models.served,
            monitor=self._monitor,
            notes=notes,
            on_ready=on_ready or _do_nothing,
        )
        self._front = Front(
            foundation,
            requests=self._requests,
            versions=self._versions,
            models=self._models,
            status=self._status,
            tracing=tracing,
            reserved_port=reserved_port,
            on_listening=on_listening or _do_nothing,
        )

    @property
    def port(self) -> int:
        """The TCP port of gRPC."""
        return self._front.grpc.port

    @property
    def http_port(self) -> int | None:
        """The TCP port of HTTP; None if HTTP is off."""
        return self._front.http.port

    @property
    def monitor(self) -> StateMonitor:
        """The state of every version. Callers may wait for a state."""
        return self._monitor

    @property
    def request_statistics(self) -> RequestStatistics:
        """The counts and latencies of each version's requests."""
        return self._requests.statistics

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT and returns the exit status. On the main thread.

        A second signal ends the process at once. Raises what `start` raises.
        """
        with StopSignals(self.request_stop) as signals:
            self.start()
            try:
                reason = self.wait()
            except OperatorError:
                # The port was lost to another process while the models were loaded.
                self._stop_guarded()
                raise
            _log.info("stopping", reason=reason)
            if not self._stop_guarded():
                # A thread of the data plane still runs, and an exit unloads the libraries that it uses.
                flush_logs()
                signals.exit_now(0)
        return 0

    def _stop_guarded(self) -> bool:
        try:
            return self.stop()
        except Exception:  # noqa: BLE001 (a bug; the process has to end all the same)
            _log.exception("stop_failed")
            return False

    def start(self) -> None:
        """Reserves gRPC's port, starts the HTTP server, and starts to look for versions.

        Raises Unavailable or InvalidConfig if a port cannot be opened.
        """
        # Before a port is open: an import opens files, and clients may take all descriptors.
        load_deferred_modules()
        self._status.health.update()
        config = self._config
        if config.grpc_descriptors or config.rest_api_port.descriptors:
            grpc, rest = config.grpc_descriptors, config.rest_api_port.descriptors
            _log.info("sockets_handed_in", grpc=list(grpc), rest=list(rest))
        self._front.open()
        self._models.start(self._first_plan)
        self._front.answer()
        self._versions.start()
        self._models.watch_files()
        self._front.watch_files()
        self._status.start()

    def request_stop(self, reason: str) -> None:
        """Makes `wait` return `reason`. Any thread."""
        self._stop_requests.put(reason)
        self._status.readiness.cancel()

    def wait(self) -> str:
        """Opens gRPC's port once no model is awaited. Then waits until a stop is requested.

        Returns the reason of the stop. Raises Unavailable or InvalidConfig if the port cannot be opened.
        """
        readiness = self._status.readiness
        if not readiness.is_listening and readiness.wait():
            self._front.listen()
            readiness.report()
        return self._stop_requests.get()

    def stop(self) -> bool:
        """Waits for the running requests, unloads all versions and ends all threads.

        Waits up to `drain_seconds` for the requests, and cuts the others short. Then waits up to
        UNLOAD_TIMEOUT_SECONDS for the unloads. Returns False if a thread still runs.

        A member of a fleet answers requests as before for a few seconds first (`DrainNotice`).
        """
        # 1. Report the stop, so that balancers and clients turn to other servers.
        self._status.report_stop()
        # 2. Stop what begins work: reloads, polls and traces. End the waits of calls, because the drain
        #    waits for these calls.
        self._models.stop()
        self._monitor.end_waits()
        self._status.readiness.cancel()
        self._front.end_waits()
        # 3. Let the requests end before the unloads: they still use the versions.
        is_over = [self._front.drain()]
        # 4. Unload all versions, at full speed: no request is left that an unload could slow down.
        is_over.append(self._versions.unload())
        # 5. Wait for the threads that were stopped above. They had time to end during the drain and the
        #    unloads, so these waits are short. Then nothing is left to be recorded.
        is_over += [self._models.join(), self._status.join(), self._front.join()]
        is_over.append(self._versions.write_last())
        self._versions.stop()
        _log.info("stopped", is_complete=all(is_over))
        return all(is_over)

    def _on_names_changed(self, names: Sequence[str]) -> None:
        self._requests.statistics.add_models(list(names))
        self._status.names_changed(names)


def _warn_of_lab(config: ServerConfig) -> None:
    if config.lab != NO_LAB:
        _log.warning(
            "lab_settings",
            **asdict(config.lab),
            remedy=f"unset {LAB_VARIABLE} to serve: its settings are for load tests",
        )


def _do_nothing(port: int) -> None:
    """Does nothing when a port opens, because no caller waits for it."""
