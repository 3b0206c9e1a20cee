from pathlib import Path
from typing import Any

import pytest

from serving.base.errors import InvalidConfig
from serving.core.model_settings import BATCHING_OFF as OFF
from serving.core.model_settings import BatchingChoice, BatchingSettings
from serving.data_plane.loads import BatchSettings
from serving.reload.batching import Batching
from tests.unit.fakes.data_plane import FakePlane

AS_FLAG = BatchingSettings()
ON = BatchingSettings(enabled=BatchingChoice.ON)


def on(**fields: Any) -> BatchingSettings:
    return BatchingSettings(enabled=BatchingChoice.ON, **fields)


def make(server: BatchingSettings, *, reads_version_files: bool = False) -> Batching:
    return Batching(FakePlane(), server, reads_version_files=reads_version_files)


def rows_max(batching: Batching, model: BatchingSettings, directory: Path) -> int | None:
    settings = batching.of_version("m", model, directory)
    return None if settings is None else settings.rows_max


def slots(batching: Batching, name: str, model: BatchingSettings, directory: Path) -> object:
    settings = batching.of_version(name, model, directory)
    assert settings is not None
    return settings.slots


def test_settings_reach_the_data_plane(tmp_path: Path):
    settings = on(
        max_batch_size=64,
        max_batch_latency_ms=2.5,
        splits_large_requests=False,
        allowed_batch_sizes=(8, 64),
        pads_variable_length_inputs=True,
        max_enqueued_batches=5,
        num_batch_threads=3,
    )
    model = BatchingSettings(batch_relative_tolerance=0.25, may_mix_rows=True)
    assert make(settings).of_version("m", model, tmp_path) == BatchSettings(
        rows_max=64,
        run_seconds_max=0.0025,
        splits=False,
        allowed_rows=(8, 64),
        pads_inputs=True,
        waiting_requests_max=5 * 64,
        slots=[3],
        relative_tolerance=0.25,
        may_mix_rows=True,
    )


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize(
    ("server", "model", "rows"),
    [
        (OFF, AS_FLAG, None),
        (ON, AS_FLAG, 1024),
        (ON, OFF, None),
        (OFF, on(max_batch_size=5), 5),
        (ON, on(max_batch_size=5), 5),
    ],
    ids=["off", "on", "off_for_model", "on_for_model", "other_for_model"],
)
def test_settings_of_a_model_go_before_the_flags(
    tmp_path: Path,
    server: BatchingSettings,
    model: BatchingSettings,
    rows: int | None,
    *,
    has_file: bool,
):
    if has_file:
        (tmp_path / "batching_params.pbtxt").write_text("not read")
    assert rows_max(make(server), model, tmp_path) == rows


@pytest.mark.parametrize(("model", "rows"), [(AS_FLAG, 3), (OFF, None), (on(max_batch_size=5), 5)])
def test_file_of_a_version_goes_before_the_flags(
    tmp_path: Path, model: BatchingSettings, rows: int | None
):
    (tmp_path / "batching_params.pbtxt").write_text("max_batch_size { value: 3 }")
    assert rows_max(make(ON, reads_version_files=True), model, tmp_path) == rows


def test_version_without_a_file_is_batched_as_others(tmp_path: Path):
    assert rows_max(make(ON, reads_version_files=True), AS_FLAG, tmp_path) == 1024


def test_wrong_file_of_a_version_is_refused(tmp_path: Path):
    (tmp_path / "batching_params.pbtxt").write_text("rows: 3")
    with pytest.raises(InvalidConfig, match=r"batching_params\.pbtxt: .*no field named \"rows\""):
        make(ON, reads_version_files=True).of_version("m", AS_FLAG, tmp_path)


def test_all_models_share_the_limit_of_the_server(tmp_path: Path):
    batching = make(on(num_batch_threads=3))
    of_server = slots(batching, "m", AS_FLAG, tmp_path)
    assert of_server == [3]
    assert slots(batching, "n", AS_FLAG, tmp_path) is of_server
    assert slots(batching, "n", on(max_batch_size=2), tmp_path) is of_server


def test_versions_of_a_model_share_its_own_limit(tmp_path: Path):
    batching = make(on(num_batch_threads=3))
    own = on(num_batch_threads=3)
    first = slots(batching, "m", own, tmp_path)
    assert first == [3]
    assert slots(batching, "m", own, tmp_path) is first
    assert slots(batching, "m", AS_FLAG, tmp_path) is not first
    assert slots(batching, "n", own, tmp_path) is not first
    assert slots(batching, "m", on(num_batch_threads=4), tmp_path) == [4]


def test_file_of_a_version_may_have_a_limit(tmp_path: Path):
    (tmp_path / "batching_params.pbtxt").write_text("num_batch_threads { value: 2 }")
    batching = make(on(num_batch_threads=3), reads_version_files=True)
    assert slots(batching, "m", AS_FLAG, tmp_path) == [2]
    (tmp_path / "batching_params.pbtxt").write_text("")
    assert slots(batching, "m", AS_FLAG, tmp_path) == [3]


def test_server_without_a_limit_has_no_slots(tmp_path: Path):
    assert slots(make(ON), "m", AS_FLAG, tmp_path) is None


def test_forgotten_model_gets_a_new_limit(tmp_path: Path):
    batching, own = make(OFF), on(num_batch_threads=1)
    first = slots(batching, "m", own, tmp_path)
    batching.forget("m")
    batching.forget("unheard_of")
    assert slots(batching, "m", own, tmp_path) is not first
