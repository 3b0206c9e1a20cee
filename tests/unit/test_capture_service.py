import json

import pytest

from serving.base.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.rpc.capture_service import CaptureService
from tests.unit.fakes.parts import FakeReservoirs, FakeServedModels
from tests.unit.fakes.requests import FakeReservoir, request_for
from warmup.prediction_log import Log
from warmup.records import decode_records


def service() -> CaptureService:
    """Model `busy` with requests for a, b and c, `idle` without any, `off` without a reservoir."""
    reservoirs = {"busy": FakeReservoir(kept=[*map(request_for, "abc")]), "idle": FakeReservoir()}
    return CaptureService(FakeServedModels(["busy", "idle", "off"]), FakeReservoirs(reservoirs))


def captured(request: object) -> list[str]:
    reply = service().capture_warm_up(json.dumps(request).encode())
    logs = [Log.FromString(record) for record in decode_records(reply, "reply")]
    return [log.predict_log.request.output_filter[0] for log in logs]


def test_capture_returns_reservoir_as_warm_up_file():
    assert captured({"model": "busy"}) == ["a", "b", "c"]


def test_capture_obeys_requested_count():
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
