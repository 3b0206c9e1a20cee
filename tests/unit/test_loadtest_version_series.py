from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtest.drive.demo_model import DemoModel
from loadtest.drive.version_series import VersionSeries, content_of
from serving.base.errors import InvalidConfig
from serving.base.protos import prediction_log_pb2
from warmup.records import read_records, write_records
from warmup.replay import WARM_UP_FILE


@pytest.fixture
def exports(tmp_path: Path) -> DemoModel:
    model = DemoModel.below(tmp_path, 10)
    for path in (model.base_path / "1", model.staged / "2"):
        (path / WARM_UP_FILE).parent.mkdir(parents=True)
        (path / "saved_model.pb").write_text(f"export {path.name}")
        log = prediction_log_pb2.PredictionLog()
        log.predict_log.request.output_filter.append("version")
        write_records(path / WARM_UP_FILE, [log.SerializeToString()])
    return model


def filters(path: Path) -> list[list[str]]:
    logs = [prediction_log_pb2.PredictionLog.FromString(data) for data in read_records(path)]
    return [list(log.predict_log.request.output_filter) for log in logs]


def test_versions_alternate_exports_without_copy(exports: DemoModel):
    with VersionSeries(exports, "ctr", "records", ()) as series:
        for version in (1, 2, 3):
            series.drop(version)
        contents = [(series.base_path / f"{v}/saved_model.pb").read_text() for v in (1, 2, 3)]
        assert contents == ["export 1", "export 2", "export 1"]
        inodes = {(series.base_path / f"{v}/saved_model.pb").stat().st_ino for v in (1, 3)}
        assert inodes == {(exports.base_path / "1/saved_model.pb").stat().st_ino}
    assert [content_of(version) for version in (1, 2, 3)] == [1, 2, 1]


def test_versions_of_one_graph_alternate_variables(exports: DemoModel):
    for path in (exports.base_path / "1", exports.staged / "2"):
        (path / "variables.data").write_text(f"variables {path.name}")
    with VersionSeries(exports, "ctr", "records", (), has_one_graph=True) as series:
        for version in (1, 2):
            series.drop(version)
        places = [series.base_path / str(version) for version in (1, 2)]
        assert [(p / "saved_model.pb").read_text() for p in places] == ["export 1", "export 1"]
        read = [(place / "variables.data").read_text() for place in places]
        assert read == ["variables 1", "variables 2"]
    assert (exports.staged / "2/saved_model.pb").read_text() == "export 2"


def test_removed_version_is_gone_and_its_export_stays(exports: DemoModel):
    with VersionSeries(exports, "ctr", "records", ()) as series:
        series.drop(1)
        series.remove(1)
        assert list(series.base_path.iterdir()) == []
    assert (exports.base_path / "1/saved_model.pb").exists()


def test_end_of_series_leaves_nothing_but_the_exports(exports: DemoModel):
    before = sorted(exports.staged.parent.parent.rglob("*"))
    with VersionSeries(exports, "ctr", "none", ()) as series:
        series.drop(1)
    assert sorted(exports.staged.parent.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("mode", "asked", "expected"),
    [
        ("records", (), [["version"]]),
        ("other-outputs", (), [["ctr"]]),
        ("other-outputs", ("ctr",), [["version"]]),
        ("other-outputs", ("version",), [["ctr"]]),
    ],
)
def test_warm_up_file_follows_mode_and_keeps_export(
    exports: DemoModel, mode: str, asked: Sequence[str], expected: list[list[str]]
):
    with VersionSeries(exports, "ctr", mode, asked) as series:
        series.drop(1)
        assert filters(series.base_path / "1" / WARM_UP_FILE) == expected
    assert filters(exports.base_path / "1" / WARM_UP_FILE) == [["version"]]


def test_warm_up_mode_none_drops_file(exports: DemoModel):
    with VersionSeries(exports, "ctr", "none", ()) as series:
        series.drop(1)
        assert not (series.base_path / "1" / WARM_UP_FILE).exists()
    assert (exports.base_path / "1" / WARM_UP_FILE).exists()


def test_unknown_warm_up_mode_lists_known_modes(exports: DemoModel):
    with pytest.raises(InvalidConfig, match=r"--warm-up=hot.*records, none, other-outputs"):
        VersionSeries(exports, "ctr", "hot", ())
