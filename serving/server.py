"""The server: everything is built here, once, and started and stopped in one place.

Read it top to bottom: what a server is made of, how it starts, how it stops.
"""

import queue
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog

from serving.admin_service import AdminService
from serving.arenas import Arenas, MemoryLimits, SlabPool
from serving.aspired_version_policy import AvailabilityPreserving
from serving.capture_directory import CaptureDirectory
from serving.capture_service import CAPTURE_WARM_UP, CaptureService
from serving.clock import NS_PER_SECOND, Clock, SystemClock
from serving.config import PLATFORM, ModelConfig, ServerConfig
from serving.errors import InvalidConfig
from serving.executor import ThreadExecutor
from serving.harness import RetryPolicy
from serving.health import HealthReporter
from serving.load_patience import LoadPatience
from serving.loader import (
    Loader,
    LoadSettings,
    MakeLoader,
    RequestReservoir,
    SavedModelLoader,
    SavedModelPlane,
    statuses_as_errors,
)
from serving.manager import AspiredVersionsManager
from serving.memory_fit import available_bytes
from serving.model_service import GET_MODEL_STATUS, ModelService
from serving.rare_calls import RareCall, RareCallThreads
from serving.request_cores import RequestCores, pin_always
from serving.reservoirs import Reservoirs
from serving.restore_pace import (
    FixedPace,
    GuardedPace,
    GuardSettings,
    LatencyWindow,
    RestorePace,
)
from serving.router import Router
from serving.servable import AVAILABLE, END, ServableId, ServableStatus, ServingMap
from serving.source import FileSystemSource
from serving.state_monitor import StateMonitor, Statuses
from serving.stop_signals import StopSignals
from serving.succession import BarsChanged
from serving.version_selection import Latest, Specific
from warmup.replay import warm_up
from warmup.self_warm_up import self_warm_up

UNLOAD_TIMEOUT_SECONDS = 10.0
"""How long a stop waits, after the requests, for loads to end and versions to be freed: a load ends
at its next stage, and what is left after this the process's end frees just as well."""

SOURCE_TIMEOUT_SECONDS = 0.1
"""How long a stop waits for each source: a poll takes milliseconds, or hangs on a dead disk."""

CAPTURE_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for the recent requests to be written: megabytes, or a dead disk."""

FIRST_RETRY_NS = NS_PER_SECOND
"""From a load's first failure to its first retry, if --load_retry_interval_micros allows as much: what
a disk's hiccup lasts. Later ones wait longer."""

RESERVOIR_BYTES_MAX = 16 * 2**20
"""Of one model's recent requests: enough for 64 of 256 KiB, and little beside a model."""

RESERVOIR_AGE_SECONDS_MAX = 600.0
"""Older requests say little about what the next minute's clients will send."""

_log = structlog.get_logger(__name__)


class GrpcServer(Protocol):
    """`_native.GrpcServer`."""

    @property
    def port(self) -> int: ...
    def start(self) -> None: ...
    def take_rare_call(self, timeout_seconds: float) -> RareCall | None: ...
    def set_health(self, service: str, is_serving: bool) -> None: ...
    def pin_request_threads(self, is_pinned: bool) -> bool: ...
    def shutdown(self, drain_seconds: float) -> bool: ...


class DataPlane(SavedModelPlane, Protocol):
    """What a server needs of `serving._native`; tests bring one of their own."""

    @property
    def ServingMap(self) -> Callable[[], ServingMap]: ...  # noqa: N802 (the module's name for it)
    @property
    def GrpcServer(self) -> Callable[..., GrpcServer]: ...  # noqa: N802
    @property
    def SlabPool(self) -> Callable[..., SlabPool]: ...  # noqa: N802
    @property
    def RequestReservoir(self) -> Callable[..., RequestReservoir]: ...  # noqa: N802
    @property
    def LatencyWindow(self) -> Callable[[Any], LatencyWindow]: ...  # noqa: N802
    def build_info(self) -> Mapping[str, str]: ...
    def initialize(
        self,
        *,
        intra_op_thread_count: int,
        inter_op_thread_count: int,
        is_stock: bool,
        has_load_pool: bool,
    ) -> None: ...
    def enter_background_thread(self, priority: str) -> None: ...


