"""Inputs of any shape over each protocol: the kernels decide, as in TensorFlow Serving."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from serving import ModelServer
from serving.base.protos import get_model_metadata_pb2, meta_graph_pb2, types_pb2
from tests.integration.clients import TIMEOUT_SECONDS, Caller, predict_request, refusal
from tests.integration.drop_in.shape_rows import ARRAYS, REST_ROWS, RestShapeRow
from tests.integration.kept_exports import DROP_IN_SOURCES, exported_by, kept_export
from tests.integration.model_host import ModelHost
from tests.integration.shape_fuzzer import Input, random_inputs

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
DTYPES = {types_pb2.DT_FLOAT: "float32", types_pb2.DT_INT64: "int64", types_pb2.DT_STRING: "string"}
REQUESTS_PER_SIGNATURE = int(os.environ.get("MILLPOND_SHAPE_REQUESTS", "150"))


@pytest.fixture(scope="module")
def shape_models() -> Path:
    exporter = "tests.integration.drop_in.export_shape_models"
    return kept_export("shapes", exported_by(exporter), DROP_IN_SOURCES)


@pytest.fixture(scope="module")
def server(module_host: ModelHost, shape_models: Path) -> ModelServer:
    half = shape_models / "half_plus_two"
    models = [
        module_host.model(half, name="half_plus_two"),
        module_host.model(half, name="strict", settings={"input_shapes": "strict"}),
        module_host.model(shape_models / "kernels", name="kernels"),
    ]
    for model in models:
        model.wait_until_available()
    return module_host.server


@pytest.fixture(scope="module")
def http(server: ModelServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
        yield client


@pytest.mark.parametrize("row", REST_ROWS, ids=lambda row: row.name)
def test_rest_takes_shapes_of_no_signature(row: RestShapeRow, http: httpx.Client):
    response = http.post("/v1/models/half_plus_two:predict", json=row.body)
    assert (response.status_code, response.json()) == (200, row.answer)


@pytest.mark.parametrize("name", ARRAYS)
def test_predict_takes_shapes_of_no_signature(name: str, caller: Caller):
    x = ARRAYS[name]
    y = caller.outputs("half_plus_two", {"x": x})["y"]
    assert y.shape == x.shape
    assert y.tolist() == (x / 2 + 2).tolist()


def test_infer_takes_shapes_of_no_signature(http: httpx.Client):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1.0, 2.0, 5.0]}]}
    (output,) = http.post("/v2/models/half_plus_two/infer", json=body).json()["outputs"]
    assert (output["shape"], output["data"]) == ([3], [2.5, 3.0, 4.5])


def test_kernels_refusal_names_the_input(caller: Caller, http: httpx.Client):
    request = predict_request("kernels", {"x": np.ones([3], np.float32)})
    code, message = refusal(lambda: caller.predict(request))
    assert code is INVALID_ARGUMENT
    assert "input 'x' is float32[3], signature 'serving_default' names float32[?,3]" in message
    response = http.post("/v1/models/kernels:predict", json={"inputs": [1.0, 2.0, 3.0]})
    assert response.status_code == 400
    assert "input 'x' is float32[3]" in response.json()["error"]


def test_strict_model_keeps_to_its_signature(caller: Caller, http: httpx.Client):
    request = predict_request("strict", {"x": ARRAYS["vector"]})
    code, message = refusal(lambda: caller.predict(request))
    assert code is INVALID_ARGUMENT
    assert "input 'x': expected float32[?,1], got float32[3]" in message
    response = http.post("/v1/models/strict:predict", json={"instances": [1.0, 2.0]})
    assert response.status_code == 400
    assert "expected float32[?,1], got float32[2]" in response.json()["error"]
    assert caller.outputs("strict", {"x": [[np.float32(1)]]})["y"].tolist() == [[2.5]]


def _signatures(caller: Caller, name: str) -> dict[str, tuple[Input, ...]]:
    """Returns the inputs of each signature of a model by the signature's name."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = name
    answer = get_model_metadata_pb2.SignatureDefMap()
    caller.metadata(request).metadata["signature_def"].Unpack(answer)
    return {
        key: tuple(_input(name, tensor) for name, tensor in sorted(signature.inputs.items()))
        for key, signature in answer.signature_def.items()
        if key != "__saved_model_init_op"
    }


def _input(name: str, tensor: meta_graph_pb2.TensorInfo) -> Input:
    dims = tuple(None if dim.size < 0 else dim.size for dim in tensor.tensor_shape.dim)
    return Input(name, DTYPES[tensor.dtype], dims)


def test_random_shapes_are_answered_or_refused(server: ModelServer, caller: Caller):
    """MILLPOND_SHAPE_REQUESTS=1100 sends more than 20,000 requests."""
    codes: Counter[Any] = Counter()
    process_id = server.process_id
    for name, inputs in _signatures(caller, "kernels").items():
        for arrays in random_inputs(5, inputs, REQUESTS_PER_SIGNATURE):
            try:
                caller.predict(predict_request("kernels", arrays, signature_name=name))
                codes["OK"] += 1
            except grpc.RpcError as error:
                failed: Any = error
                shapes = {key: value.shape for key, value in arrays.items()}
                assert failed.code() is INVALID_ARGUMENT, (name, shapes, failed.details())
                codes["INVALID_ARGUMENT"] += 1
    assert min(codes.values()) > 100, codes
    assert server.process_id == process_id
    assert caller.outputs("half_plus_two", {"x": [[np.float32(1)]]})["y"].tolist() == [[2.5]]
