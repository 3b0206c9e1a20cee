"""ModelLoads: loads the versions of each model, while models are added and removed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from serving.base.clock import Clock
from serving.base.errors import Cancelled
from serving.core.model_config import ModelConfig
from serving.core.model_settings import InputShapes, ModelSettings
from serving.core.servable import ServableId
from serving.core.version_selection import Latest, Specific, VersionSelection
from serving.data_plane.plane import DataPlane
from serving.data_plane.servables import Servable
from serving.loading.load import CheckedLoad
from serving.loading.loader import LoadProgress, LoadSettings
from serving.loading.reservoirs import Reservoirs
from serving.reload.batching import Batching
from serving.request_log.request_logs import RequestLogs


class ModelLoads:
    """The `Loader` of a server: makes each `CheckedLoad` from the configuration at that time.

    Any thread may load; one thread at a time sets the models. A model's reservoir of live
    requests outlives its versions and lasts as long as the model is configured. `set_models` follows
    that of the request logs, which then have a log for each model.
    """

    def __init__(
        self,
        settings: LoadSettings,
        *,
        reservoirs: Reservoirs,
        request_logs: RequestLogs,
        batching: Batching,
        plane: DataPlane,
        clock: Clock,
    ) -> None:
        """`settings` are the settings that all models share."""
        self._settings = settings
        self._reservoirs = reservoirs
        self._request_logs = request_logs
        self._batching = batching
        self._plane = plane
        self._clock = clock
        # Replaced as a whole, because `load` reads it without a lock.
        self._by_name: Mapping[str, LoadSettings] = {}

    def set_models(self, models: Sequence[ModelConfig]) -> None:
        """Uses `models` for loads that begin from now on; running loads keep their settings."""
        before, self._by_name = (
            self._by_name,
            {model.name: self._settings_of(model) for model in models},
        )
        for name in before.keys() - self._by_name.keys():
            self._reservoirs.forget(name)
            self._batching.forget(name)

    def load(self, servable_id: ServableId, directory: str, progress: LoadProgress) -> Servable:
        """See `Loader`. Raises Cancelled if the model is not configured any more."""
        load = CheckedLoad(
            servable_id,
            Path(directory),
            settings=self.settings(servable_id),
            plane=self._plane,
            progress=progress,
            clock=self._clock,
        )
        return load.run()

    def settings(self, servable_id: ServableId) -> LoadSettings:
        """The settings of a load that begins now. Raises Cancelled as `load` does."""
        settings = self._by_name.get(servable_id.name)
        if settings is None:
            raise Cancelled(f"{servable_id}: its model is no longer configured")
        return settings

    def _settings_of(self, model: ModelConfig) -> LoadSettings:
        return replace(
            self._settings,
            serving_count=serving_count(model.version_selection),
            reservoir=self._reservoirs.of(model.name),
            request_log=self._request_logs.of(model.name),
            gates=model.settings.gates,
            batching=partial(self._batching.of_version, model.name, model.settings.batching),
            has_strict_input_shapes=self._has_strict_input_shapes(model.settings),
            platform=model.settings.platform,
            accelerator_tables=model.settings.accelerator_tables,
            accelerator_memory_bytes=model.settings.accelerator_memory_bytes,
            accelerator_priority=model.settings.accelerator_priority,
            accelerator_devices=model.settings.accelerator_devices,
            accelerator_replicas=model.settings.accelerator_replicas,
        )

    def _has_strict_input_shapes(self, settings: ModelSettings) -> bool:
        if settings.input_shapes is InputShapes.AS_FLAG:
            return self._settings.has_strict_input_shapes
        return settings.input_shapes is InputShapes.STRICT


def serving_count(selection: VersionSelection) -> int:
    """The count of versions that are served between swaps.

    With `all`, no version takes another's place: the count is one that is never exceeded.
    """
    if isinstance(selection, Latest):
        return selection.version_count
    return max(1, len(selection.versions)) if isinstance(selection, Specific) else 2**31 - 1
