"""The form of the same answers over gRPC and over HTTP."""

from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient
from tritonclient.grpc import service_pb2

from serving.base.errors import InvalidArgument, NotFound, Unavailable, Unimplemented
from serving.core.servable import AVAILABLE, END, ServableId, ServableStatus
from serving.kserve.inference_api import InferenceApi
from serving.kserve.inference_service import InferenceService
from serving.kserve.questions import InferenceQuestions, version_number
from serving.kserve.repository import Repository
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.rpc.rare_calls import Waiting
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.parts import FakeHealth, FakeServedModels
from tests.unit.fakes.requests import FakeRequestStatistics
from tests.unit.fakes.selection import FakeSelection
from tests.unit.fakes.servables import FakeServable
from tests.unit.signatures import mixed_signatures

PREFIX = "/inference.GRPCInferenceService/"


class SignedServable(FakeServable):
    def signature_def_map(self) -> bytes:
        return mixed_signatures()


class FakeRoutes(Streams):
    """The default version of m is 3, whose labels are known."""

    default: int | None = 3

    def answering(self, name: str) -> int | None:
        return self.default if name == "m" else None

    def labels(self, name: str) -> Mapping[str, int]:
        return {"stable": 3, "old": 2}

    def servable(self, servable_id: ServableId) -> SignedServable:
        return SignedServable(servable_id)


class World:
    """The model m with version 3 available and 2 unloaded, and the model new without versions."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.monitor = StateMonitor(clock)
        now_ns = clock.now_ns()
        self.monitor.record(
            ServableStatus(id=ServableId("m", 2), state=END, state_changed_ns=now_ns)
        )
        self.monitor.record(ServableStatus(id=ServableId("m", 3), state=AVAILABLE))
        names = ["m", "new"]
        served = FakeServedModels(names)
        self.health = FakeHealth(names, self.monitor)
        self.requests = FakeRequestStatistics()
        self.routes = FakeRoutes()
        self.selection = FakeSelection()
        self.questions = InferenceQuestions(
            served=served,
            monitor=self.monitor,
            streams=self.routes,
            health=self.health,
            requests=self.requests,
            repository=Repository(self.selection, self.monitor, served, is_allowed=True),
            server_version="1.2.3",
        )
        self.handlers = InferenceService(self.questions).handlers
        self.http = TestClient(InferenceApi(self.questions, 30.0))

    def ask(self, method: str, **fields: object) -> Any:
        request = getattr(service_pb2, f"{method}Request")(**fields)
        handler = self.handlers[PREFIX + method]
        wait = (1.0,) if isinstance(handler, Waiting) else ()
        reply = handler(request.SerializeToString(), *wait)
        return getattr(service_pb2, f"{method}Response").FromString(reply)


@pytest.fixture
def world() -> World:
    return World()


def test_readiness_goes_by_version_label_and_drain(world: World) -> None:
    for version, is_ready in {"": True, "3": True, "stable": True, "2": False, "q": False}.items():
        assert world.ask("ModelReady", name="m", version=version).ready is is_ready, version
        path = f"/v2/models/m/versions/{version}/ready" if version else "/v2/models/m/ready"
        assert world.http.get(path).status_code == (200 if is_ready else 503)
    assert not world.ask("ModelReady", name="nowhere").ready
    assert world.http.get("/v2/models/nowhere/ready").status_code == 404
    world.health.is_draining = True
    assert not world.ask("ModelReady", name="m").ready
    assert not world.ask("ServerReady").ready
    assert world.ask("ServerLive").live
    assert world.http.get("/v2/health/ready").status_code == 503
    assert world.http.get("/v2/health/live").status_code == 200


def test_metadata_is_the_same_over_both(world: World) -> None:
    over_grpc = world.ask("ModelMetadata", name="m", version="stable")
    over_http = world.http.get("/v2/models/m/versions/3").json()
    assert over_http["versions"] == list(over_grpc.versions) == ["3"]
    assert [item["name"] for item in over_http["inputs"]] == [
        item.name for item in over_grpc.inputs
    ]
    assert over_http["outputs"][0]["shape"] == list(over_grpc.outputs[0].shape) == [-1, 3]
    assert world.http.get("/v2").json()["version"] == "1.2.3"
    assert world.ask("ServerMetadata").name == "millpond"
    config = world.ask("ModelConfig", name="m").config
    assert world.http.get("/v2/models/m/config").json()["input"][0]["name"] == config.input[0].name


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("nowhere", "", NotFound),
        ("m", "2", NotFound),
        ("m", "beta", NotFound),
        ("m", "9" * 5_000, NotFound),
        ("new", "", Unavailable),
    ],
)
def test_metadata_of_unavailable_model_is_refused(
    world: World, name: str, version: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        world.ask("ModelMetadata", name=name, version=version)


def test_http_index_lists_all_or_only_ready(world: World) -> None:
    rows = world.http.post("/v2/repository/index").json()
    assert [(row["name"], row["state"]) for row in rows] == [
        ("m", "UNAVAILABLE"),
        ("m", "READY"),
        ("new", "UNAVAILABLE"),
    ]
    assert len(world.http.post("/v2/repository/index", json={"ready": True}).json()) == 1
    assert [row.version for row in world.ask("RepositoryIndex", ready=True).models] == ["3"]
    refused = world.http.post("/v2/repository/index", content=b"[")
    assert (refused.status_code, list(refused.json())) == (400, ["error"])


def test_load_and_unload_work_over_both_protocols(world: World) -> None:
    assert world.http.post("/v2/repository/models/m/load").json() == {}
    world.ask("RepositoryModelLoad", model_name="m")
    with pytest.raises(Unavailable):
        world.ask("RepositoryModelUnload", model_name="m")
    assert world.selection.changes == [("m", False), ("m", False), ("m", True)]
    body = {"parameters": {"config": "{}"}}
    assert world.http.post("/v2/repository/models/m/load", json=body).status_code == 501
    with pytest.raises(Unimplemented):
        world.questions.load("m", {"file:1/model": b""}, 1)
    assert len(world.selection.changes) == 3


def test_unparsable_request_is_refused(world: World) -> None:
    with pytest.raises(InvalidArgument, match="not a valid ModelReadyRequest"):
        world.handlers[PREFIX + "ModelReady"](b"\xff")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("12", 12),
        ("", None),
        ("-1", None),
        ("stable", None),
        ("1796022015288487000", 1796022015288487000),
        ("0" * 22 + str(2**63 - 1), 2**63 - 1),
        (str(2**63), None),
        ("9" * 19, None),
        ("9" * 5_000, None),
        ("١", None),
    ],
)
def test_a_version_is_a_number_or_a_label(text: str, number: int | None) -> None:
    assert version_number(text) == number
