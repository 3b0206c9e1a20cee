"""The cases of gRPC's interop test descriptions, in each mode of grpcio, with and without TLS.

https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md lists them. The cases for
streams of clients and for authentication by tokens do not apply to this server.
"""

from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from serving.base.protos import predict_pb2
from tests.integration.clients import (
    HEALTH_CHECK,
    HEALTH_WATCH,
    PREDICT,
    SERVING,
    array,
    health_request,
    health_status,
    predict_request,
)
from tests.integration.grpcio_modes import MODES, Metadata, Mode, ModeClient, Outcome
from tests.integration.wire_servers import (
    StartWire,
    WireServer,
    echo_bytes_request,
    is_echo,
    sleep_request,
)

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
# The sizes of the published case large_unary.
LARGE_REQUEST_BYTES = 271_828
OK = grpc.StatusCode.OK


@pytest.fixture(scope="module", params=["plain", "mtls"])
def wire(request: pytest.FixtureRequest, start_wire: StartWire) -> WireServer:
    return start_wire(request.param)


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> Mode:
    return MODES[request.param]


@pytest.fixture
def client(wire: WireServer, mode: Mode) -> Iterator[ModeClient]:
    with mode.client(wire) as client:
        yield client


def assert_is_echo(outcome: Outcome, request: bytes) -> None:
    """Asserts that the answer to an `echo_bytes_request` has its bytes."""
    assert (outcome.code, outcome.details) == (OK, "")
    assert is_echo(outcome.reply, request)


def assert_is_answered(client: ModeClient) -> None:
    request = echo_bytes_request(100)
    assert_is_echo(client.call(PREDICT, request), request)


def test_empty_unary(client: ModeClient):
    outcome = client.call(HEALTH_CHECK, b"")
    assert outcome.code is OK
    assert health_status(outcome.reply) == SERVING


def test_large_unary(client: ModeClient):
    for size in (0, 1, 8_192, 16_384, 65_536, LARGE_REQUEST_BYTES, 2_000_000):
        request = echo_bytes_request(size)
        assert_is_echo(client.call(PREDICT, request), request)


def test_reply_larger_than_request(client: ModeClient):
    count = 2_000_000
    message = predict_request("echo", {"count": np.int32(count)}, signature_name="fill")
    outcome = client.call(PREDICT, message.SerializeToString())
    answer = predict_pb2.PredictResponse.FromString(outcome.reply).outputs["ones"]
    np.testing.assert_array_equal(array(answer), np.ones(count, np.float32))


def test_concurrent_large_unary(client: ModeClient):
    requests = [echo_bytes_request(LARGE_REQUEST_BYTES, seed) for seed in range(8)]
    outcomes = client.call_all(PREDICT, requests)
    for outcome, request in zip(outcomes, requests):
        assert_is_echo(outcome, request)


def test_timeout_on_sleeping_server(client: ModeClient):
    assert_is_answered(client)
    outcome = client.call(PREDICT, sleep_request(20), timeout=0.05)
    assert outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert_is_answered(client)


def test_cancel_after_begin(client: ModeClient):
    for after_seconds in (0, 0.001, 0.1):
        outcome = client.cancel(PREDICT, sleep_request(20), after_seconds)
        assert outcome.code is grpc.StatusCode.CANCELLED
    assert_is_answered(client)


def test_cancel_after_first_response(client: ModeClient):
    first, code = client.first_of_stream(HEALTH_WATCH, health_request("echo"))
    assert (health_status(first), code) == (SERVING, grpc.StatusCode.CANCELLED)
    assert_is_answered(client)


def test_status_code_and_message(client: ModeClient):
    message = predict_request("unknown", {"x": np.float32(1)}).SerializeToString()
    outcome = client.call(PREDICT, message)
    assert outcome.code is grpc.StatusCode.NOT_FOUND
    assert "unknown" in outcome.details
    assert client.call(PREDICT, b"\xff\xff").code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "name",
    [
        "test with whitespace and Unicode BMP ☺ and non-BMP 😈",
        "100%25 of 50% and %",
        '"quoted" \\ back\\slash',
    ],
)
def test_special_status_message(client: ModeClient, name: str):
    message = predict_request(name, {"x": np.float32(1)}).SerializeToString()
    outcome = client.call(PREDICT, message)
    assert outcome.code is grpc.StatusCode.NOT_FOUND
    assert name in outcome.details


def test_control_characters_in_status_message(client: ModeClient):
    message = predict_request("\t\r\n\x00", {"x": np.float32(1)}).SerializeToString()
    outcome = client.call(PREDICT, message)
    assert outcome.code is grpc.StatusCode.NOT_FOUND
    assert_is_answered(client)


def test_custom_metadata(client: ModeClient):
    metadata: Metadata = [
        ("x-grpc-test-echo-initial", "test_initial_metadata_value"),
        ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab"),
        ("x-all-bytes-bin", bytes(range(256))),
        ("x-repeated", "one"),
        ("x-repeated", "two"),
        ("x-empty", ""),
        ("x-long", "x" * 6_000),
    ]
    request = echo_bytes_request(100)
    assert_is_echo(client.call(PREDICT, request, metadata=metadata), request)


def test_too_much_metadata_fails_its_call_only(client: ModeClient):
    assert_is_answered(client)
    metadata: Metadata = [("x-long", "x" * 20_000)]
    outcome = client.call(PREDICT, echo_bytes_request(100), metadata=metadata)
    assert outcome.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert_is_answered(client)


@pytest.mark.parametrize(
    "path", ["/tensorflow.serving.PredictionService/Unknown", "/test.Unknown/Predict", "/☺"]
)
def test_unimplemented_method_and_service(client: ModeClient, path: str):
    outcome = client.call(path.encode().decode("latin1"), b"\0" * 100)
    assert outcome.code is grpc.StatusCode.UNIMPLEMENTED
    assert "this server has no method" in outcome.details


def test_empty_stream(client: ModeClient):
    assert client.exchange(REFLECTION, []) == []


def test_stream_answers_each_message(client: ModeClient):
    list_services = bytes([7 << 3 | 2, 1]) + b"*"
    answers = client.exchange(REFLECTION, [list_services] * 20)
    assert len(answers) == 20
    assert all(b"tensorflow.serving.PredictionService" in answer for answer in answers)


def test_rpc_soak(client: ModeClient):
    request = echo_bytes_request(1_000)
    for _ in range(100):
        assert_is_echo(client.call(PREDICT, request), request)


def test_channel_soak(wire: WireServer, mode: Mode):
    for _ in range(20):
        with mode.client(wire) as client:
            assert_is_answered(client)


@pytest.mark.parametrize(("security", "name"), [("plain", "blocking"), ("mtls", "asyncio")])
def test_message_above_64_mib(start_wire: StartWire, security: str, name: str):
    request = echo_bytes_request(70 << 20, period=4_096)
    with MODES[name].client(start_wire(security)) as client:
        assert_is_echo(client.call(PREDICT, request), request)
        assert_is_answered(client)
