"""TensorFlow Serving's gRPC API, case by case, with its stock stubs.

The cases are in `grpc_rows.py`.
"""

import grpc
import pytest

from serving.client.stubs import ModelServiceStub, PredictionServiceStub
from tests.integration.clients import NOT_SERVING, SERVING, TIMEOUT_SECONDS, Caller, refusal
from tests.integration.drop_in.grpc_rows import HALF, ROWS, GrpcRow, Refused, X, outputs, predict

SESSION_RUN = "/tensorflow.serving.SessionService/SessionRun"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_grpc_request_is_answered_as_documented(row: GrpcRow, drop_in_caller: Caller):
    stubs = [stub(drop_in_caller.channel) for stub in (PredictionServiceStub, ModelServiceStub)]
    (method,) = (getattr(stub, row.method) for stub in stubs if hasattr(stub, row.method))
    if isinstance(row.expected, Refused):
        code, message = refusal(lambda: method(row.request, timeout=TIMEOUT_SECONDS))
        assert code is row.expected.code, message
        assert not [part for part in row.expected.fragments if part not in message], message
    else:
        assert row.expected.pick(method(row.request, timeout=TIMEOUT_SECONDS)) == row.expected.value


def test_rows_have_names_of_their_own():
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    "service",
    [
        *("", "half_plus_two", "labelled"),
        *("ModelService", "PredictionService"),
        *("tensorflow.serving.ModelService", "tensorflow.serving.PredictionService"),
    ],
)
def test_health_of_loaded_model_is_serving(service: str, drop_in_caller: Caller):
    """Mends: the health service of TensorFlow Serving never changes and has no models."""
    assert drop_in_caller.health(service) == SERVING != NOT_SERVING


def test_health_of_unknown_model_is_not_found(drop_in_caller: Caller):
    assert refusal(lambda: drop_in_caller.health("nobody"))[0] is grpc.StatusCode.NOT_FOUND


def test_session_run_without_its_flag_is_unimplemented(drop_in_caller: Caller):
    # In both requests field 1 is the model_spec, and field 3 holds the requested names.
    request = predict(HALF, {}, ["x:0"]).SerializeToString()
    code, message = refusal(lambda: drop_in_caller.send_bytes(SESSION_RUN, request))
    assert code is grpc.StatusCode.UNIMPLEMENTED, message


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_request_is_answered(compression: grpc.Compression, drop_in_caller: Caller):
    stub = PredictionServiceStub(drop_in_caller.channel)
    expected = outputs(123, y=[2.5, 3.0, 4.5])
    response = stub.Predict(predict(HALF, X), timeout=TIMEOUT_SECONDS, compression=compression)
    assert expected.pick(response) == expected.value
