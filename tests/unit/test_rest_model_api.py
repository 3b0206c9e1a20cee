import asyncio
import json
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from serving.base.errors import StatusCode
from serving.base.protos import get_model_metadata_pb2
from serving.core.servable import AVAILABLE, Routing, ServableId, ServableStatus
from serving.http.app import HttpSettings, make_http_app
from serving.manager.stream import StreamState
from serving.manager.streams import Streams
from serving.rest.asgi import PrefixRouter
from serving.rest.bridge import RestBridge, RestTarget
from serving.rest.model_api import ModelApi, ModelQuestions
from serving.rpc.model_service import ModelService
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.parts import FakeMonitor, FakeServedModels
from tests.unit.fakes.rest import FakeBridge
from tests.unit.fakes.servers import FakeEndedRequest

BODY = b'{"instances": [1, 2]}'
ERROR = {"error": "m has no such version"}
STATUSES = [ServableStatus(id=ServableId("m", 3), state=AVAILABLE)]


class ModelsOfTwoNames(FakeServedModels):
    def base_path(self, name: str) -> str | None:
        return "/models/new" if name == "new" else None


def metadata(model: str, version: int | None, label: str | None) -> bytes:
    if model != "m":
        raise StatusError(5, f"Servable not found for request: Latest({model})")
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = model
    response.model_spec.version.value = 3
    signatures = get_model_metadata_pb2.SignatureDefMap()
    signature = signatures.signature_def["serving_default"]
    signature.inputs["x"].name = "x:0"
    signature.inputs["x"].dtype = 1
    signature.inputs["x"].tensor_shape.dim.add().size = -1
    response.metadata["signature_def"].Pack(signatures)
    serialized: bytes = response.SerializeToString()
    return serialized


def make_app(bridge: RestBridge, settings: HttpSettings) -> PrefixRouter:
    monitor, served = FakeMonitor(STATUSES), ModelsOfTwoNames(["m", "new"])
    streams = Streams()
    streams.replace(StreamState(name="m", routing=Routing(labels={"stable": 3}), is_idle=False))
    service = ModelService(monitor, served, streams)
    questions = ModelQuestions(
        get_model_status=service.get_model_status,
        get_model_metadata=metadata,
        served=served,
        monitor=monitor,
        status_error=StatusError,
    )
    models = ModelApi(bridge, questions, settings)
    other = Route("/v1/page", lambda request: Response("the page"))
    otherwise: Starlette = make_http_app([other, Mount("/v1", models)], HttpSettings())
    return PrefixRouter({"/v1/models": models}, otherwise)


@pytest.fixture
def bridge():
    return FakeBridge()


@pytest.fixture
def client(bridge) -> Iterator[TestClient]:
    settings = HttpSettings(timeout_seconds=0.05, body_bytes_max=1_000)
    with TestClient(make_app(bridge, settings)) as client:
        yield client


@pytest.fixture
def cors_client(bridge) -> Iterator[TestClient]:
    with TestClient(make_app(bridge, HttpSettings(has_cors=True))) as client:
        yield client


def test_predict_passes_body_and_names_version(client, bridge):
    response = client.post("/v1/models/m:predict", content=BODY)
    assert (response.status_code, response.content) == (200, b'{"predictions": [2]}')
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-millpond-model-name"] == "m"
    assert response.headers["x-millpond-model-version"] == "3"
    assert "connection" not in response.headers
    assert bridge.asked == [(RestTarget("RestPredict", "m"), BODY)]


def test_model_name_outside_latin_is_encoded_in_header(client):
    response = client.post("/v1/models/%C3%A4%20b:predict", content=BODY)
    assert response.headers["x-millpond-model-name"] == "%C3%A4%20b"


