"""Makes a request to the CTR model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from serving.base.protos import predict_pb2
from serving.base.tensor_proto import to_tensor_proto


def predict_request(
    model_name: str, inputs: Mapping[str, np.ndarray[Any, Any]]
) -> predict_pb2.PredictRequest:
    """Makes a PredictRequest for the default version and signature of `model_name`."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model_name
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(to_tensor_proto(array))
    return request
