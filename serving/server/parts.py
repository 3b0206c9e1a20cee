"""The parts of a server: each made of the configuration and of the parts that it needs.

`server.py` puts them together.
"""

import os
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import InvalidConfig
from serving.base.executor import ThreadExecutor
from serving.config.installed_ops import InstalledOps, installed_op_libraries
from serving.config.listen_addresses import listen_addresses, reason_for_not_listening
from serving.config.server_config import PLATFORM, HttpPort, ModelConfig, ServerConfig
from serving.core.aspired_version_policy import AvailabilityPreserving
from serving.core.servable import ServableId
from serving.data_plane.loads import SlabPool
from serving.data_plane.plane import DataPlane, GrpcServer
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import Admission, RestWorkers, SpanBuffer
from serving.data_plane.servables import Servable, ServingMap
from serving.http.app import HttpAppSettings, make_http_app
from serving.http.hosts import HostGuard, host_rule, own_name
from serving.http.server import HTTP_NICE, HttpServer
from serving.kserve.openapi import SCHEMAS as INFERENCE_SCHEMAS
from serving.kserve.openapi import inference_paths
from serving.kserve.questions import InferenceQuestions
from serving.kserve.repository import Repository
from serving.loading.arenas import Arenas, MemoryLimits
from serving.loading.initial_loads import InitialLoads, lower_thread
from serving.loading.loader import LoadSettings, MakeLoader, statuses_as_errors
from serving.loading.memory_fit import available_bytes
from serving.loading.request_cores import RequestCores
from serving.loading.reservoirs import Reservoirs
from serving.loading.restore_pace import FixedPace, GuardedPace, GuardSettings, RestorePace
from serving.loading.starvation_watch import LoadPatience
from serving.manager.blocked_version_file import BarFile, BarKeeper, NoBarKeeper
from serving.manager.harness import RetryPolicy
from serving.manager.manager import AspiredVersionsManager
from serving.manager.model_notes import NotePublisher
from serving.manager.rollout import BarsChanged, ChangedOver, FoundVersions
from serving.manager.router import Router
from serving.manager.state_monitor import StateMonitor
from serving.monitoring.metric_sources import MetricSources
from serving.monitoring.otlp import OtlpExporter
from serving.monitoring.page_data import PageData, page_sources
from serving.monitoring.swap_record import SwapRecord
from serving.monitoring.swap_timeline import SwapTimeline
from serving.monitoring.tracing import (
    BUFFERED_REQUESTS_MAX,
    REQUESTS_PER_SECOND_MAX,
    NoExporter,
    NoTracing,
    Tracing,
)
from serving.reload.config_reload import ConfigReloader
from serving.reload.config_watch import ConfigRefusal, ConfigWatcher
from serving.reload.served_models import ServedModels
from serving.rest.asgi import PrefixRouter, RestSettings
from serving.rest.bridge import RestBridge
from serving.rest.openapi import SCHEMAS as MODEL_SCHEMAS
from serving.rest.openapi import model_paths, openapi_document
from serving.rpc.admin_service import AdminService
from serving.rpc.capture_service import CAPTURE_WARM_UP, CaptureDirectory, CaptureService
from serving.rpc.config_service import ConfigService
from serving.rpc.health import HealthView
from serving.rpc.model_service import GET_MODEL_STATUS, ModelService
from serving.rpc.rare_calls import Handler
from serving.rpc.request_memory import RequestMemory, request_memory_limits
from serving.rpc.transport import Transport
from serving.server.admin_parts import rare_message_bytes_max
from serving.source.file_system_source import FileSystemSource
from serving.source.poller_pool import PollerPool
from warmup.replay import warm_up
from warmup.self_warm_up import self_warm_up

FIRST_RETRY_NS = NS_PER_SECOND
"""From a load's first failure to its first retry, if --load_retry_interval_micros allows as much: what
a disk's hiccup lasts. Later ones wait longer."""

RESERVOIR_BYTES_MAX = 16 * 2**20
"""Of one model's recent requests: enough for 64 of 256 KiB, and little beside a model."""

