"""The server: makes all parts once, and starts and stops them in one place.

Read it from top to bottom: the parts of a server, its start, its stop. The modules `*_parts.py`
make each part from the flags.
"""

import queue
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import structlog

from serving.base.clock import Clock, SystemClock
from serving.base.deferred_module import load_deferred_modules
from serving.base.errors import OperatorError
from serving.base.periodic_thread import PeriodicThread
from serving.base.service_manager import ServiceManager
from serving.config.lab_settings import LAB_VARIABLE, NO_LAB
from serving.config.listen_addresses import listen_addresses
from serving.config.plan import plan_change
from serving.config.server_config import ServerConfig
from serving.core.model_config import ModelConfig
from serving.core.servable import LOADING, START, ServableStatus
from serving.data_plane.plane import DataPlane, native_module
from serving.data_plane.request_statistics import RequestStatistics
from serving.http.health_routes import health_routes
from serving.http.server import HttpServer
from serving.kserve.inference_service import InferenceService
from serving.loading.batch_records import BatchRecords
from serving.loading.batch_refusals import BatchRefusals
from serving.loading.request_cores import pin_always
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import StateMonitor
from serving.reload.config_reload import ConfigReloader
from serving.reload.model_loads import ModelLoads
from serving.reload.served_models import ServedModels
from serving.rpc.config_refusals import ConfigRefusals
from serving.rpc.health import HealthReporter, HealthView
from serving.rpc.model_service import GET_MODEL_STATUS
from serving.rpc.rare_calls import Handler
from serving.rpc.transport import Transport
from serving.server import http_parts, loading_parts, model_parts, monitoring_parts, rpc_parts
from serving.server.admin_parts import make_admin_listener, make_profiler
from serving.server.drain import DrainNotice, drain
from serving.server.foundation import Foundation
from serving.server.load_threads import LoadThreads
from serving.server.logs import flush_logs
from serving.server.port_reservation import PortReservation
from serving.server.readiness_watch import ReadinessWatch
from serving.server.request_parts import make_request_parts
from serving.server.service_notices import (
    ServiceNotices,
    ServiceState,
    answers_grpc,
    answers_http,
)
from serving.server.stop_signals import StopSignals
from serving.server.stop_timeouts import (
    BLOCKED_VERSIONS_TIMEOUT_SECONDS,
    CAPTURE_TIMEOUT_SECONDS,
    PROFILER_TIMEOUT_SECONDS,
    SOURCE_TIMEOUT_SECONDS,
    TRACING_TIMEOUT_SECONDS,
    UNLOAD_TIMEOUT_SECONDS,
)
from serving.source.poll_schedule import PollLimits
from serving.source.poller_pool import PollerPool

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
        on_listening: Callable[[int], None] = lambda port: None,
        on_ready: Callable[[int], None] = lambda port: None,
    ) -> None:
        """Makes all parts. Raises InvalidConfig. Nothing listens, polls or loads yet.

        `reserved_port` is a reservation of gRPC's port, which the server takes over and closes. If it
        is None, `start` reserves the port.
        """
        self._plane = native or native_module()
        self._clock = clock or SystemClock()
        self._config = config
        self._foundation = Foundation(config, self._plane, self._clock)
        self._on_listening, self._on_ready = on_listening, on_ready
        self._reserved_port = reserved_port
        self._stop_requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._refused: frozenset[str] = frozenset()
        self._first_plan = plan_change((), config.models)
        model_parts.check_platforms(config)
        if config.lab != NO_LAB:
            _log.warning(
                "lab_settings",
                **asdict(config.lab),
                remedy=f"unset {LAB_VARIABLE} to serve: its settings are for load tests",
            )
        rpc_parts.initialize(self._foundation)
        # Each step needs the parts that the steps before it have made.
        self._make_data_plane_state()
        self._make_manager()
        self._make_models()
        self._make_services()

    def _make_data_plane_state(self) -> None:
        """Makes the data plane's state, and the memory and threads of loads."""
        self._monitor = StateMonitor(self._clock)
        self._tracing = monitoring_parts.make_tracing(self._foundation)
        self._requests = make_request_parts(self._foundation, spans=self._tracing.requests)
        self._service = PeriodicThread(
            "service",
            self._on_service_turn,
            wait_seconds=self._service_wait_seconds,
            failure_event="service_notices_failed",
            clock=self._clock,
        )
        self._notes = NotePublisher(
            self._requests.serving_map, self._monitor.versions, self._service.wake
        )
        self._monitor.add_stage_listener(self._notes.on_status)
        self._slab_pool = loading_parts.make_slab_pool(self._foundation)
        self._load_threads = LoadThreads(self._foundation)
        self._reservoirs = loading_parts.make_reservoirs(self._foundation)
        self._capture = loading_parts.make_capture(
            self._foundation,
            reservoirs=self._reservoirs,
            enter_background=self._load_threads.enter_background,
        )

    def _make_manager(self) -> None:
        """Makes the parts that load the aspired versions and publish them."""
        config, clock = self._config, self._clock
        arenas = loading_parts.make_arenas(config, self._slab_pool)
        self._streams = model_parts.make_streams(self._foundation)
        self._batch_records = BatchRecords()
        self._monitor.add_listener(self._batch_records.on_status)
        self._batch_refusals = BatchRefusals(clock)
        self._monitor.add_listener(self._batch_refusals.on_status)
        load_settings = loading_parts.load_settings(
            self._foundation,
            arenas=arenas,
            incumbent=self._streams.incumbent,
            request_statistics=self._requests.statistics,
            batch_records=self._batch_records,
            batch_refusals=self._batch_refusals,
        )
        self._loads = ModelLoads(
            load_settings,
            reservoirs=self._reservoirs,
            batching=loading_parts.make_batching(self._foundation),
            plane=self._plane,
            clock=clock,
        )
        self._blocked_version_keeper = model_parts.make_blocked_version_keeper(self._foundation)
        self._swaps = monitoring_parts.make_swap_timeline(
            statistics=self._requests.statistics,
            monitor=self._monitor,
            streams=self._streams,
            slab_pool=self._slab_pool,
            clock=clock,
            on_over=self._tracing.add_swap,
        )
        self._manager = model_parts.make_manager(
            self._foundation,
            loaders=self._load_threads.loaders,
            unloaders=self._load_threads.unloaders,
            loader=self._loads,
            arenas=arenas,
            monitor=self._monitor,
            serving_map=self._requests.serving_map,
            streams=self._streams,
            notes=self._notes,
            blocked_version_keeper=self._blocked_version_keeper,
            listener=model_parts.ModelListener(
                models=lambda: self._models,
                swaps=self._swaps,
                blocked_version_keeper=self._blocked_version_keeper,
            ),
        )

    def _make_models(self) -> None:
        """Makes the configured models, their sources and the reload of the configuration."""
        config, clock = self._config, self._clock
        self._pollers = PollerPool(PollLimits(), clock)
        self._grants = model_parts.make_grants(self._foundation, models=lambda: self._models)
        self._models = ServedModels(
            make_source=partial(
                model_parts.make_source,
                self._foundation,
                pollers=self._pollers,
                manager=self._manager,
                streams=self._streams,
                monitor=self._monitor,
                notes=self._notes,
                grants=self._grants,
            ),
            set_loaders=self._set_models,
            manager=self._manager,
            set_labels=self._manager.set_labels,
            names_changed=self._on_names_changed,
            base_paths=model_parts.StoreBasePaths(
                self._foundation,
                self._monitor,
                enter_background=self._load_threads.enter_background,
            ),
        )
        self._reloader = ConfigReloader(self._models, self._monitor, config.model_settings, clock)
        self._control = model_parts.ModelControl(
            monitor=self._monitor,
            manager=self._manager,
            streams=self._streams,
            served=self._models,
            reloader=self._reloader,
            pollers=self._pollers,
        )
        self._watcher = model_parts.make_config_watcher(
            self._foundation, reloader=self._reloader, served=self._models
        )

    def _make_services(self) -> None:
        """Makes the services that clients reach."""
        config = self._config
        self._drain_notice = DrainNotice(self._clock)
        self._transport = Transport(config, self._plane, self._clock)
        self._refusals = ConfigRefusals(self._watcher, self._transport)
        self._inference_questions = rpc_parts.make_inference_questions(
            self._foundation,
            self._control,
            request_statistics=self._requests.statistics,
            view=self._health_view,
        )
        handlers = {
            **rpc_parts.make_rare_handlers(
                self._control,
                reservoirs=self._reservoirs,
                refusals=self._refusals,
                blocked_version_keeper=self._blocked_version_keeper,
            ),
            **InferenceService(self._inference_questions).handlers,
            **rpc_parts.make_fleet_handlers(
                self._foundation,
                self._control,
                grants=self._grants,
                methods=self._requests.statistics.methods,
                view=self._health_view,
                drain_reported=self._drain_notice.note_report,
            ),
        }
        self._profiler = make_profiler(self._foundation)
        calls = {**handlers, **(self._profiler.handlers if config.enable_profiler else {})}
        make_grpc = partial(
            rpc_parts.make_grpc_server,
            self._foundation,
            requests=self._requests,
            rare_methods=list(calls),
            transport=self._transport,
        )
        self._grpc = make_grpc()
        self._admin = make_admin_listener(
            self._foundation,
            handlers=calls,
            make_grpc=make_grpc,
            on_answered=self._tracing.add_call,
        )
        self._cores = loading_parts.make_request_cores(config, self._grpc)
        self._load_threads.keep_off(self._cores)
        self._rare_calls = rpc_parts.make_rare_calls(
            self._foundation,
            self._grpc.take_rare_call,
            calls,
            on_answered=self._tracing.add_call,
        )
        self._health = HealthReporter(
            [model.name for model in config.models],
            self._monitor.statuses,
            self._grpc.set_health,
            self._grpc.remove_health,
            excused=self._excused_models,
        )
        self._readiness = ReadinessWatch(
            models=self._models,
            monitor=self._monitor,
            health=self._health,
            excused=self._excused_models,
            max_startup_wait_seconds=config.max_startup_wait_seconds,
            on_ready=self._on_ready,
            clock=self._clock,
        )
        self._rest_workers = http_parts.make_rest_workers(self._foundation, requests=self._requests)
        self._grpc.share_batches_with(self._rest_workers.waiting_requests)
        self._rest_bridge = http_parts.make_rest_bridge(
            self._foundation, workers=self._rest_workers, cores=self._cores
        )
        self._http = self._make_http(handlers[GET_MODEL_STATUS])
        self._service_notices = ServiceNotices(
            ServiceManager(), self._service_state, self._is_answering
        )
        self._monitor.add_listener(self._on_state_change)

    def _make_http(self, get_model_status: Handler) -> HttpServer:
        settings = http_parts.http_settings(self._config, self._requests.memory.budget)
        rest = http_parts.make_rest_applications(
            self._foundation,
            settings,
            workers=self._rest_workers,
            bridge=self._rest_bridge,
            get_model_status=get_model_status,
            inference_questions=self._inference_questions,
            names=lambda: self._models.names,
            statuses=self._monitor.statuses,
        )
        monitored = monitoring_parts.make_monitored_parts(
            self._foundation,
            self._control,
            requests=self._requests,
            grpc=self._grpc,
            swaps=self._swaps,
            slab_pool=self._slab_pool,
            batches=self._batch_records,
            reservoirs=self._reservoirs,
            health=self._health,
            refusals=self._refusals,
            tracing=self._tracing,
        )
        routes = [
            *health_routes(self._health_view, self._models.notes),
            *monitoring_parts.make_routes(self._foundation, monitored, self._swaps),
        ]
        return http_parts.make_http_server(self._foundation, settings, routes, rest)

    @property
    def port(self) -> int:
        """The TCP port of gRPC."""
        return self._grpc.port

    @property
    def http_port(self) -> int | None:
        """The TCP port of HTTP; None if HTTP is off."""
        return self._http.port

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
        self._health.update()
        config = self._config
        if config.grpc_descriptors or config.rest_api_port.descriptors:
            grpc, rest = config.grpc_descriptors, config.rest_api_port.descriptors
            _log.info("sockets_handed_in", grpc=list(grpc), rest=list(rest))
        reserved = self._reserved_port
        self._reserved_port = reserved or PortReservation.take(listen_addresses(self._config))
        try:
            http_parts.start_http(self._foundation, self._http, self._rest_workers)
            self._admin.start()
            if self._config.listen_before_ready:
                self._listen()
        except BaseException:
            self._admin.stop()
            self._reserved_port.close()
            self._http.stop()
            self._http.join()
            self._rest_workers.shutdown(0)
            raise
        if not self._readiness.is_listening and self._http.port is not None:
            _log.info("http_listening", host=self._config.http_host, http_port=self._http.port)
        self._start_threads()

    def _start_threads(self) -> None:
        # The first configuration precedes all calls, because a call may change the configuration.
        self._pollers.start()
        self._reloader.apply_first(self._first_plan)
        self._rare_calls.start()
        self._admin.answer()
        self._load_threads.start()
        self._batch_refusals.start()
        if self._capture is not None:
            self._capture.start()
        self._blocked_version_keeper.start()
        self._swaps.start()
        self._tracing.start()
        self._manager.start()
        if self._watcher is not None:
            self._watcher.start()
        self._transport.start()
        self._service.start()

    def _listen(self) -> None:
        """Opens gRPC's port. Raises Unavailable or InvalidConfig."""
        assert self._reserved_port is not None
        self._load_threads.end_initial()
        self._reserved_port.let_go()
        with rpc_parts.grpc_status_details(self._foundation):
            self._grpc.start()
        self._reserved_port.close()
        _log.info("listening", host=self._config.host, port=self.port, http_port=self._http.port)
        self._on_listening(self.port)
        if self._config.pin_request_threads == "always":
            pin_always(self._grpc.pin_request_threads)
        elif self._cores is not None:
            self._cores.pin_again()
        self._readiness.note_listening(self.port)
        self._service.wake()

    def request_stop(self, reason: str) -> None:
        """Makes `wait` return `reason`. Any thread."""
        self._stop_requests.put(reason)
        self._readiness.cancel()

    def wait(self) -> str:
        """Opens gRPC's port once no model is awaited. Then waits until a stop is requested.

        Returns the reason of the stop. Raises Unavailable or InvalidConfig if the port cannot be opened.
        """
        if not self._readiness.is_listening and self._readiness.wait():
            self._listen()
            self._readiness.report()
        return self._stop_requests.get()

    def stop(self) -> bool:
        """Waits for the running requests, unloads all versions and ends all threads.

        Waits up to `drain_seconds` for the requests, and cuts the others short. Then waits up to
        UNLOAD_TIMEOUT_SECONDS for the unloads. Returns False if a thread still runs.

        A member of a fleet answers requests as before for a few seconds first (`DrainNotice`).
        """
        # 1. Report the stop, so that balancers and clients turn to other servers. Stop the parts that
        #    begin work: reloads, polls and traces. End the waits of calls, because the drain waits
        #    for these calls.
        self._report_stop()
        self._rest_bridge.drain()
        if self._watcher is not None:
            self._watcher.stop()
        self._transport.stop()
        self._reloader.stop()
        self._models.stop()
        self._pollers.stop()
        self._monitor.end_waits()
        self._readiness.cancel()
        self._profiler.stop()
        # 2. Let the requests end before the unloads: they still use the versions.
        drain(
            self._config.drain_seconds,
            grpc=self._grpc,
            admin=self._admin,
            http=self._http,
            rest_workers=self._rest_workers,
            clock=self._clock,
        )
        if self._reserved_port is not None:
            self._reserved_port.close()
        is_over = [self._rare_calls.stop(), self._profiler.join(PROFILER_TIMEOUT_SECONDS)]
        # 3. Unload all versions, at full speed: no request is left that an unload could slow down.
        self._load_threads.hurry_unloads()
        self._swaps.begin_stop()
        is_over.append(self._manager.stop(UNLOAD_TIMEOUT_SECONDS))
        # 4. Wait for the threads that step 1 has stopped. They had time to end during the drain and
        #    the unloads, so these waits are short. Write the last blocked versions and captured
        #    requests: the manager and the requests have ended.
        is_over.append(self._models.join(SOURCE_TIMEOUT_SECONDS))
        is_over.append(self._service.join(SOURCE_TIMEOUT_SECONDS))
        is_over.append(self._pollers.join(SOURCE_TIMEOUT_SECONDS))
        is_over.append(self._blocked_version_keeper.stop(BLOCKED_VERSIONS_TIMEOUT_SECONDS))
        if self._watcher is not None:
            is_over.append(self._watcher.join(SOURCE_TIMEOUT_SECONDS))
        is_over.append(self._transport.join(SOURCE_TIMEOUT_SECONDS))
        if self._capture is not None:
            is_over.append(self._capture.stop(CAPTURE_TIMEOUT_SECONDS))
        is_over.append(self._http.join())
        # 5. Stop the other parts. The timeline passes its last swaps to tracing, so it stops first.
        self._swaps.stop()
        if not self._tracing.stop(TRACING_TIMEOUT_SECONDS):
            _log.warning("spans_left_behind", timeout_seconds=TRACING_TIMEOUT_SECONDS)
        self._requests.statistics.stop()
        self._batch_refusals.stop()
        self._load_threads.stop()
        if self._slab_pool is not None:
            self._slab_pool.stop()
        _log.info("stopped", is_complete=all(is_over))
        return all(is_over)

    def _report_stop(self) -> None:
        """Reports that this server drains. For a member of a fleet, waits until the fleet knows."""
        self._service.stop()
        self._service_notices.report_stop()
        self._health.drain()
        if self._grants is not None and self._readiness.is_listening:
            self._drain_notice.wait(self._config.drain_seconds)

    def _health_view(self) -> HealthView:
        """Returns the health; a method, because `_health` is made later than its callers."""
        return self._health.view()

    def _set_models(self, models: Sequence[ModelConfig]) -> None:
        self._loads.set_models(models)
        self._requests.admission.set_model_limits(rpc_parts.model_limits(models))

    def _on_names_changed(self, names: Sequence[str]) -> None:
        self._requests.statistics.add_models(list(names))
        self._health.set_models(names)
        self._notes.set_models(names)
        self._readiness.report()

    def _excused_models(self) -> frozenset[str]:
        """Returns the models that the server is ready without."""
        return frozenset(self._models.unloaded) | self._notes.refused

    def _on_state_change(self, status: ServableStatus) -> None:
        # Skips START and LOADING: they change neither result, and both calls visit all models.
        if status.state not in (START, LOADING):
            self._health.update()
            self._readiness.report()
            self._service.wake()

    def _on_service_turn(self) -> None:
        """Looks for models that have become refused, and reports to the service manager."""
        refused = self._notes.refused
        if refused != self._refused:
            self._refused = refused
            self._health.update()
            self._readiness.report()
        self._service_notices.report()

    def _service_wait_seconds(self) -> float | None:
        """Returns the time until the next turn; a method, because `_service_notices` is made later."""
        return self._service_notices.wait_seconds()

    def _service_state(self) -> ServiceState:
        view = self._health_view()
        return ServiceState(
            is_ready=view.is_serving and self._readiness.is_listening,
            model_count=len(view.models),
            unavailable=[name for name in view.models if not view.is_model_serving(name)],
        )

    def _is_answering(self) -> bool:
        """Returns True if the open ports answer. On the thread `service`."""
        config = self._config
        http_port = self._http.port
        if http_port is not None and not answers_http(config.http_host, http_port):
            return False
        is_grpc_over_tcp = self._readiness.is_listening and self.port != 0
        return not is_grpc_over_tcp or answers_grpc(config.host, self.port)
