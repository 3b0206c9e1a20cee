import os
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import (
    Cancelled,
    DataLoss,
    InvalidArgument,
    InvalidConfig,
    StatusCode,
    Unimplemented,
)
from serving.base.protos import predict_pb2, prediction_log_pb2
from serving.core.cancellation import Cancellation
from tests.unit.fakes.clocks import SetClock
from warmup.records import write_records
from warmup.replay import RECORD_COUNT_MAX, WARM_UP_FILE, WarmUpResult, warm_up


class FakeServable:
    """Answers each request in the next of `seconds`, and records the requests."""

    def __init__(self, clock: SetClock, seconds: list[float] | None = None) -> None:
        self._clock = clock
        self._seconds = iter(seconds) if seconds else None
        self.requested_models: list[str] = []
        self.requested_methods: list[str] = []

    def answer(self, method: str, request: bytes) -> bytes:
        self.requested_methods.append(method)
        self.requested_models.append(predict_pb2.PredictRequest.FromString(request).model_spec.name)
        if self._seconds is not None:
            self._clock.ns += round(next(self._seconds) * NS_PER_SECOND)
        return b""


def predict_record(model_name: str = "m") -> bytes:
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.model_spec.name = model_name
    record: bytes = log.SerializeToString()
    return record


def version_with(directory: Path, records: list[bytes]) -> Path:
    path = directory / WARM_UP_FILE
    path.parent.mkdir(parents=True)
    write_records(path, records)
    return directory


def test_warm_up_without_file_runs_nothing(tmp_path: Path):
    clock = SetClock()
    servable = FakeServable(clock)
    assert warm_up(
        tmp_path, servable.answer, Cancellation(), iterations=1, clock=clock
    ) == WarmUpResult(
        record_count=0, request_count=0, seconds=0, slowest_seconds=0, slowest_record=0
    )
    assert servable.requested_models == []


def test_warm_up_runs_and_times_records_in_order(tmp_path: Path):
    clock = SetClock()
    servable = FakeServable(clock, [1.0, 3.0, 2.0])
    directory = version_with(tmp_path, [predict_record(name) for name in "abc"])
    assert warm_up(
        directory, servable.answer, Cancellation(), iterations=1, clock=clock
    ) == WarmUpResult(
        record_count=3, request_count=3, seconds=6, slowest_seconds=3, slowest_record=2
    )
    assert servable.requested_models == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("iterations", "requested"), [(0, ["a", "b"]), (1, ["a", "b"]), (2, ["a", "a", "b", "b"])]
)
def test_warm_up_repeats_each_record_iterations_times(
    tmp_path: Path, iterations: int, requested: list[str]
):
    clock = SetClock()
    servable = FakeServable(clock)
    directory = version_with(tmp_path, [predict_record("a"), predict_record("b")])
    result = warm_up(directory, servable.answer, Cancellation(), iterations=iterations, clock=clock)
    assert servable.requested_models == requested
    assert (result.record_count, result.request_count) == (2, len(requested))


def test_warm_up_at_the_limit_runs_all(tmp_path: Path):
    clock = SetClock()
    directory = version_with(tmp_path, [predict_record()] * RECORD_COUNT_MAX)
    result = warm_up(
        directory, FakeServable(clock).answer, Cancellation(), iterations=1, clock=clock
    )
    assert result.record_count == RECORD_COUNT_MAX


def test_warm_up_above_limit_runs_nothing(tmp_path: Path):
    servable = FakeServable(SetClock())
    directory = version_with(tmp_path, [predict_record()] * (RECORD_COUNT_MAX + 1))
    with pytest.raises(InvalidConfig, match="more than 1000 records"):
        warm_up(directory, servable.answer, Cancellation(), iterations=1, clock=SetClock())
    assert servable.requested_models == []


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_warm_up_from_no_file_runs_nothing(tmp_path: Path, make: Callable[[Path], None]):
    path = tmp_path / WARM_UP_FILE
    path.parent.mkdir()
    make(path)
    servable = FakeServable(SetClock())
    with pytest.raises(InvalidConfig, match=f"{WARM_UP_FILE} is no file"):
        warm_up(tmp_path, servable.answer, Cancellation(), iterations=1, clock=SetClock())
    assert servable.requested_models == []


