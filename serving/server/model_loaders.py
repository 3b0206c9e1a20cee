"""ModelLoaders: makes the loaders of each model's versions, while models are added and removed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from serving.base.clock import Clock
from serving.base.errors import Cancelled
from serving.config.server_config import ModelConfig
from serving.core.model_settings import InputShapes, ModelSettings
from serving.core.servable import ServableId
from serving.core.version_selection import Latest, Specific, VersionSelection
from serving.data_plane.plane import DataPlane
from serving.loading.loader import Loader, LoadSettings, SavedModelLoader
from serving.loading.reservoirs import Reservoirs
from serving.server.batching import Batching


class ModelLoaders:
    """Makes a loader for each load, from the configuration at that time.

    Any thread may make a loader; one thread at a time sets the models. A model's reservoir of live
    requests outlives its versions and lasts as long as the model is configured.
    """

    def __init__(
        self,
        settings: LoadSettings,
        *,
        reservoirs: Reservoirs,
        batching: Batching,
        plane: DataPlane,
        clock: Clock,
    ) -> None:
        """`settings` are the settings that all models share."""
        self._settings = settings
        self._reservoirs = reservoirs
        self._batching = batching
        self._plane = plane
        self._clock = clock
        # Replaced as a whole, because `make` reads it without a lock.
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

    def make(self, servable_id: ServableId, directory: str) -> Loader:
        """See `loader.MakeLoader`. Raises Cancelled if the model is not configured any more."""
        settings = self._by_name.get(servable_id.name)
        if settings is None:
            raise Cancelled(f"{servable_id}: its model is no longer configured")
        return SavedModelLoader(
            servable_id, directory, settings=settings, plane=self._plane, clock=self._clock
        )

    def _settings_of(self, model: ModelConfig) -> LoadSettings:
        return replace(
            self._settings,
            serving_count=serving_count(model.version_selection),
            reservoir=self._reservoirs.of(model.name),
            gates=lambda: model.settings.gates,
            batching=partial(self._batching.of_version, model.name, model.settings.batching),
            has_strict_input_shapes=self._has_strict_input_shapes(model.settings),
        )

    def _has_strict_input_shapes(self, settings: ModelSettings) -> bool:
        if settings.input_shapes is InputShapes.AS_FLAG:
            return self._settings.has_strict_input_shapes
        return settings.input_shapes is InputShapes.STRICT


def serving_count(selection: VersionSelection) -> int:
    """Returns the count of versions that are served between swaps.

    With `all`, no version takes another's place: the count is one that is never exceeded.
    """
    if isinstance(selection, Latest):
        return selection.version_count
    return max(1, len(selection.versions)) if isinstance(selection, Specific) else 2**31 - 1