RESERVOIR_AGE_SECONDS_MAX = 600.0
"""Older requests say little about what the next minute's clients will send."""

REST_THREADS_PER_CORE = 4
"""As many as TensorFlow Serving's: only one that runs takes a core, and those beyond are there for
models that make their requests wait."""

REST_THREAD_COUNT_MIN = 2
"""With one, a slow request would keep away all others."""

REST_WAITING_COUNT_MAX = 1_024
"""Above the connections that HTTP takes, each of which has one request at a time."""

_log = structlog.get_logger(__name__)


def make_manager(
    config: ServerConfig,
    loaders: ThreadExecutor,
    unloaders: ThreadExecutor,
    serving_map: ServingMap,
    make_loader: MakeLoader,
    arenas: Arenas | None,
    monitor: StateMonitor,
    clock: Clock,
    *,
    router: Router,
    bar_keeper: BarKeeper,
    changed_over: ChangedOver,
    bars_changed: BarsChanged,
    found_versions: FoundVersions,
) -> AspiredVersionsManager:
    return AspiredVersionsManager(
        make_loader=make_loader,
        serving_map=serving_map,
        policy=AvailabilityPreserving(),
        retry=RetryPolicy(
            retry_count_max=config.max_num_load_retries,
            interval_ns=config.load_retry_interval_micros * 1_000,
            first_interval_ns=FIRST_RETRY_NS,
            random=random.random,
        ),
        loaders=loaders,
        unloaders=unloaders,
        version_memory=arenas,
        router=router,
        changed_over=changed_over,
        bars_changed=bars_changed,
        found_versions=found_versions,
        bars=bar_keeper.read(),
        keep_bars=bar_keeper.keep,
        load_jitter_seconds=config.load_jitter_seconds,
        random=random.random,
        monitor=monitor,
        clock=clock,
    )


def make_bar_keeper(config: ServerConfig, clock: Clock) -> BarKeeper:
    if not config.state_directory:
        return NoBarKeeper()
    return BarFile(Path(config.state_directory), clock=clock)


def make_request_memory(config: ServerConfig, plane: DataPlane) -> RequestMemory:
    """Bounds the runs from now on, too."""
    limits = request_memory_limits(config, available_bytes())
    plane.set_run_memory_bytes(limits.run_bytes)
    _log.info("memory_limits", request_bytes=limits.budget_bytes, run_bytes=limits.run_bytes)
    return RequestMemory(limits=limits, budget=plane.ByteBudget(limits.budget_bytes))


def check_platforms(config: ServerConfig) -> None:
    """Before anything starts. Raises InvalidConfig."""
    for model in config.models:
        if model.platform != PLATFORM:
            raise InvalidConfig(
                f"model {model.name!r}: model_platform {model.platform!r} is unknown; "
                f"known: {PLATFORM}"
            )


def initialize(config: ServerConfig, plane: DataPlane) -> None:
    """Before anything else of the data plane."""
    with statuses_as_errors(plane.StatusError):
        plane.initialize(
            intra_op_thread_count=config.tensorflow_intra_op_parallelism,
            inter_op_thread_count=config.tensorflow_inter_op_parallelism,
            is_stock=config.is_stock,
            has_load_pool=config.tensorflow_load_pool,
            checks_method_names=config.enable_signature_method_name_check,
            serves_session_run=config.enable_session_run,
        )
        plane.set_replay_seconds(config.warmup_request_seconds)
        for path in config.op_libraries:
            _log.info("op_library_loaded", path=path, ops=list(plane.load_op_library(path)))


def load_settings(
    config: ServerConfig,
    arenas: Arenas | None,
    pace: RestorePace,
    incumbent: Callable[[ServableId], Servable | None],
    request_statistics: RequestStatistics,
    clock: Clock,
) -> LoadSettings:
    """Those that all models share."""
    replay = partial(warm_up, iterations=config.num_request_iterations_for_warmup, clock=clock)
    return LoadSettings(
        tags=config.saved_model_tags,
        warm_up=replay if config.enable_model_warmup else _no_warm_up,
        self_warm_up=partial(self_warm_up, clock=clock),
        arenas=arenas,
        is_sealing=config.arena_seal,
        has_strict_input_shapes=config.strict_input_shapes,
        incumbent=incumbent,
        pace=pace,
        request_statistics=request_statistics,
        add_ops=InstalledOps(installed_op_libraries).load,
    )


