from collections.abc import Callable
from pathlib import Path

import pytest

from serving.errors import Cancelled, DataLoss, InvalidArgument, MillpondError, NotFound
from serving.loader import SavedModelLoader, WarmUp
from serving.servable import LoadStage, ServableId
from tests.unit.fakes import FakeClock, FakePlane, FakeProgress, StatusError

Predict = Callable[[bytes], bytes]
IsCancelled = Callable[[], bool]


def no_warm_up(directory: Path, predict: Predict, is_cancelled: IsCancelled) -> None:
    del directory, predict, is_cancelled


def make_loader(
    directory: Path,
    plane: FakePlane,
    clock: FakeClock | None = None,
    warm_up: WarmUp = no_warm_up,
) -> SavedModelLoader:
    return SavedModelLoader(
        ServableId("m", 7),
        str(directory),
        tags=("serve", "gpu"),
        plane=plane,
        warm_up=warm_up,
        clock=clock or FakeClock(),
    )


@pytest.fixture
def version(tmp_path: Path) -> Path:
    directory = tmp_path / "7"
    directory.mkdir()
    (directory / "saved_model.pb").write_bytes(b"graph")
    return directory


def test_loader_runs_every_step_in_order(version: Path) -> None:
    plane = FakePlane()
    servable = make_loader(version, plane).load(FakeProgress())
    assert servable is plane.servables[0]
    assert plane.steps == [
        "check_saved_model",
        "load tags=serve,gpu",
        "read_graph",
        "create_session",
        "restore",
        "run_init",
        "make_callables",
        "finish",
    ]


def test_loader_times_every_stage(version: Path) -> None:
    plane, clock, progress = FakePlane(), FakeClock(), FakeProgress()
    plane.after_step = lambda step: clock.advance(3 if step == "restore" else 1)
    make_loader(version, plane, clock).load(progress)
    ended = [line for line in progress.lines if not line.endswith("began")]
    assert ended == [
        "check 1",
        "read_graph 1",
        "create_session 1",
        "restore 3",
        "init 1",
        "make_callables 1",
        "warm_up 0",
    ]


def test_loader_warms_up_what_is_not_yet_published(version: Path) -> None:
    plane = FakePlane()
    answers = []

    def warm_up(directory: Path, predict: Predict, is_cancelled: IsCancelled) -> None:
        assert directory == version
        answers.append(predict(b"record"))

    make_loader(version, plane, warm_up=warm_up).load(FakeProgress())
    assert answers == [b"answer"]
    assert plane.servables[0].predicted == [b"record"]
    assert not plane.servables[0].is_published


@pytest.mark.parametrize(
    "step", ["check_saved_model", "read_graph", "create_session", "restore", "run_init", "finish"]
)
def test_loader_failing_step_raises_its_status(version: Path, step: str) -> None:
    plane = FakePlane()
    plane.failures[step] = StatusError(15, "bad checksum")
    with pytest.raises(DataLoss, match="bad checksum"):
        make_loader(version, plane).load(FakeProgress())
    assert plane.servables == []


def test_loader_failing_warm_up_frees_the_servable(version: Path) -> None:
    plane = FakePlane()

    def warm_up(directory: Path, predict: Predict, is_cancelled: IsCancelled) -> None:
        raise DataLoss("record 3")

    with pytest.raises(DataLoss, match="record 3"):
        make_loader(version, plane, warm_up=warm_up).load(FakeProgress())
    assert [servable.is_destroyed for servable in plane.servables] == [True]


def test_loader_failing_record_has_the_code_of_its_status(version: Path) -> None:
    plane = FakePlane()

    def warm_up(directory: Path, predict: Predict, is_cancelled: IsCancelled) -> None:
        plane.servables[0].predict_error = StatusError(3, "input 'x' is missing")
        predict(b"record")

    with pytest.raises(InvalidArgument, match="input 'x' is missing"):
        make_loader(version, plane, warm_up=warm_up).load(FakeProgress())


@pytest.mark.parametrize("stage", [stage for stage in LoadStage if stage is not LoadStage.WARM_UP])
def test_loader_cancelled_stops_before_the_next_stage(version: Path, stage: LoadStage) -> None:
    plane, progress = FakePlane(), FakeProgress(cancel_after=stage)
    with pytest.raises(Cancelled):
        make_loader(version, plane).load(progress)
    assert progress.lines[-1].startswith(stage.value)
    assert all(servable.is_destroyed for servable in plane.servables)


def test_loader_cancelled_during_warm_up_is_known_there_and_frees_the_servable(
    version: Path,
) -> None:
    plane, progress = FakePlane(), FakeProgress()

    def warm_up(directory: Path, predict: Predict, is_cancelled: IsCancelled) -> None:
        assert not is_cancelled()
        progress.is_cancelled = True
        assert is_cancelled()
        raise Cancelled("record 2")

    with pytest.raises(Cancelled, match="record 2"):
        make_loader(version, plane, warm_up=warm_up).load(progress)
    assert [servable.is_destroyed for servable in plane.servables] == [True]


@pytest.mark.parametrize("step", ["check_saved_model", "read_graph", "restore", "make_callables"])
def test_loader_directory_removed_while_loading_says_so(version: Path, step: str) -> None:
    plane = FakePlane()

    def remove(at: str) -> None:
        if at == step:
            (version / "saved_model.pb").unlink()
            version.rmdir()

    plane.after_step = remove
    with pytest.raises(NotFound, match=f"{version} went away while it was loaded"):
        make_loader(version, plane).load(FakeProgress())
    assert all(servable.is_destroyed for servable in plane.servables)


def test_loader_error_of_a_vanished_file_is_told_as_the_vanished_directory(version: Path) -> None:
    plane = FakePlane()
    plane.failures["restore"] = StatusError(5, "variables.index not found")

    def remove(at: str) -> None:
        if at == "create_session":
            version.rename(version.parent / "7.denied")

    plane.after_step = remove
    with pytest.raises(MillpondError, match="went away"):
        make_loader(version, plane).load(FakeProgress())
