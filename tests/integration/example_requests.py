"""Requests with tf.Examples, and the values of their answers."""

from typing import Any

import grpc

from serving.base.protos import (
    classification_pb2,
    inference_pb2,
    regression_pb2,
    session_service_pb2,
)
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from tests.integration.clients import TIMEOUT_SECONDS
from tests.integration.example_exports import example, example_input

PAIRS = [(0.25, 0.75), (0.0, 1.0), (-2.5, 8.0)]
EXAMPLES = [example(x=x, y=y) for x, y in PAIRS]


def classification(signature: str = "", model: str = "m", **of_input: Any) -> Any:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    request.input.CopyFrom(example_input(**(of_input or {"examples": EXAMPLES})))
    return request


def regression(signature: str = "regress", model: str = "m", **of_input: Any) -> Any:
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    request.input.CopyFrom(example_input(**(of_input or {"examples": EXAMPLES})))
    return request


def multi_inference(*tasks: tuple[str, str], model: str = "m") -> Any:
    request = inference_pb2.MultiInferenceRequest()
    request.input.CopyFrom(example_input(EXAMPLES))
    for signature, method_name in tasks:
        task = request.tasks.add(method_name=method_name)
        task.model_spec.name = model
        task.model_spec.signature_name = signature
    return request


def values(response: Any) -> list[float]:
    return [entry.value for entry in response.result.regressions]


def classes(result: Any) -> list[list[tuple[str, float]]]:
    return [
        [(entry.label, entry.score) for entry in classified.classes]
        for classified in result.classifications
    ]


def session_run(channel: grpc.Channel, timeout: float = TIMEOUT_SECONDS, **fields: Any) -> Any:
    request = session_service_pb2.SessionRunRequest()
    request.model_spec.name = fields.get("model", "m")
    for name, array in fields.get("feeds", {}).items():
        request.feed.add(name=name).tensor.CopyFrom(to_tensor_proto(array))
    request.fetch.extend(fields.get("fetches", ()))
    request.target.extend(fields.get("targets", ()))
    request.tensor_name_is_alias = fields.get("is_alias", False)
    request.options.timeout_in_ms = fields.get("timeout_ms", 0)
    call = channel.unary_unary(
        "/tensorflow.serving.SessionService/SessionRun",
        request_serializer=session_service_pb2.SessionRunRequest.SerializeToString,
        response_deserializer=session_service_pb2.SessionRunResponse.FromString,
    )
    return call(request, timeout=timeout)


def fetched_arrays(response: Any) -> dict[str, Any]:
    return {entry.name: from_tensor_proto(entry.tensor) for entry in response.tensor}
