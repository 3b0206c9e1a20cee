"""The requirements of TensorFlow Serving's end-to-end suite of its model server, as tests of our
own.

Servers start as in that suite: with its flags, a port that a test picked, and our defaults for all
else. Nothing has prepared the models. A server is ready once it refuses a model that it does not
have with NOT_FOUND, and each request follows at once.
"""

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest

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
from tests.integration.clients import channel_to, predict_request, refusal, wait_until
from tests.integration.conftest import REPOSITORY

MODEL = "default"
VERSION = 123
MILLPOND = str(Path(sys.executable).with_name("millpond"))
START_SECONDS = 60
CONFIG = (
    'model_config_list {{ config {{ name: "{0}" base_path: "{1}" model_platform: "tensorflow" }} }}'
)


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
        with urlopen(self.url + path, timeout=30) as response:
            body: bytes = response.read()
            return body

    def post(self, path: str, document: object) -> Any:
        """Posts like urllib by default: the content type is the one of a form."""
        request = Request(self.url + path, data=json.dumps(document).encode())
        with urlopen(request, timeout=30) as response:
            return json.load(response)


StartSuiteServer = Callable[..., Running]


def free_port() -> int:
    with socket.socket(socket.AF_INET) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
def suite_server(directory: Path, flags: list[str]) -> Iterator[Running]:
    port, http_port = free_port(), free_port()
    path, log = directory / "grpc.sock", directory / "server.log"
    always = [
        f"--port={port}",
        f"--rest_api_port={http_port}",
        "--rest_api_timeout_in_ms=5000",
        f"--grpc_socket_path={path}",
    ]
    target = f"127.0.0.1:{port}"
    with process([*always, *flags], log) as server, channel_to(target) as channel:
        running = Running(target, f"http://127.0.0.1:{http_port}", f"unix:{path}", log, channel)
        wait_until(
            lambda: server.poll() is not None or _is_ready(running), "readiness", START_SECONDS
        )
        assert server.poll() is None, log.read_text(errors="replace")[-4_000:]
        yield running


def _is_ready(server: Running) -> bool:
    request = predict_request("intentionally_missing_model", {})
    code, message = refusal(lambda: server.predictions.Predict(request, timeout=5))
    return code is grpc.StatusCode.NOT_FOUND and "Servable" in message


@pytest.fixture(scope="session")
def suite_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("suite_models")
    subprocess.run(
        [sys.executable, "-m", "tests.integration.drop_in.export_suite_models", str(directory)],
        cwd=REPOSITORY,
        check=True,
        timeout=300,
    )
    return directory


@pytest.fixture(scope="module")
def serve(
    suite_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartSuiteServer]:
    """Starts the server of one model once; later calls with the same arguments get the same server."""
    with ExitStack() as stack:

        @cache
        def start(model: str, *flags: str) -> Running:
            base = [f"--model_name={MODEL}", f"--model_base_path={suite_models / model}"]
            directory = tmp_path_factory.mktemp("suite")
            return stack.enter_context(suite_server(directory, [*base, *flags]))

        yield start


def two(shape: tuple[int, ...], **more: Any) -> predict_pb2.PredictRequest:
    return predict_request(more.pop("name", MODEL), {"x": np.full(shape, 2.0, np.float32)}, **more)


def y_of(server: Running, request: predict_pb2.PredictRequest) -> list[float]:
    """Returns the values of `y` as the suite reads them: from float_val, never from tensor_content."""
    response = server.predictions.Predict(request, timeout=20)
    assert response.model_spec.name == request.model_spec.name
    assert response.model_spec.signature_name == (
        request.model_spec.signature_name or "serving_default"
    )
    assert response.outputs["y"].dtype == 1
    return list(response.outputs["y"].float_val)


def example_request(message: Any, signature_name: str) -> Any:
    message.model_spec.name = MODEL
    message.model_spec.signature_name = signature_name
    message.input.CopyFrom(examples_input([{"x": 2.0}]))
    return message


# --- Models, each by a server of its own -------------------------------------------------------------

MODELS = [
    ("half_plus_two", (1,), "serving_default", 3.0),
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
    model: str, shape: tuple[int, ...], signature: str, y: float, serve: StartSuiteServer
):
    server = serve(model)
    for output_filter in (["y"], []):
        request = two(shape, signature_name=signature, output_filter=output_filter)
        assert y_of(server, request) == [y]


@pytest.mark.parametrize("model", ["half_plus_two", "half_plus_two_tf2"])
def test_classify_answers(model: str, serve: StartSuiteServer):
    request = example_request(classification_pb2.ClassificationRequest(), "classify_x_to_y")
    response = serve(model).predictions.Classify(request, timeout=20)
    (result,) = response.result.classifications
    assert [(row.label, row.score) for row in result.classes] == [("", 3.0)]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (
        MODEL,
        VERSION,
        "classify_x_to_y",
    )


@pytest.mark.parametrize("model", ["half_plus_two", "half_plus_two_tf2"])
def test_regress_answers(model: str, serve: StartSuiteServer):
    request = example_request(regression_pb2.RegressionRequest(), "regress_x_to_y")
    response = serve(model).predictions.Regress(request, timeout=20)
    assert [row.value for row in response.result.regressions] == [3.0]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (
        MODEL,
        VERSION,
        "regress_x_to_y",
    )


