"""Makes the parts that load and unload versions."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import InvalidConfig
from serving.config.op_library_files import installed_op_libraries
from serving.config.server_config import ServerConfig
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.data_plane.loads import SlabPool
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.servables import Servable
from serving.data_plane.status_errors import statuses_as_errors
from serving.loading.accelerator_use import (
    CUDA,
    AcceleratorUse,
    cuda_plugin_path,
    make_cache_directory,
    make_private_cache,
)
from serving.loading.arenas import Arenas, MemoryLimits
from serving.loading.autotuning import Autotuning
from serving.loading.background_work import BackgroundWork
from serving.loading.batch_records import BatchRecords
from serving.loading.batch_refusals import BatchRefusals
from serving.loading.compile_runs import CompileRuns
from serving.loading.core_loan import CoreLender, SystemThreads
from serving.loading.device_placement import DevicePlacement
from serving.loading.installed_ops import InstalledOps
from serving.loading.loader import LoadSettings
from serving.loading.memory_fit import available_bytes
from serving.loading.program_process import Arguments
from serving.loading.program_runs import ProgramRuns
from serving.loading.request_cores import RequestCores
from serving.loading.reservoirs import Reservoirs
from serving.loading.side_choices import SideChoices
from serving.loading.trial_process import TrialRuns, trial_memory_share
from serving.monitoring.gpu_sensors import GpuSensors, open_gpus
from serving.reload.batching import Batching
from serving.rpc.capture_service import CaptureDirectory
from serving.server.foundation import Foundation
from serving.server.numa import interleave_parameters
from warmup.replay import Ask, warm_up
from warmup.self_warm_up import self_warm_up

_log = structlog.get_logger(__name__)


FIRST_RETRY_NS = NS_PER_SECOND
"""The pause between the first failure of a load and its first retry: a disk's short failures are over by then.

--load_retry_interval_micros is the pause if it is shorter. Later retries wait longer.
"""


RESERVOIR_BYTES_MAX = 16 * 2**20
"""The most bytes of recent requests that are kept for one model.

They hold 64 requests of 256 KiB, and are few beside the model itself.
"""


RESERVOIR_AGE_SECONDS_MAX = 600.0
"""Requests that are older are not kept, because they say little about the requests of the next minute."""


def load_settings(
    foundation: Foundation,
    *,
    arenas: Arenas | None,
    incumbent: Callable[[ServableId], Servable | None],
    follows_another: Callable[[ServableId], bool],
    request_statistics: RequestStatistics,
    batch_records: BatchRecords,
    batch_refusals: BatchRefusals,
    accelerator: AcceleratorUse | None,
) -> LoadSettings:
    """Collects the settings of loads that all models share."""
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
        follows_another=follows_another,
        restore_bytes_per_second=foundation.config.restore_bytes_per_second,
        load_seconds_target=foundation.config.load_seconds_target,
        replay_seconds_max=foundation.config.warmup_request_seconds,
        request_statistics=request_statistics,
        batch_records=batch_records,
        batch_refusals=batch_refusals,
        ops=InstalledOps(installed_op_libraries),
        accelerator=accelerator,
    )


def make_accelerator_use(foundation: Foundation) -> AcceleratorUse | None:
    """Opens the accelerator; None if all versions run on the CPU. Raises the plugin's error."""
    config = foundation.config
    if not config.accelerator:
        return None
    _, _, path = config.accelerator.partition(":")
    plugin = path or cuda_plugin_path()
    with statuses_as_errors(foundation.data_plane.StatusError):
        accelerators = foundation.data_plane.open_accelerators(
            plugin,
            config.accelerator_memory_fraction,
            config.accelerator_memory_bytes,
        )
    for accelerator in accelerators:
        _log.info(
            "accelerator_opened", device=accelerator.name, accelerator=accelerator.description
        )
    warn_of_load_priority(config)
    if config.accelerator_cache_directory:
        make_cache_directory(config.accelerator_cache_directory)
    cache_directory = config.accelerator_cache_directory or make_private_cache()
    cores = CoreLender(SystemThreads(), foundation.clock)
    use = AcceleratorUse(
        accelerators=accelerators,
        placement=DevicePlacement(accelerators, foundation.clock),
        sides=SideChoices(foundation.clock, foundation.data_plane.StatusError),
        rows=config.accelerator_rows,
        cache_directory=cache_directory,
        is_cache_private=not config.accelerator_cache_directory and bool(cache_directory),
        autotuning=_make_autotuning(foundation, plugin, cache_directory, cores),
        compilation=_make_compilation(foundation, plugin, cache_directory, cores),
    )
    if config.accelerator_autotuning == "never":
        use.end_autotuning()
    return use


