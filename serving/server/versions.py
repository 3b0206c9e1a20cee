"""Versions: the parts that load and unload versions, and that decide which version answers."""

import random
from collections.abc import Collection
from pathlib import Path

from serving.core.blocked_versions import BlockedVersions, crashed_of
from serving.core.servable import ServableId
from serving.loading.arenas import Arenas
from serving.loading.autotuning import Tuning
from serving.loading.background_work import BackgroundWork
from serving.loading.batch_records import BatchRecords
from serving.loading.batch_refusals import BatchRefusals
from serving.manager.blocked_version_file import (
    BlockedVersionFile,
    BlockedVersionKeeper,
    NoBlockedVersionKeeper,
)
from serving.manager.harness import RetryPolicy
from serving.manager.listener import ManagerListener
from serving.manager.manager import AspiredVersionsManager
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import Rules
from serving.manager.streams import Streams
from serving.monitoring.swap_timeline import SwapTimeline
from serving.monitoring.tracing import NoTracing, Tracing
from serving.reload.model_loads import ModelLoads
from serving.reload.sources import Sources
from serving.reload.store_base_paths import cache_directory
from serving.request_log.log_uploads import LogStore, LogUploads
from serving.request_log.request_logs import RequestLogs
from serving.server import loading_parts
from serving.server.foundation import Foundation
from serving.server.load_threads import LoadThreads
from serving.server.request_parts import RequestParts
from serving.server.stop_timeouts import (
    AUTOTUNING_TIMEOUT_SECONDS,
    BLOCKED_VERSIONS_TIMEOUT_SECONDS,
    CAPTURE_TIMEOUT_SECONDS,
    GPU_SENSORS_TIMEOUT_SECONDS,
    REQUEST_LOG_TIMEOUT_SECONDS,
    UNLOAD_TIMEOUT_SECONDS,
)


class ModelEvents(ManagerListener):
    """Passes the manager's events on to the sources, the swap timeline and the state directory."""

    def __init__(self, sources: Sources, swaps: SwapTimeline, keeper: BlockedVersionKeeper) -> None:
        self._sources = sources
        self._swaps = swaps
        self._keeper = keeper

    def found_versions(self, name: str) -> Collection[int]:
        return self._sources.selectable_versions(name)

    def awaited_base_path(self, name: str) -> str:
        return self._sources.awaited_base_path(name)

    def blocked_versions_changed(self, name: str, versions: frozenset[int]) -> None:
        self._sources.set_blocked(name, versions)

    def keep_blocked_versions(self, name: str, blocked_versions: BlockedVersions) -> None:
        self._keeper.keep(name, blocked_versions)

    def default_version_changed(
        self, name: str, version: int, previous_version: int | None, how: str
    ) -> None:
        self._swaps.default_version_changed(name, version, previous_version, how)