def make_arenas(config: ServerConfig, pool: SlabPool | None) -> Arenas | None:
    if pool is None:
        return None
    limits = MemoryLimits(
        headroom_bytes=config.arena_headroom_bytes, limit_bytes=config.model_memory_limit_bytes
    )
    return Arenas(pool, limits, available_bytes)


def make_slab_pool(config: ServerConfig, plane: DataPlane) -> SlabPool | None:
    """None where versions get no arenas. InvalidConfig where they cannot be."""
    if not config.has_arenas:
        return None
    if plane.build_info()["allocator"] != "jemalloc":
        raise InvalidConfig(
            "jemalloc is not preloaded, and the arenas of versions are jemalloc's; start the server "
            "by `millpond serve`, set LD_PRELOAD=libjemalloc.so.2, or say --arena=false"
        )
    with statuses_as_errors(plane.StatusError):
        return plane.SlabPool(
            spare_slab_count=config.arena_spare_slabs, thread_priority=config.load_priority
        )


def make_reservoirs(config: ServerConfig, plane: DataPlane) -> Reservoirs:
    if config.self_warmup_requests == 0:
        return Reservoirs(None)
    return Reservoirs(
        partial(
            plane.RequestReservoir,
            request_count_max=config.self_warmup_requests,
            bytes_max=RESERVOIR_BYTES_MAX,
            age_seconds_max=RESERVOIR_AGE_SECONDS_MAX,
        )
    )


def make_capture(
    config: ServerConfig,
    reservoirs: Reservoirs,
    enter_background: Callable[[], None],
    clock: Clock,
) -> CaptureDirectory | None:
    """None where nothing is to be written."""
    if not config.warmup_capture_directory:
        return None
    return CaptureDirectory(
        Path(config.warmup_capture_directory),
        reservoirs.by_name,
        on_thread_start=enter_background,
        clock=clock,
    )


def make_pace(
    config: ServerConfig, plane: DataPlane, serving_map: ServingMap, clock: Clock
) -> RestorePace:
    if config.swap_p99_guard == 0:
        return FixedPace(config.restore_bytes_per_second)
    settings = GuardSettings(
        factor=config.swap_p99_guard, bytes_per_second_max=config.restore_bytes_per_second
    )
    return GuardedPace(settings, window=plane.LatencyWindow(serving_map), clock=clock)


def _no_warm_up(
    directory: Path, ask: Callable[[str, bytes], bytes], is_cancelled: Callable[[], bool]
) -> None:
    """--enable_model_warmup=false."""


def initial_thread_count(config: ServerConfig) -> int:
    """The loaders until gRPC's port opens: one for each core, because nothing is served by then."""
    return 0 if config.listen_before_ready else len(os.sched_getaffinity(0))


def make_initial_loads(
    config: ServerConfig,
    plane: DataPlane,
    around_background: Callable[[int], AbstractContextManager[None]],
) -> InitialLoads:
    """Has ended if gRPC's port opens before the first load."""

    def lower(thread_id: int) -> None:
        if config.is_stock:
            return
        try:
            lower_thread(thread_id, config.load_priority)
        except OSError as error:
            _log.warning("load_priority_refused", asked=config.load_priority, reason=str(error))

    loads = InitialLoads(
        # Its memory is a background thread's from its start, and its priority later.
        enter_initial=make_background(config, plane, "normal"),
        enter_background=make_background(config, plane),
        lower=lower,
        around_background=around_background,
    )
    if config.listen_before_ready:
        loads.end()
    return loads


