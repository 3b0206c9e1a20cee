from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serving.base.errors import Cancelled
from serving.core.model_config import ModelConfig
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
from serving.data_plane.loads import BatchSettings
from serving.loading.batch_records import BatchRecords
from serving.loading.batch_refusals import BatchRefusals
from serving.loading.loader import LoadSettings
from serving.loading.reservoirs import Reservoirs
from serving.reload.batching import Batching
from serving.reload.model_loads import ModelLoads, serving_count
from serving.request_log.request_logs import RequestLogs
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.loads import FakeProgress
from tests.unit.fakes.log_store import no_uploads

M = ModelConfig(name="m", base_path="/m")


def nothing(*arguments: Any, **more: Any) -> Any:
    """A warm-up that no test here runs."""


@pytest.fixture
def plane() -> FakePlane:
    return FakePlane()


@pytest.fixture
def loads(plane: FakePlane) -> ModelLoads:
    return make_loads(plane)


def make_loads(plane: FakePlane, *, has_strict_input_shapes: bool = False) -> ModelLoads:
    settings = LoadSettings(
        tags=("serve",),
        warm_up=nothing,
        self_warm_up=nothing,
        incumbent=nothing,
        follows_another=lambda servable_id: False,
        batch_records=BatchRecords(),
        batch_refusals=BatchRefusals(FakeClock()),
        has_strict_input_shapes=has_strict_input_shapes,
    )
    reservoirs = Reservoirs(partial(plane.RequestReservoir, request_count_max=1))
    batching = Batching(plane, BATCHING_OFF, reads_version_files=False)
    return ModelLoads(
        settings,
        reservoirs=reservoirs,
        request_logs=RequestLogs(plane, uploads=no_uploads(), clock=FakeClock()),
        batching=batching,
        plane=plane,
        clock=FakeClock(),
    )


def settings_of(loads: ModelLoads) -> LoadSettings:
    return loads.settings(ServableId("m", 1))


def batching_of(settings: LoadSettings) -> BatchSettings | None:
    assert settings.batching is not None
    return settings.batching(Path("/m/1"))


def test_load_of_unconfigured_model_is_cancelled(loads: ModelLoads) -> None:
    loads.set_models([M])
    with pytest.raises(Cancelled, match="n/1: its model is no longer configured"):
        loads.load(ServableId("n", 1), "/n/1", FakeProgress())


def test_load_uses_current_config(loads: ModelLoads) -> None:
    gates = GateSettings(signature=GateMode.ENFORCE)
    loads.set_models([M])
    assert settings_of(loads).gates == GateSettings()
    loads.set_models(
        [
            ModelConfig(
                name="m",
                base_path="/m",
                version_selection=Latest(3),
                settings=ModelSettings(gates=gates),
            )
        ]
    )
    assert (settings_of(loads).gates, settings_of(loads).serving_count) == (gates, 3)


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
    loads = make_loads(plane, has_strict_input_shapes=is_strict_by_flag)
    settings = ModelSettings(input_shapes=of_model)
    loads.set_models([ModelConfig(name="m", base_path="/m", settings=settings)])
    assert settings_of(loads).has_strict_input_shapes is is_strict


def test_changed_batching_counts_for_later_loads(loads: ModelLoads) -> None:
    loads.set_models([M])
    before = settings_of(loads)
    batching = BatchingSettings(enabled=BatchingChoice.ON, max_batch_size=7)
    loads.set_models(
        [ModelConfig(name="m", base_path="/m", settings=ModelSettings(batching=batching))]
    )
    assert batching_of(before) is None
    after = batching_of(settings_of(loads))
    assert after is not None
    assert after.rows_max == 7


def test_limit_of_batches_lives_as_long_as_its_model(loads: ModelLoads) -> None:
    batching = BatchingSettings(enabled=BatchingChoice.ON, num_batch_threads=2)
    model = ModelConfig(name="m", base_path="/m", settings=ModelSettings(batching=batching))

    def slots() -> object:
        settings = batching_of(settings_of(loads))
        assert settings is not None
        return settings.slots

    loads.set_models([model])
    first = slots()
    loads.set_models([model])
    assert slots() is first
    loads.set_models([])
    loads.set_models([model])
    assert slots() is not first


def test_reservoir_lives_as_long_as_model_config(loads: ModelLoads, plane: FakePlane) -> None:
    loads.set_models([M])
    loads.set_models([ModelConfig(name="m", base_path="/other")])
    (first,) = plane.reservoirs
    assert settings_of(loads).reservoir is first
    loads.set_models([])
    loads.set_models([M])
    assert settings_of(loads).reservoir is plane.reservoirs[1]


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