def test_compressed_answer_has_header(client, bridge):
    bridge.answer = FakeEndedRequest(1, body=b"\x1f\x8b", is_gzip=True)
    with client.stream("POST", "/v1/models/m:predict", content=BODY) as response:
        assert response.headers["content-encoding"] == "gzip"
        assert response.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (StatusCode.CANCELLED, 499),
        (StatusCode.UNKNOWN, 500),
        (StatusCode.INVALID_ARGUMENT, 400),
        (StatusCode.DEADLINE_EXCEEDED, 504),
        (StatusCode.NOT_FOUND, 404),
        (StatusCode.ALREADY_EXISTS, 409),
        (StatusCode.PERMISSION_DENIED, 403),
        (StatusCode.RESOURCE_EXHAUSTED, 429),
        (StatusCode.FAILED_PRECONDITION, 400),
        (StatusCode.ABORTED, 409),
        (StatusCode.OUT_OF_RANGE, 400),
        (StatusCode.UNIMPLEMENTED, 501),
        (StatusCode.INTERNAL, 500),
        (StatusCode.UNAVAILABLE, 503),
        (StatusCode.DATA_LOSS, 500),
        (StatusCode.UNAUTHENTICATED, 401),
    ],
)
def test_a_failure_has_the_status_of_its_code(client, bridge, code, status):
    bridge.answer = FakeEndedRequest(1, code=int(code), message=ERROR["error"], version=None)
    response = client.post("/v1/models/m/versions/9:predict", content=BODY)
    assert (response.status_code, response.json()) == (status, ERROR)
    assert response.headers["content-type"] == "application/json"
    assert "x-millpond-model-version" not in response.headers
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_refused_request_is_not_retried(client, bridge):
    code = int(StatusCode.RESOURCE_EXHAUSTED)
    bridge.answer = FakeEndedRequest(1, code=code, message="too large", version=3)
    response = client.post("/v1/models/m:predict", content=BODY)
    assert response.status_code == 429
    assert "retry-after" not in response.headers


def test_answer_cancelled_by_stop_suggests_retry(client, bridge):
    bridge.answer = FakeEndedRequest(1, code=int(StatusCode.CANCELLED), message="gone", version=3)
    assert client.post("/v1/models/m:predict", content=BODY).status_code == 499
    bridge.drain()
    response = client.post("/v1/models/m:predict", content=BODY)
    assert response.status_code == 503
    assert "use another server" in response.json()["error"]
    assert response.headers["connection"] == "close"


def test_a_failure_of_a_version_names_it(client, bridge):
    bridge.answer = FakeEndedRequest(1, code=3, message="no", version=3)
    response = client.post("/v1/models/m:predict", content=BODY)
    assert response.headers["x-millpond-model-version"] == "3"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/models/m:predict"),
        ("GET", "/v1/models/m"),
        ("GET", "/v1/models/none"),
        ("POST", "/v1/models/m:nothing"),
    ],
)
def test_answer_during_drain_closes_connection(client, bridge, method, path):
    assert "connection" not in client.request(method, path, content=BODY).headers
    bridge.drain()
    assert client.request(method, path, content=BODY).headers["connection"] == "close"


def test_a_malformed_path_is_refused_and_names_itself(client, bridge):
    response = client.post("/v1/models/m:guess", content=BODY)
    message = (
        "Malformed request: POST /v1/models/m:guess; POST a path that ends with :predict, :classify "
        "or :regress"
    )
    assert (response.status_code, response.json()) == (400, {"error": message})
    assert bridge.asked == []


def test_a_large_body_is_refused_before_it_is_read(client, bridge):
    async def main() -> list[dict[str, object]]:
        sent: list[dict[str, object]] = []

        async def receive():
            pytest.fail("the body was read")

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/models/m:predict"}
        scope["headers"] = [(b"content-length", b"1001")]  # type: ignore[assignment]
        await client.app(scope, receive, send)
        return sent

    head, sent_body = asyncio.run(main())
    assert head["status"] == 413
    assert (b"connection", b"close") in head["headers"]  # type: ignore[operator]
    assert "larger than 1000 bytes" in json.loads(sent_body["body"])["error"]  # type: ignore[arg-type]