def warn_of_load_priority(config: ServerConfig) -> None:
    """Warns of loads that are lowered beside an accelerator: --load_priority is taken as it is given all the same."""
    if config.background_priority == "normal":
        return
    _log.warning(
        "load_priority_delays_runs",
        load_priority=config.load_priority,
        reason="loads hold locks of the accelerator's driver, so a load that loses its core keeps runs waiting",
        remedy="leave --load_priority=auto, which is normal with --accelerator",
    )


def _make_compilation(
    foundation: Foundation, plugin: str, cache_directory: str, cores: CoreLender
) -> CompileRuns | None:
    """Makes the compilation beside requests; None without a flag or a cache for it."""
    config = foundation.config
    if not config.accelerator_compile_process or not cache_directory:
        return None
    arguments = Arguments(plugin, cache_directory, priority=config.compile_priority)
    return CompileRuns(arguments, _make_program_runs(foundation, cores), foundation.clock)


def _make_autotuning(
    foundation: Foundation, plugin: str, cache_directory: str, cores: CoreLender
) -> Autotuning | None:
    """Makes the autotuning beside requests; None without a flag, a cache or memory for it."""
    config = foundation.config
    share = trial_memory_share(config.accelerator_memory_fraction)
    if config.accelerator_autotuning != "background" or not cache_directory:
        return None
    if not share:
        _log.warning(
            "autotuning_has_no_memory",
            reason=f"--accelerator_memory_fraction={config.accelerator_memory_fraction:g} leaves none of a GPU "
            "for it, so graphs that come later are autotuned by the next start; lower it to 0.98, or give "
            "--accelerator_autotuning=start",
        )
        return None
    arguments = Arguments(plugin, cache_directory, memory_share=share)
    trials = TrialRuns(arguments, _make_program_runs(foundation, cores))
    return Autotuning(trials, foundation.data_plane.StatusError, foundation.clock)


def _make_program_runs(foundation: Foundation, cores: CoreLender) -> ProgramRuns:
    return ProgramRuns(foundation.config.accelerator_autotuning_seconds, cores, foundation.clock)


def make_gpu_sensors(foundation: Foundation, device_count: int) -> GpuSensors | None:
    """Makes the reader of the GPUs' sensors; None if there is no GPU of NVIDIA's, or no driver."""
    if foundation.config.accelerator != CUDA:
        return None
    gpus = open_gpus(device_count)
    return GpuSensors(gpus, foundation.clock) if gpus else None


def make_arenas(config: ServerConfig, pool: SlabPool | None) -> Arenas | None:
    """Makes the arenas on slabs of `pool`; None if there is no pool."""
    if pool is None:
        return None
    limits = MemoryLimits(limit_bytes=config.model_memory_limit_bytes)
    return Arenas(pool, limits, available_bytes)


def make_batching(foundation: Foundation) -> Batching:
    """Makes the object that gives each load its settings for batches."""
    return Batching(
        foundation.data_plane,
        foundation.config.batching,
        reads_version_files=foundation.config.enable_per_model_batching_parameters,
    )


def make_slab_pool(foundation: Foundation) -> SlabPool | None:
    """Makes the pool of slabs; None if versions get no arenas. Raises InvalidConfig if jemalloc is missing."""
    if not foundation.config.has_arenas:
        return None
    if foundation.data_plane.build_info()["allocator"] != "jemalloc":
        raise InvalidConfig(
            "jemalloc is not preloaded, but the arenas of versions need it; start the server with "
            "`millpond serve`, set LD_PRELOAD=libjemalloc.so.2, or use --arena=false"
        )
    interleave_parameters(foundation.config, foundation.data_plane)
    with statuses_as_errors(foundation.data_plane.StatusError):
        return foundation.data_plane.SlabPool(
            spare_slab_count=foundation.config.spare_slab_count,
            thread_priority=foundation.config.background_priority,
        )


def make_reservoirs(foundation: Foundation) -> Reservoirs:
    """Makes the reservoirs of recent requests, one for each model. They stay empty if no requests are kept."""
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
    foundation: Foundation, *, reservoirs: Reservoirs, background: BackgroundWork
) -> CaptureDirectory | None:
    """Makes the writer of warm-up files; None if --warmup_capture_directory is not given."""
    if not foundation.config.warmup_capture_directory:
        return None
    return CaptureDirectory(
        Path(foundation.config.warmup_capture_directory),
        reservoirs,
        background=background,
        clock=foundation.clock,
    )


def _no_warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
    """Does nothing. This is the warm-up with --enable_model_warmup=false."""


def make_request_cores(config: ServerConfig) -> RequestCores | None:
    """Makes the choice of cores for request threads; None if they are never pinned, or always."""
    return RequestCores() if config.pin_request_threads == "loads" else None
