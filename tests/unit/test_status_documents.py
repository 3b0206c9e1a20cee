"""The documents of the data plane are what Python answers to the same question."""

import json
from collections.abc import Callable, Sequence

import pytest
from starlette.testclient import TestClient

from serving.base.errors import StatusCode
from serving.base.name_text import listed
from serving.core.servable import AVAILABLE, END, LOADING, Health, LoadStage, Routing, ServableId
from serving.core.servable import ServableState as State
from serving.core.servable import ServableStatus as Status
from serving.http.app import HttpSettings, make_http_app
from serving.http.health_routes import health_routes
from serving.kserve.inference_api import InferenceApi
from serving.kserve.questions import InferenceQuestions
from serving.kserve.repository import Repository
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import UNLOADED_SECONDS_MAX, StateMonitor
from serving.manager.stream import StreamState
from serving.manager.streams import Streams
from serving.rest.asgi import PrefixRouter
from serving.rest.model_api import ModelApi, ModelQuestions
from serving.rpc.health import HealthReporter
from serving.rpc.model_service import ModelService
from serving.server.status_documents import StatusDocuments
from serving.source.notes import Note
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.parts import FakeServedModels
from tests.unit.fakes.requests import FakeRequestStatistics
from tests.unit.fakes.selection import FakeSelection
from tests.unit.fakes.servables import FakeServable, FakeServingMap
from tests.unit.fakes.servers import FakeGrpcServer
from tests.unit.signatures import mixed_signatures

NAMES = ("m", "a/b é")
FAILED = Health(StatusCode.DATA_LOSS, 'bad "checksum" é')
STRAY = Note.of("stray_entry", name="tmp")


class SignedStreams(Streams):
    """Each AVAILABLE version of the monitor has signatures, but for version 9."""

    def __init__(self, monitor: StateMonitor) -> None:
        super().__init__()
        self._monitor = monitor

    def servable(self, servable_id: ServableId) -> FakeServable | None:
        if servable_id.version not in self._monitor.available_versions(servable_id.name):
            return None
        servable = FakeServable(servable_id)
        servable.signatures = b"" if servable_id.version == 9 else mixed_signatures()
        return servable


class NotedModels(FakeServedModels):
    def __init__(self, names: Sequence[str], publisher: NotePublisher) -> None:
        super().__init__(names)
        self._publisher = publisher

    def notes(self, name: str) -> list[Note]:
        return list(self._publisher.source_notes(name))


