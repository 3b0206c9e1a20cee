import pytest

from serving.base.errors import NotFound
from serving.base.protos import predict_pb2
from warmup.capture import answered_logs, captured_logs
from warmup.prediction_log import Log


def request(name: str, version: int | None = None) -> bytes:
    message = predict_pb2.PredictRequest(output_filter=[name])
    message.model_spec.name = "m"
    if version is not None:
        message.model_spec.version.value = version
    data: bytes = message.SerializeToString()
    return data


def filters(logs: list[Log]) -> list[str]:
    return ["".join(log.predict_log.request.output_filter) for log in logs]


def test_captured_logs_keep_the_order_of_the_requests():
    assert filters(captured_logs(map(request, "bac"), 3)) == ["b", "a", "c"]


def test_captured_logs_stop_at_the_count():
    assert filters(captured_logs(map(request, "bac"), 2)) == ["b", "a"]


def test_captured_log_names_no_version_of_the_old_ones():
    (log,) = captured_logs([request("a", version=7)], 1)
    assert log.predict_log.request.model_spec.name == "m"
    assert log.predict_log.request.model_spec.WhichOneof("version_choice") is None


def test_captured_requests_that_are_alike_are_one_log():
    logs = captured_logs([request("a", 7), request("b"), request("a", 8), request("a")], 9)
    assert filters(logs) == ["a", "b"]


def test_unparsable_captured_request_is_left_out():
    assert filters(captured_logs([b"\xff\xff", request("a")], 2)) == ["a"]


class FakeModel:
    """Answers from the newest of its versions, or from the requested one."""

    def __init__(self, versions: list[int]) -> None:
        self.versions = versions
        self.asked: list[int] = []

    def answer(self, message: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        wanted = message.model_spec.version.value
        self.asked.append(wanted)
        if wanted and wanted not in self.versions:
            raise NotFound(f"version {wanted} is not served")
        response = predict_pb2.PredictResponse()
        response.model_spec.version.value = wanted or self.versions[-1]
        return response


def test_answered_logs_are_all_of_the_first_version():
    model = FakeModel([7])

    def answer(message: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        response = model.answer(message)
        model.versions = [7, 8]  # a swap after the first answer
        return response

    logs = answered_logs(captured_logs(map(request, "ab"), 2), answer)
    assert [log.predict_log.response.model_spec.version.value for log in logs] == [7, 7]
    assert model.asked == [0, 7]


def test_answered_logs_name_no_version():
    logs = answered_logs(captured_logs(map(request, "ab"), 2), FakeModel([7]).answer)
    assert logs[1].predict_log.request == captured_logs([request("b")], 1)[0].predict_log.request


def test_answered_logs_raise_if_version_leaves():
    model = FakeModel([7])

    def answer(message: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        response = model.answer(message)
        model.versions = [8]
        return response

    with pytest.raises(NotFound, match="record 2: version 7 is not served"):
        answered_logs(captured_logs(map(request, "ab"), 2), answer)