class Versions:
    """The versions of all models: their memory, their threads, their manager and their records."""

    def __init__(
        self,
        foundation: Foundation,
        *,
        requests: RequestParts,
        monitor: StateMonitor,
        tracing: Tracing | NoTracing,
    ) -> None:
        """Makes the parts. Raises InvalidConfig. No version loads yet.

        Each swap is passed to `tracing` when it ends, and the last swaps by `end_records`.
        """
        clock = foundation.clock
        self._statistics = requests.statistics
        self.monitor = monitor
        self.slab_pool = loading_parts.make_slab_pool(foundation)
        self.cores = loading_parts.make_request_cores(foundation.config)
        self._threads = LoadThreads(foundation, self.cores)
        self.background = self._threads.background
        self.reservoirs = loading_parts.make_reservoirs(foundation)
        self._capture = loading_parts.make_capture(
            foundation,
            reservoirs=self.reservoirs,
            background=self.background,
        )
        self.request_logs = RequestLogs(
            foundation.data_plane,
            uploads=_make_uploads(foundation, self.background),
            on_thread_start=self.background.enter,
            clock=clock,
        )
        arenas = loading_parts.make_arenas(foundation.config, self.slab_pool)
        self.streams = _make_streams(foundation)
        self.batches = BatchRecords()
        monitor.add_listener(self.batches.on_status)
        self._batch_refusals = BatchRefusals(clock)
        monitor.add_listener(self._batch_refusals.on_status)
        self.accelerator = loading_parts.make_accelerator_use(foundation)
        self.gpu = None
        if self.accelerator is not None:
            self.gpu = loading_parts.make_gpu_sensors(
                foundation, len(self.accelerator.accelerators)
            )
            monitor.add_listener(self.accelerator.sides.on_status)
            if self.accelerator.autotuning is not None:
                monitor.add_listener(self.accelerator.autotuning.on_status)
            if self.slab_pool is not None:
                self.slab_pool.pin_for(self.accelerator.accelerators[0])
        self.loads = self._make_loads(foundation, arenas)
        self.keeper = _make_keeper(foundation)
        self.swaps = SwapTimeline(
            requests.statistics,
            monitor=monitor,
            streams=self.streams,
            slab_pool=self.slab_pool,
            clock=clock,
        )
        monitor.add_listener(self.swaps.on_status)
        self.swaps.add_listener(tracing.add_swap)
        blocked = self.keeper.read()
        self.notes = NotePublisher(
            requests.serving_map,
            monitor.versions,
            {name: crashed_of(versions) for name, versions in blocked.items()},
        )
        monitor.add_stage_listener(self.notes.on_status)
        self.sources = Sources()
        self.manager = AspiredVersionsManager(
            loader=self.loads,
            loaders=self._threads.loaders,
            unloaders=self._threads.unloaders,
            version_memory=arenas,
            serving_map=requests.serving_map,
            streams=self.streams,
            listener=ModelEvents(self.sources, self.swaps, self.keeper),
            blocked_versions=blocked,
            random=random.random,
            monitor=monitor,
            clock=clock,
        )

    def _make_loads(self, foundation: Foundation, arenas: Arenas | None) -> ModelLoads:
        settings = loading_parts.load_settings(
            foundation,
            arenas=arenas,
            incumbent=self.streams.incumbent,
            follows_another=self.streams.follows_another,
            request_statistics=self._statistics,
            batch_records=self.batches,
            batch_refusals=self._batch_refusals,
            accelerator=self.accelerator,
        )
        return ModelLoads(
            settings,
            reservoirs=self.reservoirs,
            request_logs=self.request_logs,
            batching=loading_parts.make_batching(foundation),
            plane=foundation.data_plane,
            clock=foundation.clock,
        )

    def tuning_of(self, servable_id: ServableId) -> Tuning | None:
        """The progress of a version's autotuning; None without one."""
        return None if self.accelerator is None else self.accelerator.tuning(servable_id)

    def start(self) -> None:
        """Begins to load the versions that are aspired."""
        self._threads.start()
        self._batch_refusals.start()
        if self.accelerator is not None:
            self.accelerator.sides.start()
        if self._capture is not None:
            self._capture.start()
        self.request_logs.start()
        if self.gpu is not None:
            self.gpu.start()
        self.keeper.start()
        self.swaps.start()
        self.manager.start()

    def end_initial_loads(self) -> None:
        """Lets loads run in the background from now on, because requests may come."""
        self._threads.end_initial()

    def unload(self) -> bool:
        """Unloads all versions at full speed. Call it when no request is left.

        Returns False if a load or an unload still runs after UNLOAD_TIMEOUT_SECONDS.
        """
        self._threads.hurry_unloads()
        self.swaps.begin_stop()
        is_over = True
        if self.accelerator is not None:
            is_over = self.accelerator.stop_autotuning(AUTOTUNING_TIMEOUT_SECONDS)
        return self.manager.stop(UNLOAD_TIMEOUT_SECONDS) and is_over

    def write_last(self) -> bool:
        """Writes the last blocked versions, captured requests and logged ones. Call it after `unload`.

        Returns False if a write still runs after its timeout.
        """
        is_over = self.keeper.stop(BLOCKED_VERSIONS_TIMEOUT_SECONDS)
        if self._capture is not None:
            is_over &= self._capture.stop(CAPTURE_TIMEOUT_SECONDS)
        is_over &= self.request_logs.stop(REQUEST_LOG_TIMEOUT_SECONDS)
        return is_over

    def end_records(self) -> None:
        """Ends the swap timeline, which first passes its last swaps to tracing."""
        self.swaps.stop()

    def stop(self) -> bool:
        """Ends the remaining threads, and frees the spare memory. Returns False if a thread still runs."""
        self._batch_refusals.stop()
        if self.accelerator is not None:
            self.accelerator.stop()
        self._threads.stop()
        is_over = self.gpu is None or self.gpu.stop(GPU_SENSORS_TIMEOUT_SECONDS)
        if self.slab_pool is not None:
            self.slab_pool.stop()
        return is_over


def _make_uploads(foundation: Foundation, background: BackgroundWork) -> LogUploads:
    return LogUploads(
        lambda: cache_directory(foundation.config) / "request-logs",
        _log_store,
        on_thread_start=background.enter,
        clock=foundation.clock,
    )


def _log_store(url: str) -> LogStore:
    # Imported here because most servers have no URL.
    from serving.storage.log_store import FsspecLogStore

    return FsspecLogStore(url)


def _make_streams(foundation: Foundation) -> Streams:
    """Makes the table of the models' states. The manager replaces each state when it changes."""
    config = foundation.config
    retry = RetryPolicy(
        retry_count_max=config.max_num_load_retries,
        interval_ns=config.load_retry_interval_micros * 1_000,
        first_interval_ns=loading_parts.FIRST_RETRY_NS,
    )
    return Streams(Rules(retry=retry, swap_jitter_seconds=config.load_jitter_seconds))


def _make_keeper(foundation: Foundation) -> BlockedVersionKeeper:
    if not foundation.config.state_directory:
        return NoBlockedVersionKeeper()
    return BlockedVersionFile(Path(foundation.config.state_directory), clock=foundation.clock)
