import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.data_plane.servables import RequestReservoir
from serving.loading.reservoirs import Reservoirs
from serving.rpc.capture_service import PERIOD_SECONDS, CaptureDirectory
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.requests import FakeReservoir, request_for
from tests.unit.fakes.threads import FakeBackground
from warmup.prediction_log import WARM_UP_FILE, read_logs


def outputs(directory: Path, name: str) -> list[str]:
    logs = read_logs(directory / name / WARM_UP_FILE.name)
    return sorted(log.predict_log.request.output_filter[0] for log in logs)


class GivenReservoirs(Reservoirs):
    """The reservoirs of a dictionary that the test may change."""

    def __init__(self, given: dict[str, FakeReservoir]) -> None:
        super().__init__(FakeReservoir)
        self._given = given

    def by_name(self) -> Mapping[str, RequestReservoir]:
        return self._given


def capture_of(directory: Path, reservoirs: dict[str, FakeReservoir]) -> CaptureDirectory:
    return CaptureDirectory(
        directory,
        GivenReservoirs(reservoirs),
        background=FakeBackground(),
        clock=FakeClock(),
    )


def test_each_model_with_requests_has_a_file(tmp_path: Path):
    directory = tmp_path / "made"
    reservoirs = {
        "a": FakeReservoir(kept=[request_for("x"), request_for("y")]),
        "b": FakeReservoir(kept=[request_for("z")]),
        "idle": FakeReservoir(),
    }
    capture_of(directory, reservoirs).write_now()
    assert (outputs(directory, "a"), outputs(directory, "b")) == (["x", "y"], ["z"])
    assert sorted(os.listdir(directory)) == ["a", "b"]


def test_file_follows_reservoir_until_it_is_empty(tmp_path: Path):
    reservoirs = {"m": FakeReservoir(kept=[request_for("x")])}
    capture = capture_of(tmp_path, reservoirs)
    capture.write_now()
    reservoirs["m"] = FakeReservoir(kept=[request_for("y")])
    capture.write_now()
    assert outputs(tmp_path, "m") == ["y"]
    reservoirs["m"] = FakeReservoir()
    capture.write_now()
    assert outputs(tmp_path, "m") == ["y"]


def test_file_without_news_is_not_written_again(tmp_path: Path):
    reservoirs = {"m": FakeReservoir(kept=[request_for("x"), request_for("y")])}
    capture = capture_of(tmp_path, reservoirs)
    capture.write_now()
    (tmp_path / "m" / WARM_UP_FILE.name).unlink()
    reservoirs["m"] = FakeReservoir(kept=[request_for("y"), request_for("x")])
    capture.write_now()
    assert list((tmp_path / "m").iterdir()) == []


def test_unwritable_file_spares_other_models(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"no directory")
    reservoirs = {name: FakeReservoir(kept=[request_for("x")]) for name in ("a", "b")}
    capture = capture_of(tmp_path, reservoirs)
    capture.write_now()
    assert outputs(tmp_path, "b") == ["x"]
    (tmp_path / "a").unlink()
    capture.write_now()
    assert outputs(tmp_path, "a") == ["x"]


def test_unwritable_file_is_logged_with_name_and_flag(tmp_path: Path):
    path = tmp_path / "m" / WARM_UP_FILE.name
    path.mkdir(parents=True)
    with capture_logs() as logs:
        capture_of(tmp_path, {"m": FakeReservoir(kept=[request_for("x")])}).write_now()
    (warning,) = logs
    assert warning["reason"].endswith(f"{str(path)!r}")
    assert ".partial" not in warning["reason"]
    assert "--warmup_capture_directory" in warning["remedy"]


def test_stop_writes_once_more_and_ends_the_thread(tmp_path: Path):
    background = FakeBackground()
    reservoirs = {"m": FakeReservoir(kept=[request_for("x")])}
    capture = CaptureDirectory(
        tmp_path,
        GivenReservoirs(reservoirs),
        background=background,
        clock=SystemClock(),
    )
    capture.start()
    assert capture.stop(10)
    assert outputs(tmp_path, "m") == ["x"]
    assert background.entered == ["warm-up-capture"]
    assert "warm-up-capture" not in {thread.name for thread in threading.enumerate()}


def test_stop_without_start_writes_nothing(tmp_path: Path):
    capture = capture_of(tmp_path, {"m": FakeReservoir(kept=[request_for("x")])})
    assert capture.stop(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(30)
def test_thread_looks_again_each_period(tmp_path: Path):
    class PeriodicClock(FakeClock):
        """Lets the test see each wait, and holds the thread after the second."""

        def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
            if len(self.waits) == 2:
                has_waited.set()
                return condition.wait(20)
            return super().wait(condition, timeout_seconds)

    class SeenReservoirs(Reservoirs):
        def by_name(self) -> Mapping[str, RequestReservoir]:
            looks.append(len(clock.waits))
            return {}

    has_waited = threading.Event()
    clock = PeriodicClock()
    looks: list[int] = []
    capture = CaptureDirectory(
        tmp_path, SeenReservoirs(FakeReservoir), background=FakeBackground(), clock=clock
    )
    capture.start()
    assert has_waited.wait(20)
    assert capture.stop(10)
    assert clock.waits == [PERIOD_SECONDS, PERIOD_SECONDS]
    assert looks == [1, 2, 2]


def test_name_with_a_path_in_it_stays_in_the_directory(tmp_path: Path):
    directory = tmp_path / "a" / "captured"
    names = ["../../x", str(tmp_path / "abs"), ".."]
    capture_of(directory, {n: FakeReservoir(kept=[request_for("x")]) for n in names}).write_now()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent.parent for path in files} == {directory}
    assert len(files) == len(names)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_model_directory_that_is_a_link_gets_no_file(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "m").symlink_to(tmp_path / "elsewhere")
    with capture_logs() as logs:
        capture_of(tmp_path, {"m": FakeReservoir(kept=[request_for("x")])}).write_now()
    assert [line["event"] for line in logs] == ["warm_up_capture_failed"]
    assert list((tmp_path / "elsewhere").iterdir()) == []
