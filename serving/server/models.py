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
"""The period at which the settings file is read by default: as often as a base path is looked at."""


class Models:
    """The configured models. `grants` is None for a server that runs alone."""

    def __init__(
        self,
        foundation: Foundation,
        versions: Versions,
        *,
        requests: RequestParts,
    ) -> None:
        """Makes the parts. Nothing polls yet."""
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
                enter_background=versions.threads.priority.enter_background,
                watched=versions.threads.watched,
                clock=clock,
            ),
        )
        self.served.add_names_listener(requests.statistics.add_models)
        self.served.add_names_listener(versions.notes.set_models)
        self.grants = make_grants(foundation, versions.sources)
        self.reloader = ConfigReloader(self.served, versions.monitor, config.model_settings, clock)
        self.watcher = make_config_watcher(foundation, reloader=self.reloader, served=self.served)

    def start(self, plan: ConfigPlan) -> None:
        """Applies the first configuration, and looks for versions from now on."""
        self.pollers.start()
        self.reloader.apply_first(plan)

    def watch_files(self) -> None:
        """Reads the files of the configuration again from now on."""
        if self.watcher is not None:
            self.watcher.start()

    def stop(self) -> None:
        """Begins no reload and no poll any more. Returns at once: `join` waits for the threads."""
        if self.watcher is not None:
            self.watcher.stop()
        self.reloader.stop()
        self.served.stop()
        self.pollers.stop()

    def join(self) -> bool:
        """Waits, after `stop`; returns False if a disk still holds a thread."""
        is_over = [
            self.served.join(SOURCE_TIMEOUT_SECONDS),
            self.pollers.join(SOURCE_TIMEOUT_SECONDS),
            self.watcher is None or self.watcher.join(SOURCE_TIMEOUT_SECONDS),
        ]
        return all(is_over)

    def _poll_failed(self, status: ServableStatus) -> None:
        """Makes a version that has failed due, whose files are watched from now on by polls."""
        if status.state is END and status.health != HEALTHY:
            self.pollers.wake(status.id.name)

    def _set_loadable(self, models: Sequence[ModelConfig]) -> None:
        self._versions.loads.set_models(models)
        self._admission.set_model_limits(model_limits(models))

    def _make_source(self, model: ModelConfig) -> FileSystemSource:
        """Makes the source that finds the versions of one model. It does not look at the disk yet."""
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
        # Before its first poll: a version that was rolled back must not be loaded until it is
        # unblocked.
        source.set_blocked(self._versions.streams.blocked(model.name))
        if self.grants is not None:
            source.set_granted(self.grants.versions(model.name))
        return source


def check_models(config: ServerConfig) -> None:
    """Raises InvalidConfig for an unknown platform, or if copies of object storage have no directory.

    Call it before any part is made, because some hold files and threads from then on.
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
    """Makes the grants of a member of a fleet; None for a server that runs alone."""
    if not foundation.config.fleet_member:
        return None
    # Imported here because a server that runs alone imports nothing of a fleet.
    from serving.reload.grants import Grants

    directory = foundation.config.state_directory
    return Grants(Path(directory) if directory else None, sources.set_granted, foundation.clock)


def make_config_watcher(
    foundation: Foundation, *, reloader: ConfigReloader, served: ServedModels
) -> ConfigWatcher | None:
    """Makes the watch; None if the configuration has no files, or if they are read only once."""
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
    """The most requests in flight of each model by name; models without a limit are left out."""
    limits = {model.name: model.settings.max_in_flight_requests for model in models}
    return {name: limit for name, limit in limits.items() if limit > 0}
