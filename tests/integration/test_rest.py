"""REST over a real server: what is beside the documented bodies of `drop_in/test_rest.py`."""

import http.client
import json
from contextlib import closing
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS
from tests.integration.exports import ScaleModel
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.rest_clients import RestClient
from tests.integration.steady_clients import SteadyThreads

CONFIG = (
    "model_version_policy { specific { versions: 2 versions: 3 } } "
    'version_labels { key: "old" value: 2 }'
)
X = np.array([1, 2, 3], np.float32)
VERSION_COUNT = 4


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {"rest_api_enable_cors_support": True}


@pytest.fixture(scope="module")
def server(module_host: ModelHost, scale_model: ScaleModel) -> ModelServer:
    scale = module_host.model(name="scale", config=CONFIG)
    for version in (2, 3):
        scale_model.write(scale.base_path, version)
    for version in (2, 3):
        scale.wait_until_available(version)
    return scale.server


@pytest.fixture
def client(server: ModelServer) -> RestClient:
    return RestClient(server)


@pytest.mark.parametrize(
    ("path", "outputs", "version"),
    [
        ("scale:predict", {"y": [6, 9], "version": 3}, "3"),
        ("scale/versions/2:predict", {"y": [4, 6], "version": 2}, "2"),
        ("scale/labels/old:PREDICT", {"y": [4, 6], "version": 2}, "2"),
    ],
)
def test_reply_names_the_version_that_answered(client, path, outputs, version):
    status, answer, headers = client.ask("POST", f"/v1/models/{path}", {"inputs": [1, 2]})
    assert (status, answer) == (200, {"outputs": outputs})
    assert headers["x-millpond-model-version"] == version
    assert headers["content-type"] == "application/json"


def test_predict_compresses_large_answer_if_accepted(client):
    headers = {"Accept-Encoding": "gzip"}
    body = {"inputs": [1] * 10_000}
    status, answer, got = client.ask("POST", "/v1/models/scale:predict", body, **headers)
    assert (status, answer["outputs"]["y"]) == (200, [6] * 10_000)
    assert got["content-encoding"] == "gzip"


def test_unanswerable_requests_keep_the_connection(client):
    bodies = (
        ("POST", "/v1/models/none:predict", {"instances": [1]}, 404),
        ("POST", "/v1/models/scale:predict", b"{", 400),
        ("GET", "/v1/models/scale:predict", None, 400),
        ("OPTIONS", "/v1/models/scale:predict", None, 400),
        ("GET", "/v1/nothing", None, 400),
    )
    for method, path, body, status in bodies:
        got, answer, _ = client.ask(method, path, body)
        assert got == status
        assert list(answer) == ["error"]
        assert client.ask("GET", "/v1/models/scale")[0] == 200


def test_body_above_limit_is_refused_before_sending(server: ModelServer):
    address = urlsplit(server.url).netloc
    with closing(http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)) as connection:
        connection.putrequest("POST", "/v1/models/scale:predict")
        connection.putheader("Content-Length", str(2**40))
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 413
        assert "send less at a time" in json.loads(response.read())["error"]


def test_page_of_other_site_may_read_version(client):
    origin = {"Origin": "https://page.example"}
    status, _, headers = client.ask("OPTIONS", "/v1/models/scale:predict", **origin)
    assert (status, headers["access-control-allow-origin"]) == (200, "*")
    _, _, headers = client.ask("POST", "/v1/models/scale:predict", {"inputs": [1]}, **origin)
    assert "x-millpond-model-version" in headers["access-control-expose-headers"]


def test_pages_and_swaps_keep_their_paths(client):
    assert client.ask("GET", "/v1/swaps")[0] == 200
    assert client.ask("GET", "/v1/page")[0] == 200


class Requests(SteadyThreads):
    """Threads that post the same body over and over, each on its own connection."""

    def __init__(self, model: HostedModel) -> None:
        super().__init__(count=4)
        self._url = model.server.url
        self._path = f"/v1/models/{model.name}:predict"

    def run(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=TIMEOUT_SECONDS) as http:
            while not self.is_stopping:
                self.pause()
                response = http.post(self._path, json={"inputs": X.tolist()})
                if response.status_code != 200:
                    self.failures.append(response.text)
                    return
                self._check(int(response.headers["x-millpond-model-version"]), response.json())

    def _check(self, version: int, document: object) -> None:
        expected = {"y": ScaleModel.answer(version, X).tolist(), "version": version}
        if document == {"outputs": expected}:
            self.answer_counts[version] += 1
        else:
            self.failures.append(f"version {version}: {document}")


def test_rest_requests_during_swaps_never_fail(host: ModelHost, scale_model: ScaleModel):
    """Mends: TensorFlow Serving looks up the version twice, for the signature and for the run."""
    model = host.model(prefix="swapped")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    with Requests(model).running() as requests:
        for version in range(1, VERSION_COUNT + 1):
            if version > 1:
                scale_model.write(model.base_path, version)
            requests.wait_for_answers_of(version)
    assert not requests.failures, requests.failures[:3]
    assert set(requests.answer_counts) == set(range(1, VERSION_COUNT + 1))
