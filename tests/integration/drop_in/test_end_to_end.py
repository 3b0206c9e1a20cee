"""The requirements of TensorFlow Serving's end-to-end suite of its model server, as tests of our
own.

Servers start as in that suite: with its flags, a port that a test picked, and our defaults for all
else. Nothing has prepared the models. A server is ready once it refuses a model that it does not
have with NOT_FOUND, and each request follows at once. The suite starts a server for each model and
flag; here one server has the first model, and one all others and the flags.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest

from loadtest.drive.shell_server import free_port
from serving.base.protos import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)
from serving.client.features import examples_input
from serving.client.stubs import ModelServiceStub, PredictionServiceStub
from tests.integration.clients import (
    TIMEOUT_SECONDS,
    channel_to,
    predict_request,
    refusal,
    wait_until,
)
from tests.integration.kept_exports import DROP_IN_SOURCES, exported_by, kept_export

MODEL = "default"
VERSION = 123
MILLPOND = str(Path(sys.executable).with_name("millpond"))


@dataclass(frozen=True)
class Running:
    """A running server."""

    target: str
    url: str
    socket_target: str
    log: Path
    channel: grpc.Channel = field(repr=False)

    @property
    def predictions(self) -> Any:
        return PredictionServiceStub(self.channel)

    def get(self, path: str) -> bytes:
        with urlopen(self.url + path, timeout=TIMEOUT_SECONDS) as response:
            body: bytes = response.read()
            return body

    def post(self, path: str, document: object) -> Any:
        """Posts like urllib by default: the content type is the one of a form."""
        request = Request(self.url + path, data=json.dumps(document).encode())
        with urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return json.load(response)


@contextmanager
def process(flags: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Returns the command `millpond serve` with flags split as by a shell."""
    command = shlex.split(" ".join([MILLPOND, "serve", *flags]))
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


@contextmanager
def suite_server(
    directory: Path, flags: list[str], socket_path: Path | None = None
) -> Iterator[Running]:
    port, http_port = free_port(), free_port()
    path, log = socket_path or directory / "grpc.sock", directory / "server.log"
    always = [
        f"--port={port}",
        f"--rest_api_port={http_port}",
        "--rest_api_timeout_in_ms=5000",
        f"--grpc_socket_path={path}",
    ]
    target = f"127.0.0.1:{port}"
    with process([*always, *flags], log) as server, channel_to(target) as channel:
        running = Running(target, f"http://127.0.0.1:{http_port}", f"unix:{path}", log, channel)
        wait_until(lambda: server.poll() is not None or _is_ready(running), "readiness")
        assert server.poll() is None, log.read_text(errors="replace")[-4_000:]
        yield running


def _is_ready(server: Running) -> bool:
    request = predict_request("intentionally_missing_model", {})
    code, message = refusal(lambda: server.predictions.Predict(request, timeout=TIMEOUT_SECONDS))
    return code is grpc.StatusCode.NOT_FOUND and "Servable" in message


@pytest.fixture(scope="session")
def suite_models() -> Path:
    exporter = "tests.integration.drop_in.export_suite_models"
    return kept_export("suite", exported_by(exporter), DROP_IN_SOURCES)


