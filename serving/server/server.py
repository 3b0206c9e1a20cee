"""The server: makes all parts once, and starts and stops them in one place.

Read it from top to bottom: the parts of a server, its start, its stop. The modules `*_parts.py`
make each part from the flags.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import structlog
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from serving.base.clock import NS_PER_SECOND, Clock, SystemClock
from serving.base.errors import OperatorError
from serving.config.listen_addresses import listen_addresses
from serving.config.plan import plan_change
from serving.config.server_config import ModelConfig, ServerConfig
from serving.core.servable import LOADING, START, ServableId, ServableStatus
from serving.data_plane.plane import DataPlane, native_module
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.servables import Servable
from serving.http.health_routes import health_routes, readiness
from serving.http.server import RESPONSE_SECONDS, HttpServer
from serving.kserve.inference_api import InferenceApi
from serving.kserve.inference_service import InferenceService
from serving.loading.loader import statuses_as_errors
from serving.loading.request_cores import pin_always
from serving.manager.model_notes import NotePublisher
from serving.manager.router import Router
from serving.manager.startup_wait import AwaitedModel, StartupWait, awaited_models
from serving.manager.state_monitor import StateMonitor
from serving.monitoring.collector import MetricsExposition
from serving.monitoring.metric_sources import MetricSources
from serving.monitoring.metrics_routes import metrics_routes
from serving.monitoring.page_routes import page_routes
from serving.monitoring.server_sources import arena_statistics, models_ready, reservoir_statistics
from serving.monitoring.swap_routes import swap_routes
from serving.reload.config_reload import ConfigReloader
from serving.reload.served_models import ServedModels
from serving.rest.model_api import ModelApi, ModelQuestions
from serving.rest.openapi import openapi_routes
from serving.rpc.health import HealthReporter, HealthView, why_unavailable
from serving.rpc.model_service import GET_MODEL_STATUS
from serving.rpc.rare_calls import Handler, RareCallThreads
from serving.rpc.transport import Transport
from serving.server import http_parts, loading_parts, model_parts, monitoring_parts, rpc_parts
from serving.server.admin_parts import (
    guarded,
    make_admin_listener,
    make_operator_access,
    make_profiler,
)
from serving.server.foundation import Foundation
from serving.server.logs import dropped_line_count, flush_logs
from serving.server.model_loaders import ModelLoaders
from serving.server.port_reservation import PortReservation
from serving.server.stop_signals import StopSignals
from serving.source.poll_schedule import PollLimits
from serving.source.poller_pool import PollerPool

UNLOAD_TIMEOUT_SECONDS = 10.0
"""How long a stop waits, after the requests, for loads to end and versions to be freed. A load ends
at its next stage; the process's end frees the versions that are left."""

SOURCE_TIMEOUT_SECONDS = 0.1
"""How long a stop waits for each source and each watch of config files: a poll takes milliseconds,
or hangs on a dead disk."""

BLOCKED_VERSIONS_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for unwritten blocked versions: a kilobyte, or a dead disk."""

CAPTURE_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for the recent requests to be written: megabytes, or a dead disk."""

TRACING_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for the last spans to go out: one POST, or a collector that is gone."""

PROFILER_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for a trace to be written, after the drain has waited for its reply."""

_log = structlog.get_logger(__name__)


