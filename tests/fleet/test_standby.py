import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from fleet.http.metrics import METRICS_PATH
from fleet.http.operator_door import OperatorEntry
from fleet.http.standby import HEALTH_PATH, StandbyGate
from fleet.lead.coordinator import Coordinator
from fleet.rollout.wave_settings import WaveSettings
from serving.http.app import HttpSettings, json_response, make_http_app
from tests.fleet.fakes.state_stores import MemoryStore
from tests.fleet.worlds.leads import lead_of
from tests.unit.fakes.clocks import FakeClock


class Leader(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        asked = [self.command, self.path, body, self.headers.get("Origin")]
        self.send_response(404 if self.path == "/nothing" else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(asked).encode())


@pytest.fixture
def leader() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Leader)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


async def own(request: Request) -> Response:
    del request
    return json_response("own")


def operator_of(leader: str, operator_port: int | None) -> TestClient:
    """Returns a client at the operators' door of a coordinator that waits."""
    app = make_http_app([Route("/status", own)], HttpSettings())
    gate = StandbyGate(app, lead_of(None, leader=leader), operator_port=operator_port)
    return TestClient(OperatorEntry(gate))


def test_operation_is_not_passed_on_to_another_user(leader: str) -> None:
    refused = operator_of(leader, None).post("/fleet/operations", json={"operation": "pause"})
    assert (refused.status_code, leader in refused.json()["error"]) == (400, True)
    assert operator_of(leader, None).get("/fleet/status").json()[:2] == ["GET", "/fleet/status"]


def test_operation_is_passed_on_to_a_tcp_door(leader: str) -> None:
    port = int(leader.rpartition(":")[2])
    reply = operator_of("127.0.0.1:9", port).post("/fleet/operations", content=b"{}")
    assert reply.json()[:3] == ["POST", "/fleet/operations", "{}"]


def client_of(leader: str, *, leads: bool = False) -> TestClient:
    app = make_http_app([Route("/status", own), Route(METRICS_PATH, own)], HttpSettings())
    coordinator = Coordinator(MemoryStore(), lambda grants: None, WaveSettings(), FakeClock())
    lead = lead_of(coordinator if leads else None, leader=leader)
    return TestClient(StandbyGate(app, lead))


def test_waiting_coordinator_has_its_own_metrics() -> None:
    assert client_of("nowhere:1").get(METRICS_PATH).json() == "own"


def test_leading_coordinator_answers_itself() -> None:
    assert client_of("nowhere:1", leads=True).get("/status").json() == "own"


def test_standby_passes_requests_on(leader: str) -> None:
    client = client_of(leader)
    assert client.get("/status?a=1").json() == ["GET", "/status?a=1", "", None]
    reply = client.post("/op", content='{"a": 1}', headers={"Origin": "http://page"})
    assert reply.json() == ["POST", "/op", '{"a": 1}', "http://page"]
    assert client.get("/nothing").status_code == 404


def test_standby_without_a_leader_is_unavailable() -> None:
    reply = client_of("").get("/status")
    assert reply.status_code == 503
    assert "no coordinator leads" in reply.json()["error"]


def test_leader_that_is_down_is_unavailable() -> None:
    reply = client_of("127.0.0.1:1").get("/status")
    assert reply.status_code == 503
    assert "127.0.0.1:1" in reply.json()["error"]


def test_request_is_passed_on_once(leader: str) -> None:
    reply = client_of(leader).get("/status", headers={"millpond-passed-on": "1"})
    assert reply.status_code == 503


def test_large_body_is_not_passed_on(leader: str) -> None:
    assert client_of(leader).post("/op", content=b"a" * (2**20 + 1)).status_code == 413


@pytest.mark.parametrize("leads", [True, False])
def test_health_is_that_of_the_process(leads: bool) -> None:
    assert client_of("", leads=leads).get(HEALTH_PATH).status_code == 200
