"""Models: the configured models, the sources of their versions, and the reload of both."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serving.base.errors import InvalidConfig
from serving.config.plan import ConfigPlan
from serving.config.server_config import ServerConfig
from serving.core.model_config import PLATFORM, ModelConfig
from serving.core.servable import END, HEALTHY, ServableStatus
from serving.core.store_urls import is_store_url
from serving.manager.source_findings import SourceFindings, SourceModelStatus
from serving.reload.config_reload import ConfigReloader
from serving.reload.config_watch import ConfigWatcher
from serving.reload.served_models import ServedModels
from serving.reload.sources import Sources
from serving.reload.store_base_paths import StoreBasePaths, cache_directory
from serving.server.foundation import Foundation
from serving.server.request_parts import RequestParts
from serving.server.stop_timeouts import SOURCE_TIMEOUT_SECONDS
from serving.server.versions import Versions
from serving.source.file_system_source import FileSystemSource, SourceSettings
from serving.source.poll_schedule import PollLimits
from serving.source.poller_pool import PollerPool

if TYPE_CHECKING:
    from serving.reload.grants import Grants

SETTINGS_POLL_SECONDS = 1.0
"""The time between two reads of the settings file, if no flag gives one. A base path is read as often."""


class Models:
    """The configured models and the sources of their versions.

    `grants` has the versions that a fleet lets this server select; None for a server that runs alone.
    """

    def __init__(
        self,
        foundation: Foundation,
        versions: Versions,
        *,
        requests: RequestParts,
    ) -> None:
        """Makes the parts. No source polls yet."""
        self._foundation = foundation
        self._versions = versions
        self._admission = requests.admission
        config, clock = foundation.config, foundation.clock
        self._findings = SourceFindings(versions.manager, versions.monitor, versions.notes)
        self._model_status = SourceModelStatus(versions.monitor, versions.streams)
        self.pollers = PollerPool(PollLimits(), clock)
        versions.monitor.add_listener(self._poll_failed)
        self.served = ServedModels(
            sources=versions.sources,
            make_source=self._make_source,
            set_loadable=self._set_loadable,
            manager=versions.manager,
            base_paths=StoreBasePaths(
                config,
                versions.monitor,
                check=foundation.check_saved_model,
                background=versions.background,
                clock=clock,
            ),
            check_log=versions.request_logs.check,
        )
        self.served.add_names_listener(requests.statistics.add_models)
        self.served.add_names_listener(versions.notes.set_models)
        self.grants = make_grants(foundation, versions.sources)
        self.reloader = ConfigReloader(self.served, versions.monitor, config.model_settings, clock)
        self.watcher = make_config_watcher(foundation, reloader=self.reloader, served=self.served)

    def start(self, plan: ConfigPlan) -> None:
        """Applies the first configuration, and begins to look for versions."""
        self.pollers.start()
        self.reloader.apply_first(plan)

    def watch_files(self) -> None:
        """Begins to read the files of the configuration again and again, and applies their changes."""
        if self.watcher is not None:
            self.watcher.start()

    def stop(self) -> None:
        """Lets no further reload or poll begin. Returns at once, and `join` waits for the threads."""
        if self.watcher is not None:
            self.watcher.stop()
        self.reloader.stop()
        self.served.stop()
        self.pollers.stop()

    def join(self) -> bool:
        """Waits, after `stop`, for the threads. Returns False if a disk that hangs still holds one."""
        is_over = [
            self.served.join(SOURCE_TIMEOUT_SECONDS),
            self.pollers.join(SOURCE_TIMEOUT_SECONDS),
            self.watcher is None or self.watcher.join(SOURCE_TIMEOUT_SECONDS),
        ]
        return all(is_over)

    def _poll_failed(self, status: ServableStatus) -> None:
        """Makes the model of a failed version due for a poll, which watches if the version's files change."""
        if status.state is END and status.health != HEALTHY:
            self.pollers.wake(status.id.name)

    def _set_loadable(self, models: Sequence[ModelConfig]) -> None:
        self._versions.request_logs.set_models(models)
        self._versions.loads.set_models(models)
        self._admission.set_model_limits(model_limits(models))

    def _make_source(self, model: ModelConfig) -> FileSystemSource:
        """Makes the source that finds the versions of one model. The source does not look at the disk yet."""
        config = self._foundation.config
        source = FileSystemSource(
            model.name,
            SourceSettings(
                base_path=model.base_path,
                selection=model.version_selection,
                labels=model.labels,
                keeps_last=config.servable_versions_always_present,
                period_seconds=config.file_system_poll_wait_seconds,
                missing_asset_wait_seconds=config.missing_asset_wait_seconds,
            ),
            listener=self._findings,
            model_status=self._model_status,
            check=self._foundation.check_saved_model,
            pollers=self.pollers,
            clock=self._foundation.clock,
        )
        # The source gets the blocked versions before its first poll, because a version that was rolled back
        # must not be loaded.
        source.set_blocked(self._versions.streams.blocked(model.name))
        if self.grants is not None:
            source.set_granted(self.grants.versions(model.name))
        return source


def check_models(config: ServerConfig) -> None:
    """Raises InvalidConfig for an unknown platform, or for a store's URL without a directory for copies.

    Call it before any part is made, because some parts hold files and threads as soon as they are made.
    """
    for model in config.models:
        if is_store_url(model.base_path):
            cache_directory(config)
        if model.platform != PLATFORM:
            raise InvalidConfig(
                f"model {model.name!r}: model_platform {model.platform!r} is unknown; "
                f"known: {PLATFORM}"
            )


def make_grants(foundation: Foundation, sources: Sources) -> "Grants | None":
    """Makes the grants of a fleet's member; None for a server that runs alone."""
    if not foundation.config.fleet_member:
        return None
    # Imported here because a server that runs alone should not load this module.
    from serving.reload.grants import Grants

    directory = foundation.config.state_directory
    return Grants(Path(directory) if directory else None, sources.set_granted, foundation.clock)


def make_config_watcher(
    foundation: Foundation, *, reloader: ConfigReloader, served: ServedModels
) -> ConfigWatcher | None:
    """Makes the watch of the configuration's files; None if there are none, or if they are read only once."""
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
        served=served,
        clock=foundation.clock,
    )


def model_limits(models: Iterable[ModelConfig]) -> dict[str, int]:
    """The most requests in flight that each model may have, by name. Leaves out models without a limit."""
    limits = {model.name: model.settings.max_in_flight_requests for model in models}
    return {name: limit for name, limit in limits.items() if limit > 0}