def test_large_unsized_body_is_refused_at_limit(client, bridge):
    response = client.post("/v1/models/m:predict", content=iter([b"x" * 600, b"x" * 600]))
    assert response.status_code == 413
    assert bridge.asked == []


def test_a_body_in_pieces_is_put_together(client, bridge):
    client.post("/v1/models/m:predict", content=iter([b"abc", b"", b"def"]))
    assert bridge.asked[0][1] == b"abcdef"


def test_a_body_that_does_not_come_ends_the_wait(client, bridge):
    async def main() -> list[dict[str, object]]:
        sent: list[dict[str, object]] = []

        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/models/m:predict", "headers": []}
        await client.app(scope, receive, send)
        return sent

    head, _ = asyncio.run(main())
    assert head["status"] == 504
    assert bridge.asked == []


def test_a_bug_is_answered_and_logged(client, bridge):
    bridge.error = RuntimeError("no")
    response = client.post("/v1/models/m:predict", content=BODY)
    assert response.status_code == 500
    assert response.json() == {
        "error": "RuntimeError in /v1/models/m:predict; see the server's log"
    }


def test_status_is_tensorflow_servings(client):
    response = client.get("/V1/models/m/versions/3")
    assert response.json() == {
        "model_version_status": [
            {
                "version": "3",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    assert client.get("/v1/models/m/labels/stable").json() == response.json()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models/none", 404),
        ("/v1/models/new", 404),
        ("/v1/models/m/versions/4", 404),
        ("/v1/models/m/labels/none", 400),
        ("/v1/models/none/metadata", 404),
    ],
)
def test_missing_resource_is_error_with_reason(client, path, status):
    response = client.get(path)
    assert response.status_code == status
    assert response.json()["error"]


def test_metadata_is_tensorflow_servings(client):
    x = {
        "name": "x:0",
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
    }
    assert client.get("/v1/models/m/metadata").json() == {
        "model_spec": {"name": "m", "signature_name": "", "version": "3"},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "serving_default": {
                        "inputs": {"x": x},
                        "outputs": {},
                        "method_name": "",
                        "defaults": {},
                    }
                }
            }
        },
    }


def test_all_models_are_listed_even_empty_ones(client):
    models = client.get("/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["m", "new"]
    assert models[0]["model_version_status"][0]["version"] == "3"
    assert models[1]["model_version_status"] == []


def test_head_has_the_length_of_get_and_no_body(client):
    response = client.head("/v1/models/m")
    assert response.status_code == 200
    assert int(response.headers["content-length"]) == len(client.get("/v1/models/m").content)


def test_cors_headers_are_on_every_answer_if_enabled(cors_client, client):
    for response in (
        cors_client.post("/v1/models/m:predict", content=BODY),
        cors_client.get("/v1/models/none"),
        cors_client.options("/v1/models/m:predict", headers={"Origin": "https://page.example"}),
    ):
        assert response.headers["access-control-allow-origin"] == "*"
        assert "x-millpond-model-version" in response.headers["access-control-expose-headers"]
    without = client.options("/v1/models/m:predict", headers={"Origin": "https://page.example"})
    assert without.status_code == 200
    assert "access-control-allow-origin" not in without.headers


@pytest.mark.parametrize("headers", [{}, {"Origin": "file://x"}])
def test_a_preflight_without_an_origin_is_refused(client, headers):
    assert client.options("/v1/models/m:predict", headers=headers).status_code == 400


@pytest.mark.parametrize(
    "path", ["/v1/models:predict", "/v1/modelsx", "/v1/none", "/v1/MODELS/m/x"]
)
def test_other_paths_below_v1_are_malformed(client, path):
    response = client.get(path)
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"Malformed request: GET {path}; ")


def test_other_routes_below_v1_are_answered_by_theirs(client):
    assert client.get("/v1/page").text == "the page"


@pytest.mark.parametrize("path", ["/v2/models/m", "/", "/v1x/models/m"])
def test_other_paths_are_the_applications_behind(client, path):
    assert client.get(path).json() == {"error": f"nothing is at {path}"}