class World:
    """A server of two models, as Python sees it and as the data plane was told."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.monitor = StateMonitor(self.clock)
        self.streams = SignedStreams(self.monitor)
        self.notes = NotePublisher(FakeServingMap(), self.monitor.versions)
        self.served = NotedModels(NAMES, self.notes)
        self.health = HealthReporter(NAMES, self.monitor)
        self.grpc = FakeGrpcServer()
        self.documents = StatusDocuments(
            self.grpc,
            names=NAMES,
            monitor=self.monitor,
            streams=self.streams,
            notes=self.notes,
            health=self.health,
            status_error=StatusError,
            server_version="1.2.3",
        )
        self.monitor.add_listener(lambda status: self.health.model_changed(status.id.name))
        self.python = TestClient(self._application())

    def record(self, version: int, state: State, name: str = "m", **more: object) -> None:
        now_ns = self.clock.now_ns()
        self.monitor.record(
            Status(id=ServableId(name, version), state=state, state_changed_ns=now_ns, **more)  # type: ignore[arg-type]
        )

    def route(self, name: str = "m", **routing: object) -> None:
        state = StreamState(name=name, routing=Routing(**routing), is_idle=False)  # type: ignore[arg-type]
        self.streams.replace(state)
        self.streams.tell_routing(name)

    def reason(self) -> str:
        """The reason of `/readyz`."""
        return str(json.loads(self.grpc.http_documents["/readyz"][1])["reason"])

    def _application(self) -> PrefixRouter:
        questions = InferenceQuestions(
            served=self.served,
            monitor=self.monitor,
            streams=self.streams,
            health=self.health,
            requests=FakeRequestStatistics(),
            repository=Repository(FakeSelection(), self.monitor, self.served, is_allowed=True),
            server_version="1.2.3",
        )
        service = ModelService(self.monitor, self.served, self.streams)
        models = ModelQuestions(
            get_model_status=service.get_model_status, served=self.served, monitor=self.monitor
        )
        routes = health_routes(self.health.view, self.served.notes)
        return PrefixRouter(
            {"/v1/models": ModelApi(models), "/v2": InferenceApi(questions, 30.0)},
            make_http_app(routes, HttpSettings()),
        )


def swapped(world: World) -> None:
    world.record(1, AVAILABLE)
    world.route(default_version=1, labels={"stable": 1})
    world.record(2, LOADING, stage=LoadStage.RESTORE)
    world.record(2, AVAILABLE)
    world.route(default_version=2, labels={"stable": 2, "é x": 2, "7": 2})
    world.record(1, State.UNLOADING)
    world.record(1, END)


def failed(world: World) -> None:
    world.record(1, END, health=FAILED)


def awaited_label(world: World) -> None:
    world.record(1, AVAILABLE)
    world.record(2, LOADING)
    world.route(default_version=1, awaited_labels={"next": 2})


def version_zero(world: World) -> None:
    world.record(0, AVAILABLE)
    world.record(1, LOADING, stage=LoadStage.INIT)
    world.route(default_version=0)


def odd_name(world: World) -> None:
    world.record(1, AVAILABLE, name="a/b é")
    world.record(9, AVAILABLE, name="a/b é")
    world.route("a/b é", default_version=1)
    world.record(3, AVAILABLE)


def draining(world: World) -> None:
    swapped(world)
    world.health.drain()


def noted(world: World) -> None:
    world.notes.set_models(NAMES)
    world.notes.set_source_notes("m", [STRAY])


def forgotten(world: World) -> None:
    world.record(1, END)
    world.record(2, AVAILABLE)
    world.clock.advance(UNLOADED_SECONDS_MAX + 1)
    world.monitor.statuses()


def reordered(world: World) -> None:
    swapped(world)
    names = ("new", *reversed(NAMES))
    world.served.configured = names
    world.health.set_models(names)
    world.documents.set_models(names)


SITUATIONS: tuple[Callable[[World], None], ...] = (
    *(
        swapped,
        failed,
        awaited_label,
        version_zero,
        odd_name,
        draining,
        noted,
        forgotten,
        reordered,
    ),
)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_documents_are_what_python_answers(situation: Callable[[World], None]) -> None:
    world = World()
    situation(world)
    for path, (status, body) in world.grpc.http_documents.items():
        answer = world.python.get(path)
        assert (answer.status_code, answer.content) == (status, body), path
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"


def test_each_name_of_a_version_has_a_document() -> None:
    world = World()
    swapped(world)
    status = {"", "/versions/0", "/versions/1", "/versions/2", "/labels/stable"}
    metadata = {"", "/versions/2", "/versions/stable", "/versions/%C3%A9%20x"}
    expected = {
        *(f"/v1/models/m{end}" for end in (*status, "/labels/7", "/labels/%C3%A9%20x")),
        *(f"/v2/models/m{end}" for end in metadata),
        *(f"/v2/models/m{end}/ready" for end in (*metadata, "/versions/1")),
    }
    paths = {path for path in world.grpc.http_documents if path.startswith(("/v1", "/v2/models"))}
    assert {path for path in paths if "%2F" not in path} == expected


def test_version_is_ready_between_state_and_status() -> None:
    world = World()
    world.record(1, AVAILABLE)
    world.record(2, LOADING)
    state = StreamState(name="m", routing=Routing(default_version=2), is_idle=False)
    vars(state)["ready_versions"] = (1, 2)
    world.streams.replace(state)
    world.streams.tell_routing("m")
    assert world.grpc.http_documents["/v2/models/m/ready"][0] == 200


def test_removed_model_leaves_only_its_status() -> None:
    world = World()
    swapped(world)
    world.documents.set_models(["a/b é"])
    left = {path for path in world.grpc.http_documents if "els/m" in path or "=m" in path}
    assert left
    assert all(path.startswith("/v1/models/m") for path in left)
    assert b'"m"' not in world.grpc.http_documents["/readyz"][1]


def test_an_equal_document_is_not_pushed_again() -> None:
    world = World()
    swapped(world)
    world.grpc.http_documents.clear()
    world.documents.model_changed("m")
    world.documents.model_changed("a/b é")
    assert not world.grpc.http_documents


def test_a_change_of_a_model_pushes_one_item() -> None:
    world = World()
    names = [*NAMES, *(f"other{number}" for number in range(300))]
    world.documents.set_models(names)
    pushed = len(world.grpc.list_changes)
    world.record(1, LOADING, stage=LoadStage.RESTORE)
    ((path, items),) = world.grpc.list_changes[pushed:]
    assert (path, list(items)) == ("/readyz", [0])
    item = items[0]
    assert item == b'"m":{"is_ready":false,"reason":"version 1 is LOADING (restore)"}'
    body = world.grpc.http_documents["/readyz"][1]
    assert list(json.loads(body)["models"]) == names
    assert item in body


def test_readiness_and_its_reason_change_at_once() -> None:
    world = World()
    for name in ("m", "a/b é"):
        world.record(1, LOADING, name=name)
        world.record(1, AVAILABLE, name=name)
    world.record(1, END)
    seen = [json.loads(body) for _, body in world.grpc.seen_lists]
    waits = [body for body in seen if not body["is_ready"]]
    assert len(waits) >= 4
    for body in waits:
        waiting = [name for name, model in body["models"].items() if not model["is_ready"]]
        assert body["reason"] == f"no version is available of: {listed(waiting)}"


def test_readiness_names_waiting_models_in_their_order() -> None:
    world = World()
    for name in ("new", "m", "a/b é"):
        world.record(1, AVAILABLE, name=name)
    names = ("new", *reversed(NAMES))
    world.served.configured = names
    world.health.set_models(names)
    world.documents.set_models(names)
    for name in ("m", "new", "a/b é"):
        world.record(1, END, name=name)
    assert world.reason() == "no version is available of: new, a/b é, m"
    world.record(2, AVAILABLE, name="new")
    assert world.reason() == "no version is available of: a/b é, m"


def test_a_bug_leaves_the_answers_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    swapped(world)
    monkeypatch.setattr("serving.server.status_documents.model_documents", None)
    world.record(3, LOADING)
    assert not any(path.startswith("/v1/models/m") for path in world.grpc.http_documents)
    assert b'"m":{"is_ready":true}' in world.grpc.http_documents["/readyz"][1]