@pytest.mark.parametrize(
    "kind",
    ["session_run_log", "predict_streamed_log"],
)
def test_warm_up_of_other_kinds_raises_unimplemented(tmp_path: Path, kind: str):
    log = prediction_log_pb2.PredictionLog()
    getattr(log, kind).SetInParent()
    servable = FakeServable(SetClock())
    directory = version_with(tmp_path, [predict_record(), log.SerializeToString()])
    with pytest.raises(Unimplemented, match=f"record 2 is a {kind}"):
        warm_up(directory, servable.answer, Cancellation(), iterations=1, clock=SetClock())
    assert servable.requested_models == []


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("predict_log", "Predict"),
        ("classify_log", "Classify"),
        ("regress_log", "Regress"),
        ("multi_inference_log", "MultiInference"),
    ],
)
def test_warm_up_calls_method_of_record(tmp_path: Path, kind: str, method: str):
    log = prediction_log_pb2.PredictionLog()
    request = getattr(log, kind).request
    spec = request.tasks.add().model_spec if kind == "multi_inference_log" else request.model_spec
    spec.name = "m"
    asked: list[tuple[str, bytes]] = []

    def answer(method: str, serialized: bytes) -> bytes:
        asked.append((method, serialized))
        return b""

    directory = version_with(tmp_path, [log.SerializeToString()])
    warm_up(directory, answer, Cancellation(), iterations=1, clock=SetClock())
    assert asked == [(method, request.SerializeToString())]


def test_warm_up_empty_record_raises_invalid_config(tmp_path: Path):
    directory = version_with(tmp_path, [b""])
    with pytest.raises(InvalidConfig, match="record 1 is empty"):
        warm_up(
            directory,
            FakeServable(SetClock()).answer,
            Cancellation(),
            iterations=1,
            clock=SetClock(),
        )


def test_warm_up_unparsable_record_is_data_loss(tmp_path: Path):
    directory = version_with(tmp_path, [predict_record(), b"\xff\xff"])
    with pytest.raises(DataLoss, match="record 2 is not a PredictionLog"):
        warm_up(
            directory,
            FakeServable(SetClock()).answer,
            Cancellation(),
            iterations=1,
            clock=SetClock(),
        )


def test_warm_up_damaged_file_runs_nothing(tmp_path: Path):
    servable = FakeServable(SetClock())
    directory = version_with(tmp_path, [predict_record(), predict_record()])
    path = directory / WARM_UP_FILE
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataLoss, match="cut short"):
        warm_up(directory, servable.answer, Cancellation(), iterations=1, clock=SetClock())
    assert servable.requested_models == []


def test_warm_up_failing_record_raises_with_number(tmp_path: Path):
    def fail_second(method: str, request: bytes) -> bytes:
        if predict_pb2.PredictRequest.FromString(request).model_spec.name == "b":
            raise InvalidArgument("input 'x' is missing")
        return b""

    directory = version_with(tmp_path, [predict_record("a"), predict_record("b")])
    with pytest.raises(InvalidArgument, match="record 2: input 'x' is missing") as caught:
        warm_up(directory, fail_second, Cancellation(), iterations=1, clock=SetClock())
    assert caught.value.code == StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("iterations", "stop_after", "record"), [(1, 0, 1), (1, 2, 3), (2, 3, 2)])
def test_warm_up_cancelled_stops_before_next_request(
    tmp_path: Path, iterations: int, stop_after: int, record: int
):
    servable = FakeServable(SetClock())
    directory = version_with(tmp_path, [predict_record(name) for name in "abc"])
    cancellation = Cancellation()

    def answer(method: str, request: bytes) -> bytes:
        response = servable.answer(method, request)
        if len(servable.requested_models) == stop_after:
            cancellation.cancel()
        return response

    if stop_after == 0:
        cancellation.cancel()
    with pytest.raises(Cancelled, match=f"record {record}: not run"):
        warm_up(directory, answer, cancellation, iterations=iterations, clock=SetClock())
    assert len(servable.requested_models) == stop_after
