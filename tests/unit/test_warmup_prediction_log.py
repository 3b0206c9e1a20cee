from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.base.errors import DataLoss, InvalidConfig
from serving.base.protos import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    prediction_log_pb2,
    regression_pb2,
)
from serving.core.cancellation import Cancellation
from tests.unit.fakes.clocks import SetClock
from warmup.prediction_log import (
    RECORD_COUNT_MAX,
    WARM_UP_FILE,
    WARM_UP_KINDS,
    Log,
    encode_logs,
    has_response,
    kind_of,
    read_logs,
    warm_up_file,
    write_logs,
)
from warmup.records import write_records
from warmup.replay import warm_up

# Returns a request of each kind that names its model, and an empty response to it.
REQUESTS = {
    "predict_log": (predict_pb2.PredictRequest, predict_pb2.PredictResponse),
    "classify_log": (
        classification_pb2.ClassificationRequest,
        classification_pb2.ClassificationResponse,
    ),
    "regress_log": (regression_pb2.RegressionRequest, regression_pb2.RegressionResponse),
    "multi_inference_log": (
        inference_pb2.MultiInferenceRequest,
        inference_pb2.MultiInferenceResponse,
    ),
}


def log_of(kind: str, name: str, *, is_answered: bool = False) -> Log:
    request_class, response_class = REQUESTS[kind]
    request = request_class()
    spec = request.tasks.add().model_spec if kind == "multi_inference_log" else request.model_spec
    spec.name = name
    log = prediction_log_pb2.PredictionLog()
    getattr(log, kind).request.CopyFrom(request)
    if is_answered:
        getattr(log, kind).response.CopyFrom(response_class())
    return log


LOGS = st.builds(
    lambda kind, name, is_answered: log_of(kind, name, is_answered=is_answered),
    st.sampled_from(WARM_UP_KINDS),
    st.text(max_size=5),
    st.booleans(),
)


@settings(deadline=None)
@given(logs=st.lists(LOGS, max_size=5))
def test_logs_of_all_kinds_round_trip(tmp_path_factory: pytest.TempPathFactory, logs: list[Log]):
    path = tmp_path_factory.getbasetemp() / "logs"
    write_logs(path, logs)
    assert list(read_logs(path)) == logs


@pytest.mark.parametrize("kind", WARM_UP_KINDS)
@pytest.mark.parametrize("is_answered", [False, True])
def test_log_has_kind_and_answer(kind: str, is_answered: bool):
    log = log_of(kind, "m", is_answered=is_answered)
    assert (kind_of(log), has_response(log)) == (kind, is_answered)


def test_equal_requests_encode_to_equal_bytes():
    def log_with_inputs(names: str) -> Log:
        log = prediction_log_pb2.PredictionLog()
        for name in names:
            log.predict_log.request.inputs[name].dtype = 1
        return log

    first, second = (encode_logs([log_with_inputs(names)], Path("f")) for names in ("abc", "cba"))
    assert first == second


def test_log_at_limit_is_replayed_in_full(tmp_path: Path):
    (tmp_path / WARM_UP_FILE.parent).mkdir()
    write_logs(tmp_path / WARM_UP_FILE, [log_of("predict_log", "m")] * RECORD_COUNT_MAX)
    result = warm_up(
        tmp_path, lambda method, request: b"", Cancellation(), iterations=1, clock=SetClock()
    )
    assert result.record_count == RECORD_COUNT_MAX


def test_log_above_limit_keeps_old_file(tmp_path: Path):
    path = tmp_path / "logs"
    path.write_bytes(b"old")
    with pytest.raises(InvalidConfig, match=f"{RECORD_COUNT_MAX + 1} records"):
        write_logs(path, [log_of("predict_log", "m")] * (RECORD_COUNT_MAX + 1))
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("kind", ["", "session_run_log", "predict_streamed_log"])
def test_unreplayable_kind_is_refused(tmp_path: Path, kind: str):
    log = prediction_log_pb2.PredictionLog()
    if kind:
        getattr(log, kind).SetInParent()
    with pytest.raises(InvalidConfig, match=f"record 2 is {kind or 'empty'}"):
        write_logs(tmp_path / "logs", [log_of("predict_log", "m"), log])


def test_read_logs_of_a_bad_record_raises_data_loss(tmp_path: Path):
    path = tmp_path / "logs"
    write_records(path, [b"", b"\xff\xff"])
    with pytest.raises(DataLoss, match="record 2 is not a PredictionLog"):
        list(read_logs(path))


def test_warm_up_file_of_a_directory_is_the_versions(tmp_path: Path):
    assert warm_up_file(tmp_path) == tmp_path / WARM_UP_FILE
    assert warm_up_file(tmp_path / "requests") == tmp_path / "requests"
