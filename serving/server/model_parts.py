"""Makes the parts that decide which versions are loaded and which of them answer."""

import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from serving.base.errors import InvalidConfig
from serving.base.executor import ThreadExecutor
from serving.config.server_config import ServerConfig
from serving.core.blocked_versions import BlockedVersions, crashed_of
from serving.core.model_config import PLATFORM, ModelConfig
from serving.core.servable import END, AspiredVersion
from serving.core.store_urls import is_store_url
from serving.data_plane.servables import ServingMap
from serving.data_plane.status_errors import statuses_as_errors
from serving.loading.arenas import Arenas
from serving.loading.loader import Loader
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
from serving.reload.config_reload import ConfigReloader
from serving.reload.config_watch import ConfigWatcher
from serving.reload.served_models import ServedModels, Source
from serving.server.foundation import Foundation
from serving.server.loading_parts import FIRST_RETRY_NS
from serving.source.file_system_source import FileSystemSource, SourceListener, SourceSettings
from serving.source.notes import Note
from serving.source.poller_pool import PollerPool

if TYPE_CHECKING:
    from serving.reload.grants import Grants
    from serving.storage.mirrors import Mirrors


@dataclass(frozen=True, kw_only=True)
class ModelControl:
    """The parts from the configured models to the versions that answer."""

    monitor: StateMonitor
    manager: AspiredVersionsManager
    streams: Streams
    served: ServedModels
    reloader: ConfigReloader
    pollers: PollerPool


class ModelListener(ManagerListener):
    """Passes the events of the manager on to the sources, the swap timeline and the state directory.

    `models` returns the served models, which are made after the manager.
    """

    def __init__(
        self,
        *,
        models: Callable[[], ServedModels],
        swaps: SwapTimeline,
        blocked_version_keeper: BlockedVersionKeeper,
    ) -> None:
        self._models = models
        self._swaps = swaps
        self._blocked_version_keeper = blocked_version_keeper

    def found_versions(self, name: str) -> Collection[int]:
        return self._models().selectable_versions(name)

    def blocked_versions_changed(self, name: str, versions: frozenset[int]) -> None:
        self._models().set_blocked(name, versions)

    def keep_blocked_versions(self, name: str, blocked_versions: BlockedVersions) -> None:
        self._blocked_version_keeper.keep(name, blocked_versions)

    def default_version_changed(
        self, name: str, version: int, previous_version: int | None, how: str
    ) -> None:
        self._swaps.default_version_changed(name, version, previous_version, how)


def make_streams(foundation: Foundation) -> Streams:
    """Returns the states of all models, which the manager will replace."""
    return Streams(
        Rules(
            retry=RetryPolicy(
                retry_count_max=foundation.config.max_num_load_retries,
                interval_ns=foundation.config.load_retry_interval_micros * 1_000,
                first_interval_ns=FIRST_RETRY_NS,
            ),
            swap_jitter_seconds=foundation.config.load_jitter_seconds,
        )
    )


def make_manager(
    foundation: Foundation,
    *,
    loaders: ThreadExecutor,
    unloaders: ThreadExecutor,
    loader: Loader,
    arenas: Arenas | None,
    monitor: StateMonitor,
    serving_map: ServingMap,
    streams: Streams,
    notes: NotePublisher,
    blocked_version_keeper: BlockedVersionKeeper,
    listener: ManagerListener,
) -> AspiredVersionsManager:
    blocked = blocked_version_keeper.read()
    notes.set_crashed({name: crashed_of(versions) for name, versions in blocked.items()})
    return AspiredVersionsManager(
        loader=loader,
        loaders=loaders,
        unloaders=unloaders,
        version_memory=arenas,
        serving_map=serving_map,
        streams=streams,
        listener=listener,
        blocked_versions=blocked,
        random=random.random,
        monitor=monitor,
        clock=foundation.clock,
    )