def make_executor(
    name: str,
    thread_count: int,
    *,
    enter_thread: Callable[[], None],
    around_task: Callable[[], AbstractContextManager[None]],
    initial_thread_count: int = 0,
) -> ThreadExecutor:
    """`initial_thread_count` threads are there until `ThreadExecutor.keep`, if these are more."""
    if thread_count < 1:
        # In TensorFlow Serving 0 means the manager's own thread, which then cannot manage.
        _log.info("thread_count_raised", executor=name, asked=thread_count, used=1)
    return ThreadExecutor(
        name,
        max(1, thread_count, initial_thread_count),
        on_thread_start=enter_thread,
        around_task=around_task,
    )


def hurry_unloads(config: ServerConfig, plane: DataPlane, unloaders: ThreadExecutor) -> None:
    """Gives the unloads of a stop a thread of the caller's priority for each core."""
    unloaders.hurry(
        max(config.num_unload_threads, len(os.sched_getaffinity(0))),
        # Their memory is a background thread's, as that of other unloads.
        on_thread_start=make_background(config, plane, "normal"),
    )


def make_patience(
    config: ServerConfig, enter_background: Callable[[], None], clock: Clock
) -> LoadPatience | None:
    """None where background threads cannot starve, or may."""
    is_lowered = config.load_priority != "normal" and not config.is_stock
    if not is_lowered or config.load_patience_seconds == 0:
        return None
    return LoadPatience(config.load_patience_seconds, lower=enter_background, clock=clock)


def make_request_cores(config: ServerConfig, grpc_server: GrpcServer) -> RequestCores | None:
    if config.pin_request_threads != "loads":
        return None
    return RequestCores(grpc_server.pin_request_threads)


def make_background(
    config: ServerConfig, plane: DataPlane, priority: str | None = None
) -> Callable[[], None]:
    """What a thread does first that loads or unloads; `priority` is --load_priority's by default."""
    if config.is_stock:
        return lambda: None
    asked = priority or config.load_priority

    def enter() -> None:
        try:
            plane.enter_background_thread(asked)
        except plane.StatusError as error:
            # A sandbox that refuses is no reason not to load.
            _log.warning("load_priority_refused", asked=asked, reason=str(error))

    return enter


def make_source(
    config: ServerConfig,
    pollers: PollerPool,
    plane: DataPlane,
    manager: AspiredVersionsManager,
    router: Router,
    monitor: StateMonitor,
    notes: NotePublisher,
    clock: Clock,
    model: ModelConfig,
) -> FileSystemSource:
    """What looks for the versions of one model. Nothing is looked at yet."""

    def check(directory: str) -> Sequence[str]:
        with statuses_as_errors(plane.StatusError):
            return plane.check_saved_model(directory)

    source = FileSystemSource(
        model.name,
        model.base_path,
        model.version_selection,
        set_aspired=manager.set_aspired,
        check=check,
        failed_versions=monitor.failed_versions,
        found_anew=manager.found_anew,
        versions_seen=monitor.versions_seen,
        set_notes=notes.set_source_notes,
        period_seconds=config.file_system_poll_wait_seconds,
        missing_asset_wait_seconds=config.missing_asset_wait_seconds,
        keeps_last=config.servable_versions_always_present,
        labels=model.labels,
        labels_in_effect=router.labels,
        pollers=pollers,
        clock=clock,
    )
    # Before its first poll: nothing that was rolled back is to be loaded until somebody tells it.
    source.set_barred(manager.barred(model.name))
    return source


def make_config_watcher(
    config: ServerConfig, reloader: ConfigReloader, served: ServedModels, clock: Clock
) -> ConfigWatcher | None:
    """None where the files are read once, or there are none."""
    has_file = bool(config.model_config_file or config.model_settings_file)
    if not has_file or config.model_config_file_poll_wait_seconds <= 0:
        return None
    return ConfigWatcher(
        config.model_config_file,
        config.model_settings_file,
        period_seconds=config.model_config_file_poll_wait_seconds,
        change=reloader.change,
        model_names=lambda: served.names,
        clock=clock,
    )


