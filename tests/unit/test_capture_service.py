import json
from collections.abc import Sequence

import pytest

from serving.base.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.base.protos import predict_pb2
from serving.rpc.capture_service import CaptureService
from tests.unit.fakes import FakeReservoirStatistics
from warmup.prediction_log import Log
from warmup.records import decode_records


class FixedReservoir:
    """Holds the requests that it is made with."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        self._requests = requests

    def requests(self) -> Sequence[bytes]:
        return self._requests

    def joint_requests(self) -> Sequence[bytes]:
        return []

    def statistics(self) -> FakeReservoirStatistics:
        return FakeReservoirStatistics(len(self._requests), sum(map(len, self._requests)))


def request_for(output: str) -> bytes:
    data: bytes = predict_pb2.PredictRequest(output_filter=[output]).SerializeToString()
    return data


def service() -> CaptureService:
    """Model `busy` with requests for a, b and c, `idle` without any, `off` without a reservoir."""
    reservoirs = {"busy": FixedReservoir([*map(request_for, "abc")]), "idle": FixedReservoir([])}
    return CaptureService(lambda: ["busy", "idle", "off"], reservoirs.get)


def captured(request: object) -> list[str]:
    reply = service().capture_warm_up(json.dumps(request).encode())
    logs = [Log.FromString(record) for record in decode_records(reply, "reply")]
    return [log.predict_log.request.output_filter[0] for log in logs]


def test_capture_returns_reservoir_as_warm_up_file():
    assert captured({"model": "busy"}) == ["a", "b", "c"]


def test_capture_replies_no_more_than_was_asked_for():
    assert captured({"model": "busy", "count_max": 2}) == ["a", "b"]


def test_capture_of_unknown_model_lists_known_ones():
    with pytest.raises(NotFound, match=r"no model 'other'; there are busy, idle, off"):
        captured({"model": "other"})


@pytest.mark.parametrize(
    ("model", "remedy"), [("off", "--self_warmup_requests"), ("idle", "send it live traffic")]
)
def test_capture_of_empty_reservoir_names_remedy(model: str, remedy: str):
    with pytest.raises(FailedPrecondition, match=f"{model}.*{remedy}"):
        captured({"model": model})


@pytest.mark.parametrize(
    ("request_bytes", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model": ""}', "names no model"),
        (b'{"model": 1}', "names no model"),
        (b'{"model": "busy", "count_max": 0}', "count_max 0"),
        (b'{"model": "busy", "count_max": 1001}', "count_max 1001"),
        (b'{"model": "busy", "count_max": true}', "count_max True"),
        (b'{"model": "busy", "count_max": "2"}', "count_max '2'"),
    ],
)
def test_senseless_capture_request_is_invalid_argument(request_bytes: bytes, message: str):
    with pytest.raises(InvalidArgument, match=message):
        service().capture_warm_up(request_bytes)
