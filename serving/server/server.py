"""The server: makes all parts once, and starts and stops them in one place.

Read this module from top to bottom: the parts of a server, its start, its stop. Each part is a class in a
module of its own, which makes its own members from the flags. The class that makes an object also starts and
stops the object.

A part gets the parts that it needs in its constructor, so they are made before it. If a part follows the
changes of an earlier part, its constructor adds a listener there. No part listens at a port, polls a disk or
loads a version until all parts are made. Only a few threads of the data plane run earlier: TensorFlow's pools,
the thread of `RequestStatistics`, and the keeper of `SlabPool`.
"""

import queue
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import structlog

from serving.base.clock import Clock, SystemClock
from serving.base.deferred_module import load_deferred_modules
from serving.config.lab_settings import LAB_VARIABLE, NO_LAB
from serving.config.plan import plan_change
from serving.config.server_config import ServerConfig
from serving.data_plane.plane import DataPlane, native_module
from serving.data_plane.request_statistics import RequestStatistics
from serving.manager.state_monitor import StateMonitor
from serving.server import monitoring_parts
from serving.server.foundation import Foundation
from serving.server.front import Front
from serving.server.logs import flush_logs
from serving.server.models import Models, check_models
from serving.server.port_reservation import PortReservation
from serving.server.request_parts import make_request_parts
from serving.server.runtime import initialize_runtime
from serving.server.service_reports import ServiceReports
from serving.server.status import Status
from serving.server.stop_signals import StopSignals
from serving.server.stop_timeouts import TRACING_TIMEOUT_SECONDS
from serving.server.versions import Versions

_log = structlog.get_logger(__name__)


