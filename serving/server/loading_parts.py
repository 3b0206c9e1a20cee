"""The parts that load and unload versions: memory and threads."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import structlog

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import InvalidConfig
from serving.base.executor import ThreadExecutor
from serving.config.installed_ops import InstalledOps, installed_op_libraries
from serving.config.server_config import ServerConfig
from serving.core.servable import ServableId
from serving.data_plane.loads import SlabPool
from serving.data_plane.plane import GrpcServer
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.servables import Servable
from serving.loading.arenas import Arenas, MemoryLimits
from serving.loading.initial_loads import InitialLoads, lower_thread
from serving.loading.loader import LoadSettings, statuses_as_errors
from serving.loading.memory_fit import available_bytes
from serving.loading.request_cores import RequestCores
from serving.loading.reservoirs import Reservoirs
from serving.loading.starvation_watch import StarvationWatch
from serving.rpc.capture_service import CaptureDirectory
from serving.server.foundation import Foundation
from warmup.replay import warm_up
from warmup.self_warm_up import self_warm_up

_log = structlog.get_logger(__name__)


FIRST_RETRY_NS = NS_PER_SECOND
"""The pause between a load's first failure and its first retry, if --load_retry_interval_micros is
not shorter: the usual length of a disk's hiccup. Later retries wait longer."""


RESERVOIR_BYTES_MAX = 16 * 2**20
"""The size of one model's recent requests: enough for 64 requests of 256 KiB, and little beside a
model."""


RESERVOIR_AGE_SECONDS_MAX = 600.0
"""Older requests predict little about the requests of the next minute."""


def load_settings(
    foundation: Foundation,
    *,
    arenas: Arenas | None,
    incumbent: Callable[[ServableId], Servable | None],
    request_statistics: RequestStatistics,
) -> LoadSettings:
    """Returns the settings that all models share."""
    replay = partial(
        warm_up,
        iterations=foundation.config.num_request_iterations_for_warmup,
        clock=foundation.clock,
    )
    return LoadSettings(
        tags=foundation.config.saved_model_tags,
        warm_up=replay if foundation.config.enable_model_warmup else _no_warm_up,
        self_warm_up=partial(self_warm_up, clock=foundation.clock),
        arenas=arenas,
        is_sealing=foundation.config.arena_seal,
        has_strict_input_shapes=foundation.config.strict_input_shapes,
        incumbent=incumbent,
        restore_bytes_per_second=foundation.config.restore_bytes_per_second,
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


def make_slab_pool(foundation: Foundation) -> SlabPool | None:
    """Returns None if versions get no arenas. Raises InvalidConfig if jemalloc is missing."""
    if not foundation.config.has_arenas:
        return None
    if foundation.data_plane.build_info()["allocator"] != "jemalloc":
        raise InvalidConfig(
            "jemalloc is not preloaded, but the arenas of versions need it; start the server with "
            "`millpond serve`, set LD_PRELOAD=libjemalloc.so.2, or use --arena=false"
        )
    with statuses_as_errors(foundation.data_plane.StatusError):
        return foundation.data_plane.SlabPool(
            spare_slab_count=foundation.config.arena_spare_slabs,
            thread_priority=foundation.config.load_priority,
        )


def make_reservoirs(foundation: Foundation) -> Reservoirs:
    if foundation.config.self_warmup_requests == 0:
        return Reservoirs(None)
    return Reservoirs(
        partial(
            foundation.data_plane.RequestReservoir,
            request_count_max=foundation.config.self_warmup_requests,
            bytes_max=RESERVOIR_BYTES_MAX,
            age_seconds_max=RESERVOIR_AGE_SECONDS_MAX,
        )
    )


def make_capture(
    foundation: Foundation, *, reservoirs: Reservoirs, enter_background: Callable[[], None]
) -> CaptureDirectory | None:
    """Returns None if --warmup_capture_directory is not given."""
    if not foundation.config.warmup_capture_directory:
        return None
    return CaptureDirectory(
        Path(foundation.config.warmup_capture_directory),
        reservoirs.by_name,
        on_thread_start=enter_background,
        clock=foundation.clock,
    )


def _no_warm_up(
    directory: Path, ask: Callable[[str, bytes], bytes], is_cancelled: Callable[[], bool]
) -> None:
    """Does nothing: the warm-up of --enable_model_warmup=false."""


def initial_thread_count(config: ServerConfig) -> int:
    """Returns the count of loader threads until gRPC's port opens.

    One for each core, because no request is served before; 0 with `listen_before_ready`.
    """
    return 0 if config.listen_before_ready else len(os.sched_getaffinity(0))


def make_initial_loads(
    foundation: Foundation, *, around_background: Callable[[int], AbstractContextManager[None]]
) -> InitialLoads:
    """Returns the initial loads, which have ended already if gRPC's port opens before the first
    load.
    """

    def lower(thread_id: int) -> None:
        if foundation.config.is_stock:
            return
        try:
            lower_thread(thread_id, foundation.config.load_priority)
        except OSError as error:
            _log.warning(
                "load_priority_refused", asked=foundation.config.load_priority, reason=str(error)
            )

    loads = InitialLoads(
        # Its memory is that of a background thread from its start; its priority is lowered later.
        enter_initial=make_background(foundation, priority="normal"),
        enter_background=make_background(foundation),
        lower=lower,
        around_background=around_background,
    )
    if foundation.config.listen_before_ready:
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
    """Returns an executor that has `initial_thread_count` threads, if they are more than
    `thread_count`, until `ThreadExecutor.keep`.
    """
    if thread_count < 1:
        # In TensorFlow Serving, 0 means the manager's own thread, which would be blocked by a load.
        _log.info("thread_count_raised", executor=name, asked=thread_count, used=1)
    return ThreadExecutor(
        name,
        max(1, thread_count, initial_thread_count),
        on_thread_start=enter_thread,
        around_task=around_task,
    )


def hurry_unloads(foundation: Foundation, *, unloaders: ThreadExecutor) -> None:
    """Gives the unloads of a stop a thread of the caller's priority for each core."""
    unloaders.hurry(
        max(foundation.config.num_unload_threads, len(os.sched_getaffinity(0))),
        # Their memory is that of a background thread, as for other unloads.
        on_thread_start=make_background(foundation, priority="normal"),
    )


def make_starvation_watch(
    foundation: Foundation, *, enter_background: Callable[[], None]
) -> StarvationWatch | None:
    """Returns None if loads run at normal priority and so cannot starve, or if they may starve."""
    is_lowered = foundation.config.load_priority != "normal" and not foundation.config.is_stock
    if not is_lowered or foundation.config.load_patience_seconds == 0:
        return None
    return StarvationWatch(
        foundation.config.load_patience_seconds, lower=enter_background, clock=foundation.clock
    )


def make_request_cores(config: ServerConfig, grpc_server: GrpcServer) -> RequestCores | None:
    if config.pin_request_threads != "loads":
        return None
    return RequestCores(grpc_server.pin_request_threads)


def make_background(foundation: Foundation, *, priority: str | None = None) -> Callable[[], None]:
    """Returns the first step of a thread that loads or unloads; `priority` is --load_priority by
    default.
    """
    if foundation.config.is_stock:
        return lambda: None
    asked = priority or foundation.config.load_priority

    def enter() -> None:
        try:
            foundation.data_plane.enter_background_thread(asked)
        except foundation.data_plane.StatusError as error:
            # The load goes on: a sandbox may refuse to lower a thread's priority.
            _log.warning("load_priority_refused", asked=asked, reason=str(error))

    return enter