def make_rare_handlers(
    monitor: StateMonitor,
    manager: AspiredVersionsManager,
    router: Router,
    served: ServedModels,
    reloader: ConfigReloader,
    reservoirs: Reservoirs,
    watcher: ConfigWatcher | None,
    transport: Transport,
    wait_until_kept: Callable[[float], str],
) -> dict[str, Handler]:
    """The methods that Python answers, by their full names."""

    def names() -> Collection[str]:
        return served.names

    def refused_config() -> ConfigRefusal | None:
        return (watcher.refusal if watcher else None) or transport.refusal

    return {
        GET_MODEL_STATUS: ModelService(monitor, served, router.labels).get_model_status,
        CAPTURE_WARM_UP: CaptureService(names, reservoirs.of).capture_warm_up,
        **ConfigService(reloader, served).handlers,
        **AdminService(
            *(names, monitor.statuses, manager, served.notes, served.found_versions),
            *(refused_config, wait_until_kept),
        ).handlers,
    }


def make_inference_questions(
    config: ServerConfig,
    plane: DataPlane,
    monitor: StateMonitor,
    manager: AspiredVersionsManager,
    router: Router,
    served: ServedModels,
    reloader: ConfigReloader,
    request_statistics: RequestStatistics,
    *,
    view: Callable[[], HealthView],
) -> InferenceQuestions:
    """What clients of the open inference protocol ask beside inference."""

    def names() -> Collection[str]:
        return served.names

    return InferenceQuestions(
        names=names,
        statuses=monitor.statuses,
        servable=manager.servable,
        routes=router,
        view=view,
        repository=Repository(reloader, monitor, names, is_allowed=config.allow_repository_control),
        server_version=plane.build_info()["millpond"],
        methods=request_statistics.methods,
    )


def make_swap_timeline(
    statistics: RequestStatistics,
    monitor: StateMonitor,
    router: Router,
    slab_pool: SlabPool | None,
    clock: Clock,
    *,
    on_over: Callable[[SwapRecord], None],
) -> SwapTimeline:
    def is_slab_due() -> bool:
        return slab_pool is not None and slab_pool.statistics().surplus_resident_bytes > 0

    swaps = SwapTimeline(
        statistics,
        status=monitor.status,
        answering=router.answering,
        is_slab_due=is_slab_due,
        clock=clock,
    )
    monitor.add_listener(swaps.on_status)
    swaps.add_listener(on_over)
    return swaps


def make_tracing(config: ServerConfig, plane: DataPlane, clock: Clock) -> Tracing | NoTracing:
    """Raises InvalidConfig where OpenTelemetry is wanted and not installed."""
    if not config.is_tracing:
        return NoTracing()
    exporter = (
        OtlpExporter(config.otlp_endpoint, version=plane.build_info()["millpond"])
        if config.otlp_endpoint
        else NoExporter()
    )
    return Tracing(
        plane.SpanBuffer(capacity=BUFFERED_REQUESTS_MAX, per_second_max=REQUESTS_PER_SECOND_MAX),
        exporter,
        slow_seconds=config.slow_request_log_seconds,
        clock=clock,
    )


def make_page_data(
    metrics: MetricSources,
    swaps: SwapTimeline,
    reasons: Callable[[], Mapping[str, str | None]],
    clock: Clock,
) -> PageData:
    sources = page_sources(metrics, swaps.records, reasons)
    return PageData(sources, clock, metrics.build_info["millpond"])


def make_rest_workers(
    config: ServerConfig,
    plane: DataPlane,
    serving_map: ServingMap,
    request_statistics: RequestStatistics,
    spans: SpanBuffer | None,
    admission: Admission,
    memory: RequestMemory,
) -> RestWorkers:
    asked = config.rest_api_num_threads or REST_THREADS_PER_CORE * (os.cpu_count() or 1)
    used = max(REST_THREAD_COUNT_MIN, asked)
    if used > asked:
        _log.info("thread_count_raised", executor="rest", asked=asked, used=used)
    return plane.RestWorkers(
        serving_map,
        thread_count=used,
        nice=HTTP_NICE,
        waiting_count_max=REST_WAITING_COUNT_MAX,
        body_bytes_max=config.rest_api_max_body_bytes,
        request_statistics=request_statistics,
        spans=spans,
        admission=admission,
        reply_bytes_max=memory.limits.rest_reply_bytes_max,
        budget=memory.budget,
        first_version_wait_seconds=config.first_version_wait_seconds,
    )


