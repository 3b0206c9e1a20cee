from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serving.base.errors import Cancelled
from serving.config.server_config import ModelConfig
from serving.core.model_settings import (
    BATCHING_OFF,
    BatchingChoice,
    BatchingSettings,
    GateMode,
    GateSettings,
    InputShapes,
    ModelSettings,
)
from serving.core.servable import ServableId
from serving.core.version_selection import All, Latest, Specific, VersionSelection
from serving.loading.loader import LoadSettings, SavedModelLoader
from serving.loading.reservoirs import Reservoirs
from serving.server.batching import Batching
from serving.server.model_loaders import ModelLoaders, serving_count
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane

M = ModelConfig(name="m", base_path="/m")


def nothing(*arguments: Any, **more: Any) -> Any:
    """A warm-up that no test here runs."""


@pytest.fixture
def plane() -> FakePlane:
    return FakePlane()


@pytest.fixture
def loaders(plane: FakePlane) -> ModelLoaders:
    return make_loaders(plane)


def make_loaders(plane: FakePlane, *, has_strict_input_shapes: bool = False) -> ModelLoaders:
    settings = LoadSettings(
        tags=("serve",),
        warm_up=nothing,
        self_warm_up=nothing,
        has_strict_input_shapes=has_strict_input_shapes,
    )
    reservoirs = Reservoirs(partial(plane.RequestReservoir, request_count_max=1))
    batching = Batching(plane, BATCHING_OFF, reads_version_files=False)
    return ModelLoaders(
        settings, reservoirs=reservoirs, batching=batching, plane=plane, clock=FakeClock()
    )


def settings_of(loaders: ModelLoaders, name: str = "m") -> LoadSettings:
    loader = loaders.make(ServableId(name, 1), str(Path("/m/1")))
    assert isinstance(loader, SavedModelLoader)
    return loader._settings


def test_make_for_unconfigured_model_is_cancelled(loaders: ModelLoaders) -> None:
    loaders.set_models([M])
    with pytest.raises(Cancelled, match="n/1: its model is no longer configured"):
        loaders.make(ServableId("n", 1), "/n/1")


def test_make_uses_current_config(loaders: ModelLoaders) -> None:
    gates = GateSettings(signature=GateMode.ENFORCE)
    loaders.set_models([M])
    assert settings_of(loaders).gates() == GateSettings()
    loaders.set_models(
        [
            ModelConfig(
                name="m",
                base_path="/m",
                version_selection=Latest(3),
                settings=ModelSettings(gates=gates),
            )
        ]
    )
    assert (settings_of(loaders).gates(), settings_of(loaders).serving_count) == (gates, 3)


@pytest.mark.parametrize(
    ("is_strict_by_flag", "of_model", "is_strict"),
    [
        (False, InputShapes.AS_FLAG, False),
        (True, InputShapes.AS_FLAG, True),
        (True, InputShapes.ANY, False),
        (False, InputShapes.STRICT, True),
    ],
)
def test_input_shapes_of_a_model_go_before_the_flag(
    plane: FakePlane, is_strict_by_flag: bool, of_model: InputShapes, is_strict: bool
) -> None:
    loaders = make_loaders(plane, has_strict_input_shapes=is_strict_by_flag)
    settings = ModelSettings(input_shapes=of_model)
    loaders.set_models([ModelConfig(name="m", base_path="/m", settings=settings)])
    assert settings_of(loaders).has_strict_input_shapes is is_strict


def test_changed_batching_counts_for_later_loads(loaders: ModelLoaders) -> None:
    loaders.set_models([M])
    before = settings_of(loaders)
    batching = BatchingSettings(enabled=BatchingChoice.ON, max_batch_size=7)
    loaders.set_models(
        [ModelConfig(name="m", base_path="/m", settings=ModelSettings(batching=batching))]
    )
    assert before.batching(Path("/m/1")) is None
    after: Any = settings_of(loaders).batching(Path("/m/1"))
    assert after["rows_max"] == 7


def test_limit_of_batches_lives_as_long_as_its_model(loaders: ModelLoaders) -> None:
    batching = BatchingSettings(enabled=BatchingChoice.ON, num_batch_threads=2)
    model = ModelConfig(name="m", base_path="/m", settings=ModelSettings(batching=batching))

    def slots() -> object:
        settings: Any = settings_of(loaders).batching(Path("/m/1"))
        return settings["slots"]

    loaders.set_models([model])
    first = slots()
    loaders.set_models([model])
    assert slots() is first
    loaders.set_models([])
    loaders.set_models([model])
    assert slots() is not first


def test_reservoir_lives_as_long_as_model_config(loaders: ModelLoaders, plane: FakePlane) -> None:
    loaders.set_models([M])
    loaders.set_models([ModelConfig(name="m", base_path="/other")])
    (first,) = plane.reservoirs
    assert settings_of(loaders).reservoir is first
    loaders.set_models([])
    loaders.set_models([M])
    assert settings_of(loaders).reservoir is plane.reservoirs[1]


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Latest(2), 2),
        (All(), 2**31 - 1),  # no version takes the place of another
        (Specific(frozenset()), 1),
        (Specific(frozenset({1, 2, 3})), 3),
    ],
)
def test_serving_count_of_a_selection(selection: VersionSelection, count: int) -> None:
    assert serving_count(selection) == count