class Server:
    """One model server. It is started once and stopped once; `run` does both and handles signals.

    HTTP answers from `start` on: health is NOT_SERVING until every model has a version AVAILABLE.
    gRPC's port is reserved by then. `wait` opens it when every model has a version that is
    AVAILABLE or has failed for good; with `listen_before_ready`, `start` opens it. `on_listening`
    is called with the port when it is open, `on_ready` when it is open and no model is awaited.
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

        `reserved_port` is gRPC's port, and the server closes it; if it is None, `start` reserves
        it.
        """
        self._plane = native or native_module()
        self._clock = clock or SystemClock()
        self._config = config
        self._foundation = Foundation(config, self._plane, self._clock)
        self._on_listening, self._on_ready = on_listening, on_ready
        self._reserved_port = reserved_port
        self._is_listening = self._is_ready = False
        self._readiness = threading.Lock()
        self._startup_wait = StartupWait(
            self._awaited_models, max_seconds=config.max_startup_wait_seconds, clock=self._clock
        )
        self._stop_requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._first_plan = plan_change((), config.models)
        model_parts.check_platforms(config)
        rpc_parts.initialize(self._foundation)
        # Each step needs the parts that the steps before it have made.
        self._make_data_plane_state()
        self._make_manager()
        self._make_models()
        self._make_services()

    def _make_data_plane_state(self) -> None:
        """Makes the data plane's state, and the memory and threads of loads."""
        config, plane = self._config, self._plane
        self._serving_map = plane.ServingMap()
        self._monitor = StateMonitor(self._clock)
        self._awaited_model = AwaitedModel(self._monitor.versions)
        self._notes = NotePublisher(self._serving_map, self._monitor.versions)
        self._monitor.add_stage_listener(self._notes.on_status)
        self._request_statistics = plane.RequestStatistics()
        self._admission = plane.Admission(config.max_in_flight_requests)
        self._memory = rpc_parts.make_request_memory(self._foundation)
        self._tracing = monitoring_parts.make_tracing(self._foundation)
        self._slab_pool = loading_parts.make_slab_pool(self._foundation)
        self._enter_background = loading_parts.make_background(self._foundation)
        self._starvation_watch = loading_parts.make_starvation_watch(
            self._foundation, enter_background=self._enter_background
        )
        self._reservoirs = loading_parts.make_reservoirs(self._foundation)
        self._capture = loading_parts.make_capture(
            self._foundation, reservoirs=self._reservoirs, enter_background=self._enter_background
        )

    def _make_manager(self) -> None:
        """Makes the parts from aspired versions to versions that are loaded and answer."""
        config, clock = self._config, self._clock
        arenas = loading_parts.make_arenas(config, self._slab_pool)
        load_settings = loading_parts.load_settings(
            self._foundation,
            arenas=arenas,
            incumbent=self._incumbent,
            request_statistics=self._request_statistics,
        )
        self._loaders = ModelLoaders(
            load_settings, reservoirs=self._reservoirs, plane=self._plane, clock=clock
        )
        self._router = Router(self._serving_map)
        self._blocked_version_keeper = model_parts.make_blocked_version_keeper(self._foundation)
        self._swaps = monitoring_parts.make_swap_timeline(
            statistics=self._request_statistics,
            monitor=self._monitor,
            router=self._router,
            slab_pool=self._slab_pool,
            clock=clock,
            on_over=self._tracing.add_swap,
        )
        self._initial_loads = loading_parts.make_initial_loads(
            self._foundation, around_background=self._around_background
        )
        self._load_executor = loading_parts.make_executor(
            "loader",
            config.num_load_threads,
            initial_thread_count=loading_parts.initial_thread_count(config),
            enter_thread=self._initial_loads.enter_thread,
            around_task=self._initial_loads.task,
        )
        self._unload_executor = loading_parts.make_executor(
            "unloader",
            config.num_unload_threads,
            enter_thread=self._enter_background,
            around_task=self._around_unload,
        )
        self._manager = model_parts.make_manager(
            self._foundation,
            loaders=self._load_executor,
            unloaders=self._unload_executor,
            make_loader=self._loaders.make,
            arenas=arenas,
            monitor=self._monitor,
            router=self._router,
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
        self._pollers = PollerPool(PollLimits(), clock, on_stuck_changed=self._on_stuck_changed)
        self._models = ServedModels(
            make_source=partial(
                model_parts.make_source,
                self._foundation,
                pollers=self._pollers,
                manager=self._manager,
                router=self._router,
                monitor=self._monitor,
                notes=self._notes,
            ),
            set_loaders=self._set_models,
            manager=self._manager,
            set_labels=self._router.set_labels,
            names_changed=self._on_names_changed,
        )
        self._reloader = ConfigReloader(self._models, self._monitor, config.model_settings, clock)
        self._watcher = model_parts.make_config_watcher(
            self._foundation, reloader=self._reloader, served=self._models
        )

    def _make_services(self) -> None:
        """Makes the services that clients reach."""
        config = self._config
        self._transport = Transport(config, self._plane, self._clock)
        self._inference_questions = rpc_parts.make_inference_questions(
            self._foundation,
            monitor=self._monitor,
            manager=self._manager,
            router=self._router,
            served=self._models,
            reloader=self._reloader,
            request_statistics=self._request_statistics,
            view=self._health_view,
        )
        handlers = {
            **rpc_parts.make_rare_handlers(
                monitor=self._monitor,
                manager=self._manager,
                router=self._router,
                served=self._models,
                reloader=self._reloader,
                reservoirs=self._reservoirs,
                watcher=self._watcher,
                transport=self._transport,
                wait_until_kept=self._blocked_version_keeper.wait_until_kept,
            ),
            **InferenceService(self._inference_questions).handlers,
        }
        self._profiler = make_profiler(self._foundation)
        calls = {**handlers, **(self._profiler.handlers if config.enable_profiler else {})}
        make_grpc = partial(
            rpc_parts.make_grpc_server,
            self._foundation,
            serving_map=self._serving_map,
            rare_methods=list(calls),
            request_statistics=self._request_statistics,
            spans=self._tracing.requests,
            admission=self._admission,
            transport=self._transport,
            memory=self._memory,
        )
        self._grpc = make_grpc()
        self._admin = make_admin_listener(
            self._foundation,
            handlers=calls,
            make_grpc=make_grpc,
            on_answered=self._tracing.add_call,
        )
        self._cores = loading_parts.make_request_cores(config, self._grpc)
        self._rare_calls = RareCallThreads(
            self._grpc.take_rare_call,
            guarded(calls, config),
            on_answered=self._tracing.add_call,
            # Two calls may wait at once, for a configuration and for a model; the third thread
            # answers.
            thread_count=3,
            clock=self._clock,
        )
        self._health = HealthReporter(
            [model.name for model in config.models],
            self._monitor.statuses,
            self._grpc.set_health,
            self._grpc.remove_health,
            excused=lambda: self._models.unloaded,
            stuck=self._unready_stuck_models,
        )
        self._rest_workers = http_parts.make_rest_workers(
            self._foundation,
            serving_map=self._serving_map,
            request_statistics=self._request_statistics,
            spans=self._tracing.requests,
            admission=self._admission,
            memory=self._memory,
        )
        self._rest_bridge = http_parts.make_rest_bridge(
            self._foundation, workers=self._rest_workers, cores=self._cores
        )
        self._http = self._make_http(handlers[GET_MODEL_STATUS])
        self._monitor.add_listener(self._on_state_change)

    def _make_http(self, get_model_status: Handler) -> HttpServer:
        questions = ModelQuestions(
            get_model_status=get_model_status,
            get_model_metadata=self._rest_workers.get_model_metadata,
            names=lambda: self._models.names,
            statuses=self._monitor.statuses,
            status_error=self._plane.StatusError,
        )
        settings = http_parts.rest_settings(self._config, self._memory)
        models = ModelApi(self._rest_bridge, questions, settings)
        rest: dict[str, ASGIApp] = {
            "/v1/models": models,
            "/v2": InferenceApi(
                self._rest_bridge,
                self._inference_questions,
                settings,
                check_control=make_operator_access(self._config).check_control,
            ),
        }
        # Any other path below /v1 is answered as malformed, as in TensorFlow Serving.
        document = http_parts.openapi(self._plane)
        routes = [*self._http_routes(), *openapi_routes(document), Mount("/v1", models)]
        return http_parts.make_http_server(self._config, routes, rest, self._memory)

    def _http_routes(self) -> list[BaseRoute]:
        metrics = self._metric_sources()
        return [
            *health_routes(self._health.view, self._models.notes),
            *metrics_routes(MetricsExposition(metrics), self._config.metrics_path),
            *swap_routes(self._swaps),
            *page_routes(
                monitoring_parts.make_page_data(
                    metrics, self._swaps, self._unavailable_reasons, self._clock
                )
            ),
        ]

    def _metric_sources(self) -> MetricSources:
        return MetricSources(
            requests=self._request_statistics,
            admission=self._admission,
            budget=self._memory.budget,
            runs_ended_by_memory=self._plane.runs_ended_by_memory,
            statuses=self._monitor.statuses,
            swap_counts=self._swaps.counts,
            arena=partial(arena_statistics, self._plane, self._manager.servable),
            slab_pool=None if self._slab_pool is None else self._slab_pool.statistics,
            request_memory=self._plane.request_memory_statistics,
            reservoirs=partial(reservoir_statistics, self._reservoirs),
            routing=self._router.routing,
            default_version=self._router.answering,
            base_path=self._models.base_path,
            config_change_count=lambda: self._reloader.applied_count,
            is_config_refused=self._is_config_refused,
            swaps=self._swaps.records,
            models_ready=partial(models_ready, self._health.view),
            model_memory_limit_bytes=self._config.model_memory_limit_bytes,
            spans_dropped=self._tracing.dropped_counts,
            log_lines_dropped=dropped_line_count,
            stuck_sources=lambda: self._pollers.stuck_keys,
            stuck_poller_count=lambda: self._pollers.stuck_thread_count,
            build_info=self._plane.build_info(),
            clock=self._clock,
        )

    def _unavailable_reasons(self) -> Mapping[str, str | None]:
        return readiness(self._health.view(), self._models.notes).reason_by_model

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
        """The state of every version; it can be waited on for the state of one version."""
        return self._monitor

    @property
    def request_statistics(self) -> RequestStatistics:
        """The counts and latencies of each version's requests."""
        return self._request_statistics

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
                # The data plane still runs something, and its libraries are about to be unloaded.
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
        """Reserves gRPC's port, serves HTTP, then begins to look for versions.

        Raises Unavailable or InvalidConfig if a port cannot be opened.
        """
        self._health.update()
        reserved = self._reserved_port
        self._reserved_port = reserved or PortReservation.take(listen_addresses(self._config))
        try:
            self._start_http()
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
        if not self._is_listening:
            _log.info("http_listening", host=self._config.host, http_port=self._http.port)
        self._start_threads()

    def _start_threads(self) -> None:
        # Before any call is answered: a call may change the configuration.
        self._pollers.start()
        self._reloader.apply_first(self._first_plan)
        self._rare_calls.start()
        self._admin.answer()
        if self._starvation_watch is not None:
            self._starvation_watch.start()
        if self._capture is not None:
            self._capture.start()
        self._blocked_version_keeper.start()
        self._swaps.start()
        self._tracing.start()
        self._manager.start()
        if self._watcher is not None:
            self._watcher.start()
        self._transport.start()

    def _listen(self) -> None:
        """Opens gRPC's port. Raises Unavailable or InvalidConfig."""
        assert self._reserved_port is not None
        self._initial_loads.end()
        self._load_executor.keep(max(1, self._config.num_load_threads))
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
        self._is_listening = True

    def _start_http(self) -> None:
        with statuses_as_errors(self._plane.StatusError):
            self._rest_workers.start()
        try:
            self._http.start()
        finally:
            # Only the HTTP server gives the workers requests.
            if self._http.port is None:
                self._rest_workers.shutdown(0)

    def request_stop(self, reason: str) -> None:
        """Makes `wait` return `reason`. Any thread."""
        self._stop_requests.put(reason)
        self._startup_wait.cancel()

    def wait(self) -> str:
        """Opens gRPC's port once no model is awaited, waits for a stop and returns its reason.

        Raises Unavailable or InvalidConfig if the port cannot be opened.
        """
        if not self._is_listening and self._startup_wait.wait():
            self._listen()
            self._report_readiness()
        return self._stop_requests.get()

    def _awaited_models(self) -> dict[str, str]:
        """Returns the models that keep gRPC's port closed, with the reason for each."""
        names, statuses = self._models.names, self._monitor.statuses()
        awaited = awaited_models(names, statuses, self._models.unloaded)
        reasons = readiness(self._health.view(), self._models.notes).reason_by_model
        return {name: reasons.get(name) or "no version is available" for name in awaited}

    def stop(self) -> bool:
        """Lets the running requests finish, unloads everything, ends all threads.

        Takes up to `drain_seconds` for the requests, which are then cut short, and after that up
        to UNLOAD_TIMEOUT_SECONDS. Returns False if something still runs.
        """
        self._health.drain()
        self._rest_bridge.drain()
        if self._watcher is not None:
            self._watcher.stop()
        self._transport.stop()
        self._reloader.stop()
        self._models.stop()
        self._pollers.stop()
        self._monitor.end_waits()
        self._startup_wait.cancel()
        self._profiler.stop()
        self._drain()
        if self._reserved_port is not None:
            self._reserved_port.close()
        is_over = [self._rare_calls.stop(), self._profiler.join(PROFILER_TIMEOUT_SECONDS)]
        self._hurry_unloads()
        self._swaps.begin_stop()
        is_over.append(self._manager.stop(UNLOAD_TIMEOUT_SECONDS))
        is_over.append(self._models.join(SOURCE_TIMEOUT_SECONDS))
        is_over.append(self._pollers.join(SOURCE_TIMEOUT_SECONDS))
        is_over.append(self._blocked_version_keeper.stop(BLOCKED_VERSIONS_TIMEOUT_SECONDS))
        if self._watcher is not None:
            is_over.append(self._watcher.join(SOURCE_TIMEOUT_SECONDS))
        is_over.append(self._transport.join(SOURCE_TIMEOUT_SECONDS))
        if self._capture is not None:
            is_over.append(self._capture.stop(CAPTURE_TIMEOUT_SECONDS))
        is_over.append(self._http.join())
        self._swaps.stop()
        if not self._tracing.stop(TRACING_TIMEOUT_SECONDS):
            _log.warning("spans_left_behind", timeout_seconds=TRACING_TIMEOUT_SECONDS)
        self._request_statistics.stop()
        if self._starvation_watch is not None:
            self._starvation_watch.stop()
        if self._slab_pool is not None:
            self._slab_pool.stop()
        _log.info("stopped", is_complete=all(is_over))
        return all(is_over)

    def _drain(self) -> None:
        """Lets the running requests end. gRPC's end first: until then HTTP reports the drain."""
        drain_seconds = self._config.drain_seconds
        end_ns = self._clock.now_ns() + int(drain_seconds * NS_PER_SECOND)

        def remaining_seconds() -> float:
            return max(0, end_ns - self._clock.now_ns()) / NS_PER_SECOND

        if not self._grpc.shutdown(drain_seconds):
            _log.warning("requests_cut_short", drain_seconds=drain_seconds)
        # Only now: operators can watch the drain until here.
        self._admin.stop()
        # The port closes before the workers do, or they would refuse what still comes in there.
        self._http.stop(remaining_seconds() + RESPONSE_SECONDS)
        self._http.join(remaining_seconds())
        if not self._rest_workers.shutdown(remaining_seconds()):
            _log.warning("http_requests_cut_short", drain_seconds=drain_seconds)

    def _hurry_unloads(self) -> None:
        """Unloads versions at normal priority from now on: no request is left to be slowed down."""
        loading_parts.hurry_unloads(self._foundation, unloaders=self._unload_executor)

    def _incumbent(self, servable_id: ServableId) -> Servable | None:
        """Returns the version that a new version is compared with. On a loader thread."""
        return self._manager.incumbent(servable_id)

    def _health_view(self) -> HealthView:
        """Returns the health; a method, because `_health` is made later than its callers."""
        return self._health.view()

    def _is_config_refused(self) -> bool:
        is_config_refused = self._watcher is not None and self._watcher.refusal is not None
        return is_config_refused or self._transport.refusal is not None

    def _set_models(self, models: Sequence[ModelConfig]) -> None:
        self._loaders.set_models(models)
        default = self._config.max_in_flight_requests_per_model
        self._admission.set_model_limits(rpc_parts.model_limits(models, default))

    def _on_names_changed(self, names: Sequence[str]) -> None:
        self._request_statistics.add_models(list(names))
        self._health.set_models(names)
        self._notes.set_models(names)
        self._report_readiness()

    def _around_unload(self) -> AbstractContextManager[None]:
        return self._around_background(threading.get_native_id())

    @contextmanager
    def _around_background(self, thread_id: int) -> Iterator[None]:
        """Pins and watches the thread with that id while it loads or unloads at lowered
        priority.
        """
        with ExitStack() as stack:
            if self._cores is not None:
                stack.enter_context(self._cores.pinned(thread_id))
            if self._starvation_watch is not None:
                stack.enter_context(self._starvation_watch.watched(thread_id))
            yield

    def _unready_stuck_models(self) -> frozenset[str]:
        return frozenset() if self._config.ready_with_stuck_sources else self._pollers.stuck_keys

    def _on_stuck_changed(self) -> None:
        self._health.update()

    def _on_state_change(self, status: ServableStatus) -> None:
        # Both calls look at all models, and neither depends on a version that is still loading.
        if status.state not in (START, LOADING):
            self._health.update()
            self._report_readiness()

    def _report_readiness(self) -> None:
        """Logs, once, that the port is open and no model is awaited. Any thread."""
        with self._readiness:
            names = self._models.names
            if self._is_ready or self._awaited_model.find(names, self._models.unloaded):
                return
            self._startup_wait.changed()
            if not self._is_listening:
                return
            self._is_ready = True
        statuses = self._monitor.statuses()
        unavailable = [name for name in names if why_unavailable(statuses.get(name, ()))]
        # Operators wait for this line: it is a warning if any model is unavailable.
        report = _log.warning if unavailable else _log.info
        report("ready", port=self.port, models=list(names), unavailable=unavailable)
        self._on_ready(self.port)