@pytest.mark.parametrize("model", ["half_plus_two", "half_plus_two_tf2"])
def test_multi_inference_answers(model: str, serve: StartSuiteServer):
    request = inference_pb2.MultiInferenceRequest(input=examples_input([{"x": 2.0}]))
    tasks = [("regress_x_to_y", "regress"), ("classify_x_to_y", "classify")]
    for signature_name, method in tasks:
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = MODEL, signature_name
    regressed, classified = serve(model).predictions.MultiInference(request, timeout=20).results
    assert regressed.regression_result.regressions[0].value == 3.0
    assert classified.classification_result.classifications[0].classes[0].score == 3.0
    for result, (signature_name, _) in zip((regressed, classified), tasks, strict=True):
        spec = result.model_spec
        assert (spec.name, spec.version.value) == (MODEL, VERSION)
        assert spec.signature_name == signature_name


# --- Requests to the first model ------------------------------------------------------------------


@pytest.fixture
def server(serve: StartSuiteServer) -> Running:
    return serve("half_plus_two")


def test_model_status_has_the_version(server: Running):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = MODEL
    (status,) = (
        ModelServiceStub(server.channel).GetModelStatus(request, timeout=20).model_version_status
    )
    assert (status.version, status.status.error_code) == (VERSION, 0)


def test_model_metadata_has_signatures_alone(server: Running):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = MODEL
    response = server.predictions.GetModelMetadata(request, timeout=20)
    assert (response.model_spec.name, response.model_spec.version.value) == (MODEL, VERSION)
    assert list(response.metadata) == ["signature_def"]


def test_socket_answers_as_the_port_does(server: Running):
    with channel_to(server.socket_target) as channel:
        response = PredictionServiceStub(channel).Predict(two((1,)), timeout=20)
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


def test_monitoring_config_gives_metrics(serve: StartSuiteServer, tmp_path: Path):
    config = tmp_path / "monitoring.txt"
    config.write_text(
        'prometheus_config {\n  enable: true,\n  path: "/monitoring/prometheus/metrics"\n}\n'
    )
    server = serve("half_plus_two", f"--monitoring_config_file={config}")
    assert b"# TYPE" in server.get("/monitoring/prometheus/metrics")


def test_channel_arguments_are_taken(serve: StartSuiteServer):
    arguments = "grpc.max_connection_age_ms=2000,grpc.lb_policy_name=grpclb"
    server = serve("half_plus_two", f"--grpc_channel_arguments={arguments}")
    assert y_of(server, two((1,))) == [3.0]


def test_two_servers_take_the_same_socket(suite_models: Path, tmp_path: Path):
    """The suite starts all of its servers with one path; the last server holds it."""
    base = [f"--model_name={MODEL}"]
    first = [*base, f"--model_base_path={suite_models / 'half_plus_two'}"]
    second = [*base, f"--model_base_path={suite_models / 'half_plus_three'}"]
    with suite_server(tmp_path, first) as earlier, suite_server(tmp_path, second) as later:
        assert y_of(earlier, two((1,))) == [3.0]
        with channel_to(later.socket_target) as channel:
            response = PredictionServiceStub(channel).Predict(two((1,)), timeout=20)
        assert list(response.outputs["y"].float_val) == [4.0]


def test_config_file_serves_two_models(suite_models: Path, tmp_path: Path):
    config = tmp_path / "models.conf"
    names = ("half_plus_two", "half_plus_three")
    blocks = [
        f"config: {{\n name: '{name}',\n base_path: '{suite_models / name}',\n"
        "  model_platform: 'tensorflow'\n}"
        for name in names
    ]
    config.write_text("model_config_list: {\n" + ",\n".join(blocks) + "\n}\n")
    with suite_server(tmp_path, [f"--model_config_file={config}"]) as server:
        for name, y in zip(names, (3.0, 4.0), strict=True):
            assert y_of(server, two((1,), name=name)) == [y]


@pytest.mark.parametrize(("poll_seconds", "second"), [(1, "half_plus_three"), (0, None)])
def test_config_file_is_read_again_if_polled(
    poll_seconds: int, second: str | None, suite_models: Path, tmp_path: Path
):
    config = tmp_path / "models.conf"
    config.write_text(CONFIG.format("half_plus_two", suite_models / "half_plus_two"))
    flags = [f"--model_config_file={config}"]
    flags.append(f"--model_config_file_poll_wait_seconds={poll_seconds}")
    with suite_server(tmp_path, flags) as server:
        assert y_of(server, two((1,), name="half_plus_two")) == [3.0]
        config.write_text(CONFIG.format("half_plus_three", suite_models / "half_plus_three"))
        if second is None:
            assert y_of(server, two((1,), name="half_plus_two")) == [3.0]
            return

        def is_there() -> bool:
            try:
                return y_of(server, two((1,), name="half_plus_three")) == [4.0]
            except grpc.RpcError:
                return False

        wait_until(is_there, "the second model")


def test_config_file_that_does_not_parse(tmp_path: Path):
    config, log = tmp_path / "models.conf", tmp_path / "server.log"
    config.write_text("improperly formatted file\n")
    with process([f"--port={free_port()}", f"--model_config_file={config}"], log) as server:
        assert server.wait(60) != 0
    assert "Error parsing text-format tensorflow.serving.ModelServerConfig" in log.read_text()
