from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from serving.core.servable import AVAILABLE, Routing, ServableId, ServableStatus
from serving.http.app import HttpSettings, make_http_app
from serving.manager.stream import StreamState
from serving.manager.streams import Streams
from serving.rest.asgi import PrefixRouter
from serving.rest.model_api import ModelApi, ModelQuestions
from serving.rpc.model_service import ModelService
from tests.unit.fakes.parts import FakeMonitor, FakeServedModels

STATUSES = [ServableStatus(id=ServableId("m", 3), state=AVAILABLE)]


class ModelsOfTwoNames(FakeServedModels):
    def base_path(self, name: str) -> str | None:
        return "/models/new" if name == "new" else None


class BrokenModels(ModelsOfTwoNames):
    @property
    def names(self) -> tuple[str, ...]:
        raise RuntimeError("no")


def make_app(served: FakeServedModels | None = None) -> PrefixRouter:
    monitor, served = FakeMonitor(STATUSES), served or ModelsOfTwoNames(["m", "new"])
    streams = Streams()
    streams.replace(StreamState(name="m", routing=Routing(labels={"stable": 3}), is_idle=False))
    service = ModelService(monitor, served, streams)
    questions = ModelQuestions(
        get_model_status=service.get_model_status,
        served=served,
        monitor=monitor,
    )
    models = ModelApi(questions)
    other = Route("/v1/page", lambda request: Response("the page"))
    otherwise: Starlette = make_http_app([other, Mount("/v1", models)], HttpSettings())
    return PrefixRouter({"/v1/models": models}, otherwise)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(make_app()) as client:
        yield client


def test_a_malformed_path_is_refused_and_names_itself(client):
    response = client.post("/v1/models/m:guess", content=b"{}")
    message = (
        "Malformed request: POST /v1/models/m:guess; POST a path that ends with :predict, :classify "
        "or :regress"
    )
    assert (response.status_code, response.json()) == (400, {"error": message})


def test_a_bug_is_answered_and_logged():
    with TestClient(make_app(BrokenModels())) as client:
        response = client.get("/v1/models")
    assert response.status_code == 500
    assert response.json() == {"error": "RuntimeError in /v1/models; see the server's log"}


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
    ],
)
def test_missing_resource_is_error_with_reason(client, path, status):
    response = client.get(path)
    assert response.status_code == status
    assert response.json()["error"]


def test_all_models_are_listed_even_empty_ones(client):
    models = client.get("/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["m", "new"]
    assert models[0]["model_version_status"][0]["version"] == "3"
    assert models[1]["model_version_status"] == []


def test_head_has_the_length_of_get_and_no_body(client):
    response = client.head("/v1/models/m")
    assert response.status_code == 200
    assert int(response.headers["content-length"]) == len(client.get("/v1/models/m").content)


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