@pytest.fixture(scope="module")
def server(suite_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The server of one model by its flags."""
    base_path = suite_models / "half_plus_two"
    flags = [f"--model_name={MODEL}", f"--model_base_path={base_path}"]
    with suite_server(tmp_path_factory.mktemp("suite"), flags) as running:
        yield running


OTHERS = (
    *("half_plus_three", "lost_asset", "half_plus_two_tf2", "checkpoint"),
    *("constants", "mirrored", "keras", "texts"),
)


@pytest.fixture(scope="module")
def configured_server(
    suite_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """The server of a config file with the models of `OTHERS`, written as in the suite."""
    directory = tmp_path_factory.mktemp("configured")
    blocks = [
        f"config: {{\n name: '{name}',\n base_path: '{suite_models / name}',\n"
        "  model_platform: 'tensorflow'\n}"
        for name in OTHERS
    ]
    config, monitoring = directory / "models.conf", directory / "monitoring.txt"
    config.write_text("model_config_list: {\n" + ",\n".join(blocks) + "\n}\n")
    monitoring.write_text(
        'prometheus_config {\n  enable: true,\n  path: "/monitoring/prometheus/metrics"\n}\n'
    )
    # The suite ends each connection after 2 s. All tests here share one, which stays until they are over.
    arguments = "grpc.max_connection_age_ms=3600000,grpc.lb_policy_name=grpclb"
    flags = [
        *(f"--model_config_file={config}", f"--monitoring_config_file={monitoring}"),
        f"--grpc_channel_arguments={arguments}",
    ]
    with suite_server(directory, flags) as running:
        yield running


@pytest.fixture(params=["half_plus_two", "half_plus_two_tf2"])
def exported(
    request: pytest.FixtureRequest, server: Running, configured_server: Running
) -> tuple[Running, str]:
    """The model as TensorFlow 1 and 2 export it: its server, and its name there."""
    if request.param == "half_plus_two":
        return server, MODEL
    return configured_server, request.param


def two(shape: tuple[int, ...], **more: Any) -> predict_pb2.PredictRequest:
    return predict_request(more.pop("name", MODEL), {"x": np.full(shape, 2.0, np.float32)}, **more)


def y_of(server: Running, request: predict_pb2.PredictRequest) -> list[float]:
    """Returns the values of `y` as the suite reads them: from float_val, never from tensor_content."""
    response = server.predictions.Predict(request, timeout=TIMEOUT_SECONDS)
    assert response.model_spec.name == request.model_spec.name
    assert response.model_spec.signature_name == (
        request.model_spec.signature_name or "serving_default"
    )
    assert response.outputs["y"].dtype == 1
    return list(response.outputs["y"].float_val)


def example_request(message: Any, name: str, signature_name: str) -> Any:
    message.model_spec.name = name
    message.model_spec.signature_name = signature_name
    message.input.CopyFrom(examples_input([{"x": 2.0}]))
    return message


# --- Models -----------------------------------------------------------------------------------------

MODELS = [
    ("half_plus_three", (1,), "serving_default", 4.0),
    ("lost_asset", (1,), "serving_default", 3.0),
    ("half_plus_two_tf2", (1,), "serving_default", 3.0),
    ("checkpoint", (1,), "serving_default", 12.0),
    ("constants", (1,), "serving_default", 1.0),
    ("constants", (1,), "custom_signature_key", 2.0),
    ("mirrored", (1, 1), "serving_default", 2.0),
    ("keras", (1, 1), "serving_default", 2.0),
    ("texts", (1,), "serving_default", 3.0),
]


@pytest.mark.parametrize(("model", "shape", "signature", "y"), MODELS)
def test_model_answers_once_ready(
    model: str, shape: tuple[int, ...], signature: str, y: float, configured_server: Running
):
    for output_filter in (["y"], []):
        request = two(shape, name=model, signature_name=signature, output_filter=output_filter)
        assert y_of(configured_server, request) == [y]


def test_first_model_answers_once_ready(server: Running):
    for output_filter in (["y"], []):
        assert y_of(server, two((1,), output_filter=output_filter)) == [3.0]


def test_classify_answers(exported: tuple[Running, str]):
    server, name = exported
    request = example_request(classification_pb2.ClassificationRequest(), name, "classify_x_to_y")
    response = server.predictions.Classify(request, timeout=TIMEOUT_SECONDS)
    (result,) = response.result.classifications
    assert [(row.label, row.score) for row in result.classes] == [("", 3.0)]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (
        name,
        VERSION,
        "classify_x_to_y",
    )


def test_regress_answers(exported: tuple[Running, str]):
    server, name = exported
    request = example_request(regression_pb2.RegressionRequest(), name, "regress_x_to_y")
    response = server.predictions.Regress(request, timeout=TIMEOUT_SECONDS)
    assert [row.value for row in response.result.regressions] == [3.0]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (
        name,
        VERSION,
        "regress_x_to_y",
    )


def test_multi_inference_answers(exported: tuple[Running, str]):
    server, name = exported
    request = inference_pb2.MultiInferenceRequest(input=examples_input([{"x": 2.0}]))
    tasks = [("regress_x_to_y", "regress"), ("classify_x_to_y", "classify")]
    for signature_name, method in tasks:
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = name, signature_name
    response = server.predictions.MultiInference(request, timeout=TIMEOUT_SECONDS)
    regressed, classified = response.results
    assert regressed.regression_result.regressions[0].value == 3.0
    assert classified.classification_result.classifications[0].classes[0].score == 3.0
    for result, (signature_name, _) in zip((regressed, classified), tasks, strict=True):
        spec = result.model_spec
        assert (spec.name, spec.version.value) == (name, VERSION)
        assert spec.signature_name == signature_name


# --- Requests to the first model ------------------------------------------------------------------


def test_model_status_has_the_version(server: Running):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = MODEL
    (status,) = (
        ModelServiceStub(server.channel)
        .GetModelStatus(request, timeout=TIMEOUT_SECONDS)
        .model_version_status
    )
    assert (status.version, status.status.error_code) == (VERSION, 0)


def test_model_metadata_has_signatures_alone(server: Running):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = MODEL
    response = server.predictions.GetModelMetadata(request, timeout=TIMEOUT_SECONDS)
    assert (response.model_spec.name, response.model_spec.version.value) == (MODEL, VERSION)
    assert list(response.metadata) == ["signature_def"]


def test_socket_answers_as_the_port_does(server: Running):
    with channel_to(server.socket_target) as channel:
        response = PredictionServiceStub(channel).Predict(two((1,)), timeout=TIMEOUT_SECONDS)
    assert list(response.outputs["y"].float_val) == [3.0]


@pytest.mark.parametrize(
    ("verb", "body", "answer"),
    [
        ("predict", {"instances": [2.0, 3.0, 4.0]}, {"predictions": [3.0, 3.5, 4.0]}),
        ("predict", {"instances": [1.0, 2.0, 5.0]}, {"predictions": [2.5, 3.0, 4.5]}),
        ("predict", {"inputs": [2.0, 3.0, 4.0]}, {"outputs": [3.0, 3.5, 4.0]}),
        (
            "classify",
            {"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}]},
            {"results": [[["", 3.0]]]},
        ),
        (
            "regress",
            {"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]},
            {"results": [3.0]},
        ),
    ],
)
def test_rest_answers(verb: str, body: object, answer: object, server: Running):
    assert server.post(f"/v1/models/{MODEL}:{verb}", body) == answer


def test_rest_status_is_the_whole_document(server: Running):
    assert json.loads(server.get(f"/v1/models/{MODEL}")) == {
        "model_version_status": [
            {
                "version": "123",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }


def test_rest_metadata_has_nothing_more(server: Running):
    document = json.loads(server.get(f"/v1/models/{MODEL}/metadata"))
    assert document["model_spec"] == {"name": MODEL, "signature_name": "", "version": "123"}
    assert set(document) == {"model_spec", "metadata"}
    signatures = document["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {
        *("serving_default", "regress_x_to_y", "regress_x_to_y2", "regress_x2_to_y3"),
        "classify_x_to_y",
    }
    for signature in signatures.values():
        assert set(signature) == {"inputs", "outputs", "method_name", "defaults"}
        for tensor in (*signature["inputs"].values(), *signature["outputs"].values()):
            assert set(tensor) == {"dtype", "tensor_shape", "name"}
    x = signatures["serving_default"]["inputs"]["x"]
    assert x["tensor_shape"] == {"dim": [], "unknown_rank": True}


# --- Flags and config files ---------------------------------------------------------------------------


def test_monitoring_config_gives_metrics(configured_server: Running):
    assert b"# TYPE" in configured_server.get("/monitoring/prometheus/metrics")


def test_two_servers_take_the_same_socket(
    configured_server: Running, suite_models: Path, tmp_path: Path
):
    """The suite starts all of its servers with one path; the last server holds it."""
    flags = [f"--model_name={MODEL}", f"--model_base_path={suite_models / 'half_plus_two'}"]
    path = Path(configured_server.socket_target.removeprefix("unix:"))
    with suite_server(tmp_path, flags, path):
        assert y_of(configured_server, two((1,), name="half_plus_three")) == [4.0]
        with channel_to(configured_server.socket_target) as channel:
            response = PredictionServiceStub(channel).Predict(two((1,)), timeout=TIMEOUT_SECONDS)
        assert list(response.outputs["y"].float_val) == [3.0]


def test_config_file_that_does_not_parse(tmp_path: Path):
    config, log = tmp_path / "models.conf", tmp_path / "server.log"
    config.write_text("improperly formatted file\n")
    with process([f"--port={free_port()}", f"--model_config_file={config}"], log) as server:
        assert server.wait(TIMEOUT_SECONDS) != 0
    assert "Error parsing text-format tensorflow.serving.ModelServerConfig" in log.read_text()