class Server:
    """One model server. It is started once and stopped once. `run` does both, and handles signals.

    `start` opens the HTTP port and reserves gRPC's port. gRPC's health is NOT_SERVING until every model has
    an AVAILABLE version. `wait` opens gRPC's port once no model is awaited, or after
    `max_startup_wait_seconds`. A model is awaited until one of its versions is AVAILABLE, or until a
    version has failed for good and none is on its way. With `listen_before_ready`, `start` opens gRPC's port instead.

    `on_listening` is called when gRPC's port is open. `on_ready` is called when the port is open and no model
    is awaited. Both get the port.
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
        """Makes all parts. Raises InvalidConfig. No part listens, polls or loads yet.

        `reserved_port` is a reservation of gRPC's port, which the server takes over and closes. If it is
        None, `start` reserves the port.
        """
        foundation = Foundation(config, native or native_module(), clock or SystemClock())
        self._config = config
        self._stop_requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._first_plan = plan_change((), config.models)
        check_models(config)
        _warn_of_lab(config)
        initialize_runtime(foundation)
        self._tracing = monitoring_parts.make_tracing(foundation)
        self._requests = make_request_parts(foundation, spans=self._tracing.requests)
        self._monitor = StateMonitor(foundation.clock)
        self._versions = Versions(
            foundation, requests=self._requests, monitor=self._monitor, tracing=self._tracing
        )
        self._models = Models(foundation, self._versions, requests=self._requests)
        self._status = Status(
            foundation,
            served=self._models.served,
            monitor=self._monitor,
            notes=self._versions.notes,
            on_ready=partial(self._begin_serving, on_ready or _do_nothing),
        )
        self._front = Front(
            foundation,
            requests=self._requests,
            versions=self._versions,
            models=self._models,
            status=self._status,
            tracing=self._tracing,
            reserved_port=reserved_port,
            on_listening=on_listening or _do_nothing,
        )
        self._service = ServiceReports(
            foundation,
            status=self._status,
            monitor=self._monitor,
            notes=self._versions.notes,
            grpc=self._front.grpc,
            http=self._front.http,
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
        """The states of all versions. A caller may wait there for a state."""
        return self._monitor

    @property
    def request_statistics(self) -> RequestStatistics:
        """The counts and latencies of each version's requests."""
        return self._requests.statistics

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT, and returns the exit status. Call it on the main thread.

        A second signal ends the process at once. Raises the errors of `start`.
        """
        with StopSignals(self.request_stop) as signals:
            self.start()
            try:
                reason = self.wait()
            except BaseException:
                # Another process has taken gRPC's port while the models were loaded.
                self.stop()
                raise
            _log.info("stopping", reason=reason)
            if not self.stop():
                # A thread of the data plane still runs. A usual exit would unload the libraries that it uses,
                # and crash.
                flush_logs()
                signals.exit_now(0)
        return 0

    def start(self) -> None:
        """Reserves gRPC's port, opens the other ports, and begins to look for versions.

        Raises Unavailable or InvalidConfig if a port cannot be opened. After an error, every part that was
        started is stopped.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        # The imports come before a port is open, because they open files, and clients could take all
        # descriptors.
        load_deferred_modules()
        self._status.health.update()
        config = self._config
        if config.grpc_descriptors or config.rest_api_port.descriptors:
            grpc, rest = config.grpc_descriptors, config.rest_api_port.descriptors
            _log.info("sockets_handed_in", grpc=list(grpc), rest=list(rest))
        self._front.open()
        if config.listen_before_ready:
            self._listen()
        self._models.start(self._first_plan)
        self._front.answer()
        self._tracing.start()
        self._versions.start()
        self._models.watch_files()
        self._front.watch_files()
        self._service.start()

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
            self._listen()
            readiness.report()
        return self._stop_requests.get()

    def _listen(self) -> None:
        self._front.listen()
        self._service.report_soon()

    def stop(self) -> bool:
        """Waits for the running requests, unloads all versions and ends all threads.

        Waits up to `drain_seconds` for the requests, and then cuts them short. Then waits up to
        UNLOAD_TIMEOUT_SECONDS for the unloads. If a step fails, logs its error and goes on with the next
        step. Returns False if a thread still runs or a step has failed. Call it after a failed `start` too.

        A member of a fleet first answers requests as before for a few seconds (`DrainNotice`).
        """
        is_over = [_is_over(step) for step in self._stop_steps()]
        _log.info("stopped", is_complete=all(is_over))
        return all(is_over)

    def _stop_steps(self) -> Sequence[Callable[[], bool | None]]:
        """The steps of a stop in their order, with the reasons for the order.

        A step returns False if a thread still runs. A step does no harm if its part was never started.
        """
        return (
            # First, balancers and clients learn to use other servers, while this server answers as before.
            self._service.report_stop,
            self._status.report_stop,
            # Then, in any order, these steps let no reload, poll or trace begin any more, and end the calls
            # that wait for a state. Otherwise the drain would wait for them.
            self._models.stop,
            self._front.stop_watching,
            self._monitor.end_waits,
            self._status.readiness.cancel,
            self._front.end_waits,
            # The requests end before the unloads, because requests use the versions.
            self._front.drain,
            # The unloads take all cores, because no request is left that they could slow down.
            self._versions.unload,
            # These waits, in any order, are short, because the threads that were stopped above had the time
            # of the drain and the unloads to end.
            self._models.join,
            self._service.join,
            self._front.join,
            # The last writes come now, because no request or unload can add anything to write any more.
            self._versions.write_last,
            # The timeline ends before tracing and statistics, because it reads the statistics for its last
            # swaps, and passes these swaps to tracing.
            self._versions.end_records,
            self._stop_tracing,
            self._requests.statistics.stop,
            # The pool of spare memory ends last, because until here the memory of a version may return to it.
            self._versions.stop,
        )

    def _begin_serving(self, on_ready: Callable[[int], None], port: int) -> None:
        if self._versions.accelerator is not None:
            self._versions.accelerator.begin_serving()
        on_ready(port)

    def _stop_tracing(self) -> None:
        if not self._tracing.stop(TRACING_TIMEOUT_SECONDS):
            _log.warning("spans_left_behind", timeout_seconds=TRACING_TIMEOUT_SECONDS)


def _is_over(step: Callable[[], bool | None]) -> bool:
    """Does one step of a stop. Returns False if a thread still runs, or if the step has failed."""
    try:
        return step() is not False
    except Exception:  # noqa: BLE001 (a bug; the process has to end all the same)
        _log.exception("stop_failed")
        return False


def _warn_of_lab(config: ServerConfig) -> None:
    if config.lab != NO_LAB:
        _log.warning(
            "lab_settings",
            **asdict(config.lab),
            remedy=f"unset {LAB_VARIABLE} to serve: its settings are for load tests",
        )


def _do_nothing(port: int) -> None:
    """Ignores that a port is open, because the caller of `Server` gave no function for it."""
