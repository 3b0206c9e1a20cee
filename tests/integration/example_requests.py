"""Requests with tf.Examples, and the values of their answers."""

from typing import Any

from serving.base.protos import (
    classification_pb2,
    inference_pb2,
    regression_pb2,
)
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