class Server:
    """One model server. Started once and stopped once; `run` does both and minds the signals.

    The port opens at once, before any model is there, so that probes and status find the server:
    health says NOT_SERVING until every model has a version AVAILABLE. `on_listening` gets the port
    when it is open, `on_ready` when every model has a version that is AVAILABLE or has failed.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        native: DataPlane | None = None,
        clock: Clock | None = None,
        on_listening: Callable[[int], None] = lambda port: None,
        on_ready: Callable[[int], None] = lambda port: None,
    ) -> None:
        """Raises InvalidConfig. Nothing listens, polls or loads yet."""
        plane = native or _native_module()
        clock = clock or SystemClock()
        self._config = config
        self._plane = plane
        self._model_names = [model.name for model in config.models]
        self._on_listening = on_listening
        self._on_ready = on_ready
        self._is_ready = False
        self._stop_requests: queue.SimpleQueue[str] = queue.SimpleQueue()

        _check_platforms(config)
        with statuses_as_errors(plane.StatusError):
            plane.initialize(
                intra_op_thread_count=config.tensorflow_intra_op_parallelism,
                inter_op_thread_count=config.tensorflow_inter_op_parallelism,
                is_stock=config.is_stock,
                has_load_pool=config.tensorflow_load_pool,
            )
        serving_map = plane.ServingMap()
        self._monitor = StateMonitor(clock)
        self._slab_pool = _slab_pool(config, plane)
        self._pace = _pace(config, plane, serving_map, clock)
        enter_background = _background(config, plane)
        self._patience = _patience(config, enter_background, clock)
        arenas = _arenas(config, self._slab_pool)
        reservoirs = _reservoirs(config, plane)
        self._capture = _capture(config, reservoirs, enter_background, clock)
        make_loader = _make_loader(config, plane, arenas, reservoirs, self._pace, clock)
        executor = partial(
            _executor, enter_background=enter_background, around_task=self._around_background
        )
        self._router = Router(serving_map)
        self._manager = _manager(
            *(config, executor, serving_map, make_loader, arenas, self._monitor, clock),
            router=self._router,
            bars_changed=self._bar_versions,
        )
        self._sources = [
            _source(config, model, plane, self._manager, self._monitor, clock)
            for model in config.models
        ]
        handlers = _rare_handlers(config, self._monitor, self._manager, reservoirs)
        self._grpc = _grpc_server(config, plane, serving_map, list(handlers))
        self._cores = _request_cores(config, self._grpc)
        self._rare_calls = RareCallThreads(self._grpc.take_rare_call, handlers)
        self._health = HealthReporter(
            self._model_names, self._monitor.statuses, self._grpc.set_health
        )
        self._monitor.add_listener(self._on_state_change)

    @property
    def port(self) -> int:
        """The TCP port that it listens on."""
        return self._grpc.port

    @property
    def monitor(self) -> StateMonitor:
        """The state of every version; wait on it for one."""
        return self._monitor

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT and returns the exit status. On the main thread.

        A second signal ends the process at once. Raises what `start` raises.
        """
        with StopSignals(self.request_stop) as signals:
            self.start()
            _log.info("stopping", reason=self.wait())
            if not self._stop_guarded():
                # What still runs is in the data plane, whose libraries are about to be unloaded.
                signals.exit_now(0)
        return 0

    def _stop_guarded(self) -> bool:
        try:
            return self.stop()
        except Exception:  # noqa: BLE001 (a bug; the process has to end all the same)
            _log.exception("stop_failed")
            return False

    def start(self) -> None:
        """Opens the port, then begins to look for versions. Unavailable where it cannot be bound."""
        self._health.update()
        with statuses_as_errors(self._plane.StatusError):
            self._grpc.start()
        _log.info("listening", host=self._config.host, port=self.port)
        self._on_listening(self.port)
        if self._config.pin_request_threads == "always":
            pin_always(self._grpc.pin_request_threads)
        self._rare_calls.start()
        if self._patience is not None:
            self._patience.start()
        if self._capture is not None:
            self._capture.start()
        self._manager.start()
        for source in self._sources:
            source.start()

    def request_stop(self, reason: str) -> None:
        """Lets `wait` return. Any thread."""
        self._stop_requests.put(reason)

    def wait(self) -> str:
        """Waits until somebody requests a stop, and returns the reason."""
        return self._stop_requests.get()

    def stop(self) -> bool:
        """Lets the running requests finish, unloads everything, ends all threads.

        Takes up to `drain_seconds` for the requests, which are then cut short, and after that up
        to UNLOAD_TIMEOUT_SECONDS. False where something still runs.
        """
        self._health.drain()
        for source in self._sources:
            source.stop()
        if not self._grpc.shutdown(self._config.drain_seconds):
            _log.warning("requests_cut_short", drain_seconds=self._config.drain_seconds)
        is_over = [self._rare_calls.stop(), self._manager.stop(UNLOAD_TIMEOUT_SECONDS)]
        is_over += [source.join(SOURCE_TIMEOUT_SECONDS) for source in self._sources]
        if self._capture is not None:
            is_over.append(self._capture.stop(CAPTURE_TIMEOUT_SECONDS))
        self._pace.stop()
        if self._patience is not None:
            self._patience.stop()
        if self._slab_pool is not None:
            self._slab_pool.stop()
        _log.info("stopped", is_complete=all(is_over))
        return all(is_over)

    def _bar_versions(self, name: str, versions: frozenset[int]) -> None:
        """A rollback's: the model's source selects without them. On the control thread."""

    @contextmanager
    def _around_background(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._cores is not None:
                stack.enter_context(self._cores.pinned())
            if self._patience is not None:
                stack.enter_context(self._patience.watched())
            yield

    def _on_state_change(self, status: ServableStatus) -> None:
        del status  # Both look at all models.
        self._health.update()
        if not self._is_ready and is_ready(self._model_names, self._monitor.statuses()):
            self._is_ready = True
            _log.info("ready", port=self.port, models=self._model_names)
            self._on_ready(self.port)


def is_ready(models: Sequence[str], statuses: Statuses) -> bool:
    """Whether every model has a version that is AVAILABLE, or that was tried and has failed. Pure."""
    return all(
        any(status.state in (AVAILABLE, END) for status in statuses.get(name, ()))
        for name in models
    )


# --- What a server is made of ---------------------------------------------------------------------


def _native_module() -> DataPlane:
    # Here, because it maps TensorFlow (0.4 s), and tests have a data plane of their own.
    from serving import _native

    return _native


def _manager(
    config: ServerConfig,
    executor: Callable[[str, int], ThreadExecutor],
    serving_map: ServingMap,
    make_loader: MakeLoader,
    arenas: Arenas | None,
    monitor: StateMonitor,
    clock: Clock,
    *,
    router: Router,
    bars_changed: BarsChanged,
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
        loaders=executor("loader", config.num_load_threads),
        unloaders=executor("unloader", config.num_unload_threads),
        version_memory=arenas,
        router=router,
        bars_changed=bars_changed,
        random=random.random,
        monitor=monitor,
        clock=clock,
    )


def _check_platforms(config: ServerConfig) -> None:
    """Before anything starts. Raises InvalidConfig."""
    for model in config.models:
        if model.platform != PLATFORM:
            raise InvalidConfig(
                f"model {model.name!r}: model_platform {model.platform!r} is unknown; "
                f"known: {PLATFORM}"
            )


def _make_loader(
    config: ServerConfig,
    plane: DataPlane,
    arenas: Arenas | None,
    reservoirs: Reservoirs,
    pace: RestorePace,
    clock: Clock,
) -> MakeLoader:
    """The loaders by model, each made by its platform."""
    by_platform = {
        PLATFORM: partial(_saved_model_loader, config, plane, arenas, reservoirs, pace, clock)
    }
    by_model = {model.name: by_platform[model.platform](model) for model in config.models}

    def make_loader(servable_id: ServableId, directory: str) -> Loader:
        return by_model[servable_id.name](servable_id, directory)

    return make_loader


def _saved_model_loader(
    config: ServerConfig,
    plane: DataPlane,
    arenas: Arenas | None,
    reservoirs: Reservoirs,
    pace: RestorePace,
    clock: Clock,
    model: ModelConfig,
) -> MakeLoader:
    """What loads the versions of one model. Its reservoir of live requests outlives them."""
    replay = partial(warm_up, iterations=config.num_request_iterations_for_warmup, clock=clock)
    settings = LoadSettings(
        tags=config.saved_model_tags,
        warm_up=replay if config.enable_model_warmup else _no_warm_up,
        self_warm_up=partial(self_warm_up, clock=clock),
        arenas=arenas,
        serving_count=_serving_count(model),
        is_sealing=config.arena_seal,
        reservoir=reservoirs.of(model.name),
        pace=pace,
    )
    return partial(SavedModelLoader, settings=settings, plane=plane, clock=clock)


def _serving_count(model: ModelConfig) -> int:
    """Versions that are served at rest; of `all` nobody can say, and one has to do."""
    selection = model.version_selection
    if isinstance(selection, Latest):
        return selection.version_count
    return max(1, len(selection.versions)) if isinstance(selection, Specific) else 1


def _arenas(config: ServerConfig, pool: SlabPool | None) -> Arenas | None:
    if pool is None:
        return None
    limits = MemoryLimits(
        headroom_bytes=config.arena_headroom_bytes, limit_bytes=config.model_memory_limit_bytes
    )
    return Arenas(pool, limits, available_bytes)


def _slab_pool(config: ServerConfig, plane: DataPlane) -> SlabPool | None:
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


def _reservoirs(config: ServerConfig, plane: DataPlane) -> Reservoirs:
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


def _capture(
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


def _pace(
    config: ServerConfig, plane: DataPlane, serving_map: ServingMap, clock: Clock
) -> RestorePace:
    if config.swap_p99_guard == 0:
        return FixedPace(config.restore_bytes_per_second)
    settings = GuardSettings(
        factor=config.swap_p99_guard, bytes_per_second_max=config.restore_bytes_per_second
    )
    return GuardedPace(settings, window=plane.LatencyWindow(serving_map), clock=clock)


def _no_warm_up(
    directory: Path, predict: Callable[[bytes], bytes], is_cancelled: Callable[[], bool]
) -> None:
    """--enable_model_warmup=false."""


def _executor(
    name: str,
    thread_count: int,
    *,
    enter_background: Callable[[], None],
    around_task: Callable[[], AbstractContextManager[None]],
) -> ThreadExecutor:
    if thread_count < 1:
        # In TensorFlow Serving 0 means the manager's own thread, which then cannot manage.
        _log.info("thread_count_raised", executor=name, asked=thread_count, used=1)
    return ThreadExecutor(
        name, max(1, thread_count), on_thread_start=enter_background, around_task=around_task
    )


def _patience(
    config: ServerConfig, enter_background: Callable[[], None], clock: Clock
) -> LoadPatience | None:
    """None where background threads cannot starve, or may."""
    is_lowered = config.load_priority != "normal" and not config.is_stock
    if not is_lowered or config.load_patience_seconds == 0:
        return None
    return LoadPatience(config.load_patience_seconds, lower=enter_background, clock=clock)


def _request_cores(config: ServerConfig, grpc_server: GrpcServer) -> RequestCores | None:
    if config.pin_request_threads != "loads":
        return None
    return RequestCores(grpc_server.pin_request_threads)


def _background(config: ServerConfig, plane: DataPlane) -> Callable[[], None]:
    """What a thread that loads or unloads does first."""
    if config.is_stock:
        return lambda: None

    def enter() -> None:
        try:
            plane.enter_background_thread(config.load_priority)
        except plane.StatusError as error:
            # A sandbox that refuses is no reason not to load.
            _log.warning("load_priority_refused", asked=config.load_priority, reason=str(error))

    return enter


def _source(
    config: ServerConfig,
    model: ModelConfig,
    plane: DataPlane,
    manager: AspiredVersionsManager,
    monitor: StateMonitor,
    clock: Clock,
) -> FileSystemSource:
    def check(directory: str) -> None:
        with statuses_as_errors(plane.StatusError):
            plane.check_saved_model(directory)

    return FileSystemSource(
        model.name,
        model.base_path,
        model.version_selection,
        set_aspired=manager.set_aspired,
        check=check,
        failed_versions=monitor.failed_versions,
        period_seconds=config.file_system_poll_wait_seconds,
        clock=clock,
    )


def _rare_handlers(
    config: ServerConfig,
    monitor: StateMonitor,
    manager: AspiredVersionsManager,
    reservoirs: Reservoirs,
) -> dict[str, Callable[[bytes], bytes]]:
    base_paths = {model.name: model.base_path for model in config.models}
    return {
        GET_MODEL_STATUS: ModelService(monitor, base_paths).get_model_status,
        CAPTURE_WARM_UP: CaptureService(lambda: base_paths, reservoirs.of).capture_warm_up,
        **AdminService(lambda: list(base_paths), monitor.statuses, manager).handlers,
    }


def _grpc_server(
    config: ServerConfig, plane: DataPlane, serving_map: ServingMap, rare_methods: Sequence[str]
) -> GrpcServer:
    host = f"[{config.host}]" if ":" in config.host else config.host
    addresses = [f"{host}:{config.port}"]
    if config.grpc_socket_path:
        addresses.append(f"unix:{config.grpc_socket_path}")
    with statuses_as_errors(plane.StatusError):
        return plane.GrpcServer(
            serving_map,
            addresses=addresses,
            completion_queue_count=config.completion_queue_count,
            max_message_bytes=config.max_message_bytes,
            channel_arguments=config.grpc_channel_arguments,
            rare_methods=rare_methods,
        )
