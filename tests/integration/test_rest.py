"""REST over a real server: TensorFlow Serving's documented API."""

import gzip
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from serving import ModelServer
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop
from tests.integration.rest_clients import ANSWER_SECONDS, RestClient, versions_of


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    echo_export: Path,
    tmp_path_factory: Any,
) -> ModelServer:
    base_path: Path = tmp_path_factory.mktemp("rest") / "scale"
    base_path.mkdir()
    (base_path.parent / "echo").mkdir()
    for version in (2, 3):
        scale_model.write(base_path, version)
    drop(echo_export, base_path.parent / "echo", 1)
    config = base_path.parent / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "scale" base_path: "{base_path}" '
        'model_platform: "tensorflow" model_version_policy { specific { versions: 2 versions: 3 } }'
        ' version_labels { key: "old" value: 2 } } '
        f'config {{ name: "echo" base_path: "{base_path.parent / "echo"}" '
        'model_platform: "tensorflow" } }'
    )
    server = start_module_server(model_config_file=config, rest_api_enable_cors_support=True)
    wait_until(lambda: len(versions_of(server)) == 2, "both versions are AVAILABLE")
    wait_until(lambda: versions_of(server, "echo") == ["1"], "echo is AVAILABLE")
    return server


@pytest.fixture
def client(server: ModelServer) -> RestClient:
    return RestClient(server)


@pytest.mark.parametrize(
    ("path", "body", "outputs", "version"),
    [
        ("scale:predict", {"inputs": [1, 2]}, {"y": [6, 9], "version": 3}, "3"),
        ("scale/versions/2:predict", {"inputs": [1]}, {"y": [4], "version": 2}, "2"),
        ("scale/labels/old:predict", {"inputs": {"x": [1]}}, {"y": [4], "version": 2}, "2"),
        (
            "scale:PREDICT",
            {"signature_name": "serving_default", "inputs": {"x": [1, 2]}},
            {"y": [6, 9], "version": 3},
            "3",
        ),
    ],
)
def test_predict_answers_from_requested_version(client, path, body, outputs, version):
    status, answer, headers = client.ask("POST", f"/v1/models/{path}", body)
    assert status == 200, answer
    assert headers["x-millpond-model-version"] == version
    assert headers["content-type"] == "application/json"
    assert answer == {"outputs": outputs}


@pytest.mark.parametrize("instances", [[1.5, -2], [{"x": 1.5}, {"x": -2}]])
def test_predict_rows_omit_name_of_only_output(client, instances):
    body = {"signature_name": "echo_float32", "instances": instances}
    status, answer, _ = client.ask("POST", "/v1/models/echo:predict", body)
    assert (status, answer) == (200, {"predictions": [1.5, -2.0]})


def test_predict_takes_a_compressed_body(client):
    body = gzip.compress(b'{"inputs": [1]}')
    headers = {"Content-Encoding": "gzip"}
    status, answer, _ = client.ask("POST", "/v1/models/scale:predict", body, **headers)
    assert (status, answer["outputs"]["y"]) == (200, [6])


def test_predict_compresses_large_answer_if_accepted(client):
    headers = {"Accept-Encoding": "gzip"}
    body = {"inputs": [1] * 10_000}
    status, answer, got = client.ask("POST", "/v1/models/scale:predict", body, **headers)
    assert (status, answer["outputs"]["y"]) == (200, [6] * 10_000)
    assert got["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/models/none:predict", {"instances": [1]}, 404, "Servable not found"),
        (
            "POST",
            "/v1/models/scale/versions/9:predict",
            {"instances": [1]},
            404,
            "Specific(scale, 9)",
        ),
        ("POST", "/v1/models/scale/labels/x:predict", {"instances": [1]}, 400, "label"),
        ("POST", "/v1/models/scale:predict", b"{", 400, "JSON Parse error"),
        ("POST", "/v1/models/scale:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        (
            "POST",
            "/v1/models/scale:predict",
            {"instances": ["a"]},
            400,
            "not of expected type: float",
        ),
        (
            *("POST", "/v1/models/scale:predict"),
            *({"signature_name": "q", "instances": [1]}, 400, 'signature key "q" not found'),
        ),
        ("GET", "/v1/models/scale:predict", None, 400, "Malformed request: GET"),
        ("POST", "/v1/models/scale", {}, 400, "Malformed request: POST /v1/models/scale"),
        ("GET", "/v1/nothing", None, 400, "Malformed request: GET /v1/nothing"),
        ("GET", "/v1/models/none", None, 404, "Could not find any versions of model none"),
        ("GET", "/v1/models/none/metadata", None, 404, "Servable not found"),
        ("OPTIONS", "/v1/models/scale:predict", None, 400, "Origin"),
    ],
)
def test_unanswerable_request_keeps_connection(client, method, path, body, status, message):
    got, answer, _ = client.ask(method, path, body)
    assert got == status
    assert message in answer["error"]
    assert client.ask("GET", "/v1/models/scale")[0] == 200


def test_body_above_limit_is_refused_before_sending(server):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=ANSWER_SECONDS)
    connection.putrequest("POST", "/v1/models/scale:predict")
    connection.putheader("Content-Length", str(2**40))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert "send less at a time" in json.loads(response.read())["error"]
    connection.close()


def test_status_metadata_and_list_name_served_versions(client):
    _, status, _ = client.ask("GET", "/v1/models/scale/labels/old")
    assert status["model_version_status"] == [
        {
            "version": "2",
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
    ]
    _, metadata, _ = client.ask("GET", "/v1/models/scale/versions/2/metadata")
    assert metadata["model_spec"] == {"name": "scale", "signature_name": "", "version": "2"}
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert signatures["serving_default"]["method_name"] == "tensorflow/serving/predict"
    _, models, _ = client.ask("GET", "/v1/models")
    assert [model["name"] for model in models["models"]] == ["echo", "scale"]


def test_page_of_other_site_may_read_version(client):
    origin = {"Origin": "https://page.example"}
    status, _, headers = client.ask("OPTIONS", "/v1/models/scale:predict", **origin)
    assert (status, headers["access-control-allow-origin"]) == (200, "*")
    _, _, headers = client.ask("POST", "/v1/models/scale:predict", {"inputs": [1]}, **origin)
    assert "x-millpond-model-version" in headers["access-control-expose-headers"]


def test_pages_and_swaps_keep_their_paths(client):
    assert client.ask("GET", "/v1/swaps")[0] == 200
    assert client.ask("GET", "/v1/page")[0] == 200
