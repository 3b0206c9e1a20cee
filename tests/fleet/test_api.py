import json
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from fleet.config.config import OPERATION_PATH, STATUS_PATH
from fleet.files.registry import REGISTRY_PATH
from fleet.http.api import FleetApi
from fleet.http.operator_door import OperatorEntry
from fleet.lead.coordinator import Coordinator
from fleet.rollout.reports import ServerReport
from fleet.rollout.state import FleetState, ModelState
from serving.base.errors import Unavailable
from serving.http.app import HttpSettings, make_http_app
from tests.fleet.fakes.state_stores import MemoryStore
from tests.fleet.worlds.fleet import MODEL, SETTINGS, serving
from tests.fleet.worlds.leads import lead_of
from tests.unit.fakes.clocks import FakeClock

Reply = dict[str, Any]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def client(store: MemoryStore) -> TestClient:
    """A coordinator that has begun a rollout of version 2."""
    clock = FakeClock()
    coordinator = Coordinator(store, lambda grants: None, SETTINGS, clock)
    coordinator.set_servers(["a", "b"])
    for name in ("a", "b"):
        report = ServerReport(models={MODEL: serving(1, found=frozenset({1, 2}))})
        coordinator.receive(name, report)
    coordinator.step()
    api = FleetApi(lead_of(coordinator, registry='{"servers": []}'), SETTINGS, clock)
    return TestClient(OperatorEntry(make_http_app(api.routes, HttpSettings())))


def operate(client: TestClient, **request: object) -> tuple[int, Reply]:
    reply = client.post(OPERATION_PATH, content=json.dumps(request))
    return reply.status_code, reply.json()


def test_status_is_served(client: TestClient) -> None:
    status = client.get(STATUS_PATH).json()
    assert status["models"][MODEL]["rollout"]["version"] == 2
    assert len(status["servers"]) == 2


def test_registry_is_served(client: TestClient) -> None:
    assert client.get(REGISTRY_PATH).json() == {"servers": []}


def test_abort_blocks_with_its_reason(client: TestClient) -> None:
    code, status = operate(client, operation="abort", model=MODEL, reason="wrong")
    assert code == 200
    (row,) = status["models"][MODEL]["blocked_versions"]
    assert (row["version"], row["reason"], row["by"]) == (2, "wrong", "operator")


def test_blocked_version_is_allowed_again(client: TestClient) -> None:
    operate(client, operation="abort", model=MODEL)
    _, status = operate(client, operation="allow", model=MODEL, version=2)
    assert status["models"][MODEL]["blocked_versions"] == []


@pytest.mark.parametrize("operation", ["pause", "resume", "promote", "rollback"])
def test_operation_is_done(client: TestClient, operation: str) -> None:
    assert operate(client, operation=operation, model=MODEL)[0] == 200


@pytest.mark.parametrize(
    ("request_values", "code"),
    [
        ({"operation": "stop", "model": MODEL}, 400),
        ({"operation": "abort"}, 400),
        ({"operation": "allow", "model": MODEL}, 400),
        ({"operation": "allow", "model": MODEL, "version": 9}, 400),
        ({"operation": "abort", "model": "other"}, 404),
    ],
)
def test_wrong_operation_is_refused(client: TestClient, request_values: Reply, code: int) -> None:
    status, reply = operate(client, **request_values)
    assert status == code
    assert reply["error"]


def test_request_beside_the_door_may_not_operate(client: TestClient) -> None:
    beside = TestClient(client.app._app)  # type: ignore[attr-defined]
    code, reply = operate(beside, operation="abort", model=MODEL)
    assert (code, "[coordinator] operators" in reply["error"]) == (403, True)
    status = beside.get(STATUS_PATH).json()
    assert status["models"][MODEL]["rollout"] is not None


def test_page_of_a_browser_may_not_operate(client: TestClient) -> None:
    body = json.dumps({"operation": "abort", "model": MODEL})
    reply = client.post(OPERATION_PATH, content=body, headers={"Origin": "http://evil"})
    assert reply.status_code == 403
    assert client.get(STATUS_PATH).json()["models"][MODEL]["rollout"] is not None


def test_operation_without_room_is_unavailable(client: TestClient, store: MemoryStore) -> None:
    store.is_full = True
    code, reply = operate(client, operation="abort", model=MODEL)
    assert (code, "No space" in reply["error"]) == (503, True)


def test_status_leaves_the_event_loop_free() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def hanging() -> Coordinator:
        asked.set()
        assert may_answer.wait(20)
        raise Unavailable("no coordinator")

    lead = lead_of(None, registry="{}")
    lead.coordinator = hanging  # type: ignore[method-assign]
    api = FleetApi(lead, SETTINGS, FakeClock())
    with TestClient(make_http_app(api.routes, HttpSettings())) as client:
        waiting = threading.Thread(target=client.get, args=(STATUS_PATH,))
        waiting.start()
        assert asked.wait(20)
        # It would wait for the status if that were on the loop.
        assert client.get(REGISTRY_PATH).json() == {}
        may_answer.set()
        waiting.join(20)


def test_rollback_without_files_is_refused() -> None:
    state = FleetState(models={MODEL: ModelState(stable=2, previous=1)})
    coordinator = Coordinator(
        MemoryStore(state.as_json()), lambda grants: None, SETTINGS, FakeClock()
    )
    coordinator.set_servers(["a"])
    coordinator.receive("a", ServerReport(models={MODEL: serving(2, found=frozenset({2}))}))
    api = FleetApi(lead_of(coordinator), SETTINGS, FakeClock())
    client = TestClient(OperatorEntry(make_http_app(api.routes, HttpSettings())))
    code, reply = operate(client, operation="rollback", model=MODEL)
    assert (code, "version 1 is on 0 of 1 servers" in reply["error"]) == (400, True)
    assert coordinator.state.models[MODEL].stable == 2
