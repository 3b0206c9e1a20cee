"""The page of a fleet over HTTP, without a socket."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from fleet.http.page_routes import (
    PAGE_PATH,
    SHOWN_SERVERS_MAX,
    fleet_page_files,
    fleet_page_routes,
    page_document,
)
from fleet.http.status import fleet_status
from fleet.rollout.reports import ServerReport, Sighting
from fleet.rollout.state import FleetRollout, FleetState, ModelState
from serving.base.clock import NS_PER_SECOND
from tests.fleet.worlds.fleet import MODEL, SETTINGS, serving

FOUND = frozenset({1, 2})
NOW_NS = 100 * NS_PER_SECOND


def status_of(model: ModelState, count: int, *, lost: str = "", draining: str = "") -> Any:
    sightings = {
        name: Sighting(
            ServerReport(models={MODEL: serving(1, found=FOUND)}, is_draining=name == draining),
            0 if name == lost else NOW_NS,
        )
        for name in (f"s{number:03}" for number in range(count))
    }
    return fleet_status(FleetState(models={MODEL: model}), {}, sightings, SETTINGS, NOW_NS)


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=fleet_page_routes(lambda: status_of(ModelState(), 2))))


def test_page_allows_only_its_own_scripts(client: TestClient) -> None:
    for path in ("/", PAGE_PATH):
        policy = client.get(path, headers={"Accept": "text/html"}).headers[
            "content-security-policy"
        ]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_page_has_the_files_that_it_names(client: TestClient) -> None:
    for name in ("fleet.js", "fleet.css", "page.css", "dom.js", "format.js", "icon.svg", "poll.js"):
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/static/page.js").status_code == 404
    assert client.get("/static/../page_routes.py").status_code == 404


def test_page_files_name_no_other_host() -> None:
    for name, file in fleet_page_files().items():
        text = file.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, f"{name} must work without a network"


def test_poll_is_not_kept(client: TestClient) -> None:
    response = client.get(PAGE_PATH)
    assert response.headers["cache-control"] == "no-store"
    assert response.json()["server_count"] == 2


def test_large_fleet_is_shown_in_part() -> None:
    rollout = FleetRollout(version=2, members={"s250": 0}, failed_servers=frozenset({"s260"}))
    status = status_of(ModelState(stable=1, rollout=rollout), 300, lost="s200", draining="s280")
    page = page_document(status)
    names = [row["name"] for row in page["servers"]]
    assert len(names) == SHOWN_SERVERS_MAX
    assert names[:5] == ["s200", "s280", "s250", "s260", "s000"]
    assert page["server_count"] == 300
    assert page["server_states"] == {"lost": 1, "draining": 1, "live": 298}
    shown = page["models"][MODEL]["rollout"]
    assert (shown["setback_count"], "members" in shown) == (1, False)
    assert status["models"][MODEL]["rollout"]["members"] == ["s250"]
