"""Self-warm-up of models whose clients never call Predict over gRPC: REST, the open inference
protocol, examples.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from serving.base.protos import example_pb2, predict_pb2
from serving.client.stubs import PredictionServiceStub
from tests.integration.clients import TIMEOUT_SECONDS, array, channel_to
from tests.integration.example_exports import CLASSIFY, REGRESS, export_examples
from tests.integration.example_requests import EXAMPLES, classification, multi_inference, regression
from tests.integration.exports import drop
from tests.integration.kserve_clients import DENSE, IDS, client_of, echo_inputs, tensor
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import millpond
from tests.integration.rest_clients import RestClient
from warmup.__main__ import main as warmup
from warmup.prediction_log import WARM_UP_FILE, read_logs

# Repeats the examples, for a request of another size.
MANY = 20


def captured(model: HostedModel, version: Path) -> list[predict_pb2.PredictRequest]:
    """Returns the records of `millpond capture` for `version`; `python -m warmup check` has
    accepted the file.
    """
    target = ("--target", model.server.admin_target)
    written = millpond("capture", model.name, *target, "--output", version)
    assert written.returncode == 0, written.stderr
    assert warmup(["check", str(version)]) == 0
    return [log.predict_log.request for log in read_logs(version / WARM_UP_FILE)]


def inputs_of(request: predict_pb2.PredictRequest) -> Mapping[str, Any]:
    return {name: array(value).tolist() for name, value in request.inputs.items()}


def swap(model: HostedModel, export: Path) -> Any:
    """Drops version 2 and returns the log event of its self-warm-up."""
    model.serve(export, 2)
    return model.wait_for_log("self_warmed_up", version=2)


def test_rest_and_open_inference_requests_warm_next(
    host: ModelHost, echo_export: Path, tmp_path: Path
):
    model = host.model(prefix="echo").serve(echo_export)
    rows = {"inputs": {"dense": DENSE.tolist(), "ids": IDS.tolist()}}
    rest = RestClient(model.server)
    assert rest.ask("POST", f"/v1/models/{model.name}:predict", rows)[0] == 200
    model.wait_until_kept(1)
    with client_of(triton_grpc, model.server) as client:
        outputs = [triton_grpc.InferRequestedOutput("next")]
        client.infer(model.name, echo_inputs(triton_grpc), outputs=outputs)
    model.wait_until_kept(2)
    words = np.array(["", "two words", b"\xff"], object)
    with client_of(triton_http, model.server) as client:
        parameters = {"signature_name": "echo_string"}
        client.infer(model.name, [tensor(triton_http, "x", words)], parameters=parameters)
    model.wait_until_kept(3)

    asked = {
        (request.model_spec.signature_name, *request.output_filter): inputs_of(request)
        for request in captured(model, drop(echo_export, tmp_path, "next"))
    }
    sent = {"dense": DENSE.tolist(), "ids": IDS.tolist()}
    assert asked == {
        ("serving_default",): sent,
        ("serving_default", "next"): sent,
        ("echo_string",): {"x": [b"", b"two words", b"\xff"]},
    }
    warmed = swap(model, echo_export)
    assert (warmed["run_count"], warmed["failed_count"]) == (3, 0), warmed


@pytest.fixture(scope="module")
def examples_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_examples(tmp_path_factory.mktemp("exports") / "examples")


def test_example_requests_warm_their_signatures(
    host: ModelHost, examples_export: Path, tmp_path: Path
):
    model = host.model(prefix="examples").serve(examples_export)
    name = model.name
    with channel_to(model.server.target) as channel:
        stub = PredictionServiceStub(channel)
        tasks = (("regress", REGRESS), ("", CLASSIFY))
        stub.MultiInference(multi_inference(*tasks, model=name), timeout=TIMEOUT_SECONDS)
        model.wait_until_kept(2)
        # The reservoir takes a request of a new size at once.
        stub.Regress(regression(model=name, examples=EXAMPLES * MANY), timeout=TIMEOUT_SECONDS)
        model.wait_until_kept(3)
        stub.Classify(classification("labels", model=name), timeout=TIMEOUT_SECONDS)
        model.wait_until_kept(4)
    body = {"signature_name": "scores", "examples": [{"x": 1.0, "y": 2.0}]}
    assert RestClient(model.server).ask("POST", f"/v1/models/{name}:classify", body)[0] == 200
    model.wait_until_kept(5)

    # Messages are compared, not bytes: the features of an example are a map, and a map is
    # serialized in any order.
    kept = [
        (
            request.model_spec.signature_name,
            [
                example_pb2.Example.FromString(serialized)
                for serialized in inputs_of(request)["inputs"]
            ],
        )
        for request in captured(model, drop(examples_export, tmp_path, "next"))
    ]
    for signature_name in ("regress", "serving_default", "labels"):
        assert (signature_name, EXAMPLES) in kept
    assert ("regress", EXAMPLES * MANY) in kept
    assert [len(inputs) for signature_name, inputs in kept if signature_name == "scores"] == [1]
    warmed = swap(model, examples_export)
    assert (warmed["run_count"], warmed["failed_count"]) == (5, 0), warmed