def make_blocked_version_keeper(foundation: Foundation) -> BlockedVersionKeeper:
    if not foundation.config.state_directory:
        return NoBlockedVersionKeeper()
    return BlockedVersionFile(Path(foundation.config.state_directory), clock=foundation.clock)


def check_platforms(config: ServerConfig) -> None:
    """Raises InvalidConfig if a model's platform is unknown. Called before any part starts."""
    for model in config.models:
        if model.platform != PLATFORM:
            raise InvalidConfig(
                f"model {model.name!r}: model_platform {model.platform!r} is unknown; "
                f"known: {PLATFORM}"
            )


def make_source(
    foundation: Foundation,
    model: ModelConfig,
    *,
    pollers: PollerPool,
    manager: AspiredVersionsManager,
    streams: Streams,
    monitor: StateMonitor,
    notes: NotePublisher,
    grants: "Grants | None" = None,
) -> FileSystemSource:
    """Returns the source that finds the versions of one model. It does not look at the disk yet."""

    source = FileSystemSource(
        model.name,
        SourceSettings(
            base_path=model.base_path,
            selection=model.version_selection,
            labels=model.labels,
            keeps_last=foundation.config.servable_versions_always_present,
            period_seconds=foundation.config.file_system_poll_wait_seconds,
            missing_asset_wait_seconds=foundation.config.missing_asset_wait_seconds,
        ),
        listener=_SourceFindings(manager, monitor, notes),
        model_status=_SourceModelStatus(monitor, streams),
        check=partial(_check_saved_model, foundation),
        pollers=pollers,
        clock=foundation.clock,
    )
    # Before its first poll: a version that was rolled back must not be loaded until it is
    # unblocked.
    source.set_blocked(streams.blocked(model.name))
    if grants is not None:
        source.set_granted(grants.versions(model.name))
    return source


def make_grants(foundation: Foundation, models: Callable[[], ServedModels]) -> "Grants | None":
    """Returns the grants of a member of a fleet; None for a server that runs alone."""
    if not foundation.config.fleet_member:
        return None
    from serving.reload.grants import Grants

    directory = foundation.config.state_directory
    return Grants(
        Path(directory) if directory else None,
        lambda name, versions: models().set_granted(name, versions),
        foundation.clock,
    )


def _check_saved_model(foundation: Foundation, directory: str) -> Sequence[str]:
    with statuses_as_errors(foundation.data_plane.StatusError):
        return foundation.data_plane.check_saved_model(directory)


class _SourceFindings(SourceListener):
    """Passes the findings of sources to the manager, the state monitor and the note publisher."""

    def __init__(
        self, manager: AspiredVersionsManager, monitor: StateMonitor, notes: NotePublisher
    ) -> None:
        self._manager = manager
        self._monitor = monitor
        self._notes = notes

    def set_aspired(self, name: str, versions: Sequence[AspiredVersion]) -> None:
        self._manager.set_aspired(name, versions)

    def found_anew(self, name: str, version: int) -> None:
        self._manager.found_anew(name, version)

    def versions_seen(self, name: str, on_disk: frozenset[int], watched: frozenset[int]) -> None:
        self._monitor.versions_seen(name, on_disk, watched)

    def set_notes(self, name: str, notes: frozenset[Note], aspired: frozenset[int]) -> None:
        self._notes.set_source_notes(name, notes, aspired)


class _SourceModelStatus:
    """Answers the sources' questions from the state monitor and the streams."""

    def __init__(self, monitor: StateMonitor, streams: Streams) -> None:
        self._monitor = monitor
        self._streams = streams

    def failed_versions(self, name: str) -> Collection[int]:
        return self._monitor.failed_versions(name)

    def available_versions(self, name: str) -> Collection[int]:
        return self._monitor.available_versions(name)

    def labels_in_effect(self, name: str) -> Mapping[str, int]:
        return self._streams.labels(name)


