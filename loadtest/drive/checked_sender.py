"""Sends the demo's requests with the stock gRPC stub and checks each answer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.traffic import Answer, Send
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto
from serving.commands.ctr_model import reference_answers, request_inputs
from serving.commands.ctr_request import predict_request

# The requests differ in their ids and are sent in turn.
_REQUEST_SEEDS = range(16)
# The answers are float32 sums of 429 products; the reference sums in float64.
_TOLERANCE = 1e-5
# Longer than the slowest request of a swap, shorter than the patience of the demo's user.
_REQUEST_TIMEOUT_SECONDS = 10


def checked_sender(stub: Any, request_rows: int, table_rows: int) -> Send:
    """Makes a `Send` that sends the requests in turn with the stock stub and checks version and `ctr` of
    each answer.
    """
    inputs = [request_inputs(seed, request_rows, table_rows) for seed in _REQUEST_SEEDS]
    requests = [predict_request(MODEL_NAME, arrays) for arrays in inputs]
    expected = reference_answers((1, 2), inputs, table_rows)

    def send(number: int) -> Answer:
        index = number % len(requests)
        response = stub.Predict(requests[index], timeout=_REQUEST_TIMEOUT_SECONDS)
        return checked_answer(response, {v: answers[index] for v, answers in expected.items()})

    return send


def checked_answer(
    response: predict_pb2.PredictResponse, expected: Mapping[int, np.ndarray[Any, Any]]
) -> Answer:
    """Checks an answer: it is right if `ctr` and the `version` output fit the reply's version.

    `expected` has for each version the right `ctr`, float64[rows, 1].
    """
    version = response.model_spec.version.value
    ctr = from_tensor_proto(response.outputs["ctr"])
    versions = from_tensor_proto(response.outputs["version"])
    is_right = (
        version in expected
        and ctr.shape == expected[version].shape
        and bool(np.allclose(ctr, expected[version], rtol=0, atol=_TOLERANCE))
        and bool((versions == version).all())
    )
    return Answer(version, is_right)
