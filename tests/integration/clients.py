"""Clients for the tests: stock stubs, raw bytes, and the errors of the server."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from serving.base.clock import NS_PER_SECOND, SystemClock
from serving.base.errors import MillpondError
from serving.base.protos import get_model_metadata_pb2, get_model_status_pb2, predict_pb2
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from serving.client import Client
from serving.client.stubs import ModelServiceStub, PredictionServiceStub
from serving.core.servable import ServableState

PREDICT = "/tensorflow.serving.PredictionService/Predict"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Each channel has its own connection, so that the load of one test does not queue behind
    # another.
    ("grpc.use_local_subchannel_pool", 1),
]
_POLL_SECONDS = 0.02
# A test waits for a state, never for a time. This limit only ends a wait for a state that never
# comes.
TIMEOUT_SECONDS = 120.0
_clock = SystemClock()


@contextmanager
def channel_to(target: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target, options=_CHANNEL_OPTIONS) as channel:
        yield channel


def predict_request(
    name: str,
    inputs: Mapping[str, Any],
    *,
    version: int | None = None,
    signature_name: str = "",
    output_filter: Sequence[str] = (),
) -> predict_pb2.PredictRequest:
    """Returns a request as clients make them; `inputs` are arrays."""
    request = predict_pb2.PredictRequest(output_filter=output_filter)
    request.model_spec.name = name
    request.model_spec.signature_name = signature_name
    if version is not None:
        request.model_spec.version.value = version
    for input_name, array in inputs.items():
        request.inputs[input_name].CopyFrom(to_tensor_proto(array))
    return request


class Caller:
    """The stubs of one channel. Every call has a deadline, so that a hang is a failure."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self._predictions = PredictionServiceStub(channel)
        self._models = ModelServiceStub(channel)

    def predict(self, request: predict_pb2.PredictRequest, timeout: float = TIMEOUT_SECONDS) -> Any:
        return self._predictions.Predict(request, timeout=timeout)

    def start_predict(
        self, request: predict_pb2.PredictRequest, timeout: float | None = TIMEOUT_SECONDS
    ) -> Any:
        """Starts a call and returns it: `result()`, `cancel()` and `code()` follow it."""
        return self._predictions.Predict.future(request, timeout=timeout)

    def outputs(self, name: str, inputs: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Returns the outputs of one request as arrays."""
        response = self.predict(predict_request(name, inputs, **more))
        return {key: from_tensor_proto(tensor) for key, tensor in response.outputs.items()}

    def model_status(self, request: get_model_status_pb2.GetModelStatusRequest) -> Any:
        return self._models.GetModelStatus(request, timeout=TIMEOUT_SECONDS)

    def metadata(self, request: get_model_metadata_pb2.GetModelMetadataRequest) -> Any:
        return self._predictions.GetModelMetadata(request, timeout=TIMEOUT_SECONDS)

    def send_bytes(self, method: str, message: bytes, timeout: float = TIMEOUT_SECONDS) -> bytes:
        """Sends any bytes to any method and returns the bytes of the reply."""
        call: Any = self.channel.unary_unary(method)
        reply: bytes = call(message, timeout=timeout)
        return reply

    def health(self, service: str) -> int:
        """Returns the number of grpc.health.v1 for a service name; raises if the server does not
        have it.
        """
        return health_status(self.send_bytes(HEALTH_CHECK, health_request(service)))

    def watch_health(self, service: str) -> Any:
        """Starts a Watch, which iterates over serialized statuses; `cancel()` ends it."""
        watch: Any = self.channel.unary_stream(HEALTH_WATCH)
        return watch(health_request(service), timeout=TIMEOUT_SECONDS)


@contextmanager
def caller_to(target: str) -> Iterator[Caller]:
    with channel_to(target) as channel:
        yield Caller(channel)


def health_request(service: str) -> bytes:
    """Returns a serialized HealthCheckRequest."""
    name = service.encode()
    return bytes([0x0A, len(name)]) + name if name else b""


def health_status(response: bytes) -> int:
    """Returns the status of a serialized HealthCheckResponse."""
    return response[1] if response else 0


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Returns the code and the message with which `call` fails."""
    try:
        answer = call()
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code(), failed.details()
    raise AssertionError(f"the call was answered: {answer!r}")


def refusal_with_reason(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Returns the same as `refusal` and asserts that the message is not empty and does not end in a
    blank.
    """
    code, message = refusal(call)
    assert message == message.strip() != ""
    return code, message


def array(tensor: Any) -> Any:
    """Returns a TensorProto of an answer as an array."""
    return from_tensor_proto(tensor)


def wait_until(
    is_so: Callable[[], object], what: str, timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """Waits until `is_so` returns something true. Raises AssertionError with `what` at the limit."""
    deadline_ns = _clock.now_ns() + round(timeout_seconds * NS_PER_SECOND)
    condition = threading.Condition()
    while not is_so():
        if _clock.now_ns() > deadline_ns:
            raise AssertionError(f"not within {timeout_seconds} s: {what}")
        with condition:
            _clock.wait(condition, _POLL_SECONDS)


def wait_for_states(
    client: Client,
    name: str,
    wanted: Mapping[int, ServableState],
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:
    """Waits until GetModelStatus returns the wanted state of every version in `wanted`."""
    seen: dict[int, ServableState] = {}

    def is_so() -> bool:
        nonlocal seen
        try:
            seen = {status.version: status.state for status in client.model_status(name)}
        except MillpondError:
            seen = {}
        return all(seen.get(version) == state for version, state in wanted.items())

    try:
        wait_until(is_so, f"{name} {dict(wanted)}", timeout_seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; last seen: {seen}") from None


def is_right(answer: Any, expected: Any) -> bool:
    return bool(np.allclose(answer, expected, rtol=1e-6, atol=1e-6))