class StoreBasePaths:
    """`BasePaths`, with mirrors that are made by the first base path that is a URL.

    A server without such a base path imports nothing of `serving.storage` but the check of URLs.
    """

    def __init__(
        self,
        foundation: Foundation,
        monitor: StateMonitor,
        *,
        enter_background: Callable[[], None],
    ) -> None:
        self._foundation = foundation
        self._monitor = monitor
        self._enter_background = enter_background
        self._mirrors: Mirrors | None = None

    def local(self, name: str, base_path: str) -> str:
        if not is_store_url(base_path):
            return base_path
        return str(self._made_mirrors().directory(name, base_path))

    def open(self, name: str, base_path: str, source: Source) -> None:
        if is_store_url(base_path):
            versions = _MirroredVersions(name, source, self._monitor)
            self._made_mirrors().open(name, base_path, versions)
        else:
            self.close(name)
            source.set_store_notes(frozenset())

    def close(self, name: str) -> None:
        if self._mirrors is not None:
            self._mirrors.close(name)

    def stop(self) -> None:
        if self._mirrors is not None:
            self._mirrors.stop()

    def join(self, timeout_seconds: float) -> bool:
        return self._mirrors is None or self._mirrors.join(timeout_seconds)

    def _made_mirrors(self) -> "Mirrors":
        if self._mirrors is None:
            from serving.storage.mirror import MirrorSettings
            from serving.storage.mirrors import Mirrors

            config = self._foundation.config
            self._mirrors = Mirrors(
                _cache_directory(config),
                MirrorSettings(
                    period_seconds=config.model_store_poll_wait_seconds,
                    budget_bytes=config.model_cache_bytes,
                    keeps_last=config.servable_versions_always_present,
                    missing_asset_wait_seconds=config.missing_asset_wait_seconds,
                ),
                check=partial(_check_saved_model, self._foundation),
                at_start=self._enter_background,
                clock=self._foundation.clock,
            )
        return self._mirrors


class _MirroredVersions:
    """Answers a mirror's questions from the source and the state monitor."""

    def __init__(self, name: str, source: Source, monitor: StateMonitor) -> None:
        self._name = name
        self._source = source
        self._monitor = monitor

    def select(self, versions: Collection[int]) -> Collection[int]:
        return self._source.selected_among(versions)

    def in_use(self) -> Collection[int]:
        statuses = self._monitor.versions(self._name)
        alive = {status.id.version for status in statuses if status.state is not END}
        return alive | self._source.aspired_versions()

    def failed(self) -> Collection[int]:
        return self._monitor.failed_versions(self._name)

    def files_changed(self) -> None:
        self._source.poll_soon()

    def set_store_notes(self, notes: frozenset[Note]) -> None:
        self._source.set_store_notes(notes)


def _cache_directory(config: ServerConfig) -> Path:
    if config.model_cache_directory:
        return Path(config.model_cache_directory)
    cache = os.environ.get("XDG_CACHE_HOME", "") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        raise InvalidConfig(
            "the user has no home directory for the copies of models in object storage; give "
            "--model_cache_directory"
        )
    return Path(cache, "millpond", "models")


SETTINGS_POLL_SECONDS = 1.0
"""The period at which the settings file is read by default: as often as a base path is looked at."""


def make_config_watcher(
    foundation: Foundation, *, reloader: ConfigReloader, served: ServedModels
) -> ConfigWatcher | None:
    """Returns None if the configuration has no files, or if they are read only once."""
    config = foundation.config
    period_seconds = config.model_config_file_poll_wait_seconds
    config_file = config.model_config_file if period_seconds > 0 else ""
    settings_file = config.model_settings_file if period_seconds >= 0 else ""
    if not (config_file or settings_file):
        return None
    return ConfigWatcher(
        config_file,
        settings_file,
        period_seconds=period_seconds or SETTINGS_POLL_SECONDS,
        change=reloader.change,
        model_names=lambda: served.names,
        clock=foundation.clock,
    )
