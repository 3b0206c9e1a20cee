"""The outputs of an answer, whatever method gave it: as named tensors, which `tensor_compare` compares. Pure."""

from typing import Any

import numpy as np

from serving.base.protos import predict_pb2, tensor_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.gates.tensor_compare import Outputs


def outputs_of(response: Any) -> Outputs:
    """Of a response of Predict, Classify, Regress or MultiInference, a message."""
    if isinstance(response, predict_pb2.PredictResponse):
        outputs: Outputs = response.outputs
        return outputs
    if not hasattr(response, "results"):
        return _of_result(response.result)
    return {
        f"task {index} {name}": tensor
        for index, result in enumerate(response.results)
        for name, tensor in _of_result(_of_task(result)).items()
    }


def _of_task(result: Any) -> Any:
    kind = result.WhichOneof("result")
    return getattr(result, kind) if kind else None


def _of_result(result: Any) -> Outputs:
    if hasattr(result, "regressions"):
        return {"values": _floats(one.value for one in result.regressions)}
    examples = [one.classes for one in result.classifications] if result is not None else []
    classes = [scored for example in examples for scored in example]
    labels = np.array([scored.label.encode() for scored in classes], object)
    return {
        "class counts": to_tensor_proto(np.array([len(example) for example in examples], np.int64)),
        "labels": to_tensor_proto(labels),
        "scores": _floats(scored.score for scored in classes),
    }


def _floats(values: Any) -> tensor_pb2.TensorProto:
    return to_tensor_proto(np.fromiter(values, np.float32))
