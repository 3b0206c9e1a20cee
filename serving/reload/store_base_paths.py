"""Base paths in object storage: their mirrors, and what a mirror needs of the server."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from serving.base.clock import Clock
from serving.base.errors import InvalidConfig
from serving.config.server_config import ServerConfig
from serving.core.servable import END
from serving.core.store_urls import is_store_url
from serving.loading.background_work import BackgroundWork
from serving.manager.state_monitor import StateMonitor
from serving.reload.sources import Source
from serving.source.listing import FilesCheck
from serving.source.notes import Note

if TYPE_CHECKING:
    from serving.storage.mirrors import Mirrors


class StoreBasePaths:
    """`BasePaths`, with mirrors that are made by the first base path that is a URL.

    A server without such a base path imports nothing of `serving.storage` but the check of URLs.
    """

    def __init__(
        self,
        config: ServerConfig,
        monitor: StateMonitor,
        *,
        check: FilesCheck,
        background: BackgroundWork,
        clock: Clock,
    ) -> None:
        """The mirrors check versions by `check`, and work in the `background`."""
        self._config = config
        self._monitor = monitor
        self._check = check
        self._background = background
        self._clock = clock
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

            config = self._config
            self._mirrors = Mirrors(
                cache_directory(config),
                MirrorSettings(
                    period_seconds=config.model_store_poll_wait_seconds,
                    budget_bytes=config.model_cache_bytes,
                    keeps_last=config.servable_versions_always_present,
                    missing_asset_wait_seconds=config.missing_asset_wait_seconds,
                ),
                check=self._check,
                background=self._background,
                clock=self._clock,
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


def cache_directory(config: ServerConfig) -> Path:
    """Finds the directory of the copies. Raises InvalidConfig for a user without a home directory."""
    if config.model_cache_directory:
        return Path(config.model_cache_directory)
    cache = os.environ.get("XDG_CACHE_HOME", "") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        raise InvalidConfig(
            "the user has no home directory for the copies of models in object storage; give "
            "--model_cache_directory"
        )
    return Path(cache, "millpond", "models")