def make_rest_bridge(
    config: ServerConfig, plane: DataPlane, workers: RestWorkers, cores: RequestCores | None
) -> RestBridge:
    return RestBridge(
        workers,
        hold_cores=cores.hold if cores else lambda is_held: None,
        timeout_seconds=config.rest_api_timeout_in_ms / 1_000,
        status_error=plane.StatusError,
    )


def openapi(plane: DataPlane) -> dict[str, Any]:
    """Of both protocols."""
    return openapi_document(
        plane.build_info()["millpond"],
        {**model_paths(), **inference_paths()},
        {**MODEL_SCHEMAS, **INFERENCE_SCHEMAS},
    )


def rest_settings(config: ServerConfig, memory: RequestMemory) -> RestSettings:
    return RestSettings(
        timeout_seconds=config.rest_api_timeout_in_ms / 1_000,
        has_cors=config.rest_api_enable_cors_support,
        body_bytes_max=config.rest_api_max_body_bytes,
        budget=memory.budget,
    )


def make_http_server(
    config: ServerConfig,
    routes: Sequence[BaseRoute],
    rest: Mapping[str, ASGIApp],
    memory: RequestMemory,
) -> HttpServer:
    """Of these routes, and of REST's applications by the first segments of their paths; it listens
    nowhere where the configuration wants none.
    """
    port = config.rest_api_port
    if port.number and port.number == config.port:
        # The default one: whoever gave gRPC this port wants no HTTP there.
        _log.warning("http_off", reason=f"port {port} is gRPC's; say --rest_api_port")
        port = HttpPort(None)
    settings = HttpAppSettings(
        timeout_seconds=config.rest_api_timeout_in_ms / 1_000,
        has_cors=config.rest_api_enable_cors_support,
        body_bytes_max=config.rest_api_max_body_bytes,
        budget=memory.budget,
    )
    app = make_http_app(routes, settings)
    return HttpServer(
        app,
        entry=HostGuard(
            PrefixRouter(rest, otherwise=app),
            host_rule(config.http_hosts, config.host, own_name()),
        ),
        host=config.host,
        port=port,
        blocking_thread_count=config.rest_api_num_threads or 4 * (os.cpu_count() or 1),
    )


@contextmanager
def reasons_of_grpc(config: ServerConfig, plane: DataPlane) -> Iterator[None]:
    """Around the start of the gRPC server: what it raises says what to change."""
    with (
        reason_for_not_listening(listen_addresses(config)),
        statuses_as_errors(plane.StatusError),
    ):
        yield


def make_grpc_server(
    config: ServerConfig,
    plane: DataPlane,
    serving_map: ServingMap,
    rare_methods: Sequence[str],
    request_statistics: RequestStatistics,
    spans: SpanBuffer | None,
    admission: Admission,
    transport: Transport,
    memory: RequestMemory,
    admin_addresses: Sequence[str] = (),
) -> GrpcServer:
    """The server of the data port, or of the admin listener if `admin_addresses` are given."""
    is_admin = bool(admin_addresses)
    with statuses_as_errors(plane.StatusError):
        return plane.GrpcServer(
            serving_map,
            addresses=admin_addresses or listen_addresses(config).of_grpc,
            # Operators are few: one thread, and another if a prediction holds that one up.
            completion_queue_count=1 if is_admin else config.completion_queue_count,
            max_message_bytes=config.max_message_bytes,
            channel_arguments=config.grpc_channel_arguments,
            rare_methods=rare_methods,
            request_statistics=request_statistics,
            spans=spans,
            admission=admission,
            max_thread_count=2 if is_admin else config.grpc_max_threads,
            reply_bytes_max=memory.limits.grpc_reply_bytes_max,
            budget=memory.budget,
            first_version_wait_seconds=config.first_version_wait_seconds,
            rare_message_bytes_max=rare_message_bytes_max(rare_methods),
            **transport.grpc_options,
        )
