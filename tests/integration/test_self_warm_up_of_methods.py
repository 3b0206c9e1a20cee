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

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.base.protos import example_pb2, predict_pb2
from serving.client.stubs import PredictionServiceStub
from tests.integration.clients import array, channel_to, wait_until
from tests.integration.conftest import StartServer
from tests.integration.example_exports import CLASSIFY, REGRESS, export_examples
from tests.integration.example_requests import EXAMPLES, classification, multi_inference, regression
from tests.integration.exports import drop
from tests.integration.kserve_clients import DENSE, IDS, client_of, echo_inputs, tensor
from tests.integration.logs import wait_for_log
from tests.integration.processes import millpond
from tests.integration.rest_clients import RestClient
from warmup.__main__ import main as warmup
from warmup.prediction_log import WARM_UP_FILE, read_logs

# Repeats the examples, for a request of another size.
MANY = 20


def wait_until_kept(server: ModelServer, model: str, count: int) -> None:
    """Waits until the model's reservoir holds so many: a request is kept after its answer is sent."""

    def is_kept() -> bool:
        metrics = ServerPages(server.url).metrics()
        return metrics.value("serving_reservoir_requests", model=model) == count

    wait_until(is_kept, f"{count} requests in the reservoir of {model}")


def captured(server: ModelServer, model: str, version: Path) -> list[predict_pb2.PredictRequest]:
    """Returns the records of `millpond capture` for `version`; `python -m warmup check` has
    accepted the file.
    """
    written = millpond("capture", model, "--target", server.admin_target, "--output", version)
    assert written.returncode == 0, written.stderr
    assert warmup(["check", str(version)]) == 0
    return [log.predict_log.request for log in read_logs(version / WARM_UP_FILE)]


def inputs_of(request: predict_pb2.PredictRequest) -> Mapping[str, Any]:
    return {name: array(value).tolist() for name, value in request.inputs.items()}


def swap(server: ModelServer, model: str, export: Path, base_path: Path) -> Any:
    """Drops version 2 and returns the log event of its self-warm-up."""
    drop(export, base_path, 2)
    warmed = wait_for_log(server, "self_warmed_up", version=2)
    server.wait_until_available(model, 2)
    return warmed


def start(start_server: StartServer, model: str, export: Path, base_path: Path) -> ModelServer:
    drop(export, base_path, 1)
    server = start_server(model_name=model, base_path=base_path, rest_api_port="auto")
    server.wait_until_available(model, 1)
    return server


def test_rest_and_open_inference_requests_warm_next(
    start_server: StartServer, echo_export: Path, base_path: Path, tmp_path: Path
):
    server = start(start_server, "echo", echo_export, base_path)
    rows = {"inputs": {"dense": DENSE.tolist(), "ids": IDS.tolist()}}
    assert RestClient(server).ask("POST", "/v1/models/echo:predict", rows)[0] == 200
    wait_until_kept(server, "echo", 1)
    with client_of(triton_grpc, server) as client:
        outputs = [triton_grpc.InferRequestedOutput("next")]
        client.infer("echo", echo_inputs(triton_grpc), outputs=outputs)
    wait_until_kept(server, "echo", 2)
    words = np.array(["", "two words", b"\xff"], object)
    with client_of(triton_http, server) as client:
        parameters = {"signature_name": "echo_string"}
        client.infer("echo", [tensor(triton_http, "x", words)], parameters=parameters)
    wait_until_kept(server, "echo", 3)

    asked = {
        (request.model_spec.signature_name, *request.output_filter): inputs_of(request)
        for request in captured(server, "echo", drop(echo_export, tmp_path, "next"))
    }
    sent = {"dense": DENSE.tolist(), "ids": IDS.tolist()}
    assert asked == {
        ("serving_default",): sent,
        ("serving_default", "next"): sent,
        ("echo_string",): {"x": [b"", b"two words", b"\xff"]},
    }
    warmed = swap(server, "echo", echo_export, base_path)
    assert (warmed["run_count"], warmed["failed_count"]) == (3, 0), warmed


@pytest.fixture(scope="module")
def examples_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_examples(tmp_path_factory.mktemp("exports") / "examples")


def test_example_requests_warm_their_signatures(
    start_server: StartServer, examples_export: Path, base_path: Path, tmp_path: Path
):
    server = start(start_server, "m", examples_export, base_path)
    with channel_to(server.target) as channel:
        stub = PredictionServiceStub(channel)
        stub.MultiInference(multi_inference(("regress", REGRESS), ("", CLASSIFY)), timeout=30)
        wait_until_kept(server, "m", 2)
        # The reservoir takes a request of a new size at once.
        stub.Regress(regression(examples=EXAMPLES * MANY), timeout=30)
        wait_until_kept(server, "m", 3)
        stub.Classify(classification("labels"), timeout=30)
        wait_until_kept(server, "m", 4)
    body = {"signature_name": "scores", "examples": [{"x": 1.0, "y": 2.0}]}
    assert RestClient(server).ask("POST", "/v1/models/m:classify", body)[0] == 200
    wait_until_kept(server, "m", 5)

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
        for request in captured(server, "m", drop(examples_export, tmp_path, "next"))
    ]
    for signature_name in ("regress", "serving_default", "labels"):
        assert (signature_name, EXAMPLES) in kept
    assert ("regress", EXAMPLES * MANY) in kept
    assert [len(inputs) for signature_name, inputs in kept if signature_name == "scores"] == [1]
    warmed = swap(server, "m", examples_export, base_path)
    assert (warmed["run_count"], warmed["failed_count"]) == (5, 0), warmed
