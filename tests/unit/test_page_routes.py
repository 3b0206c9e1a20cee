"""The live page over HTTP, without a socket."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from serving.base.errors import StatusCode
from serving.core.servable import END, Health
from serving.data_plane.request_statistics import HistoryPoint
from serving.monitoring.page_data import PageData
from serving.monitoring.page_routes import PAGE_DIRECTORY, page_routes, read_page_files
from tests.unit.fakes.monitored import FakeParts
from tests.unit.fakes.page import status


@pytest.fixture
def scene() -> FakeParts:
    return FakeParts()


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def client(scene: FakeParts) -> TestClient:
    page = PageData(scene.parts())
    return TestClient(Starlette(routes=page_routes(page)), headers=BROWSER)


def test_page_allows_only_its_own_scripts(client: TestClient) -> None:
    response = client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/static/uplot/uPlot.iife.min.js"])
def test_page_file_in_browser_cache_is_not_resent(client: TestClient, path: str) -> None:
    first = client.get(path)
    again = client.get(path, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    other = client.get(path, headers={"If-None-Match": '"other"'})
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/nothing.js",
        "/static/../page_data.py",
        "/static/%2e%2e/page_data.py",
        "/static//etc/passwd",
        "/static/uplot/LICENSE",
    ],
)
def test_page_gives_out_no_other_file(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_page_files_name_no_other_host() -> None:
    own = {name: file for name, file in read_page_files().items() if "uplot/" not in name}
    for name, file in own.items():
        text = file.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, f"{name} must work without a network"


def test_page_vendored_file_lies_beside_its_licence() -> None:
    licence = Path(PAGE_DIRECTORY, "uplot", "LICENSE").read_text()
    assert "MIT License" in licence
    assert "Leon Sorokin" in licence


def test_page_poll_follows_its_query(client: TestClient, scene: FakeParts) -> None:
    scene.monitor.shown = [status("a&b", 1), status("other", 1)]
    scene.statistics.points["a&b"] = [HistoryPoint(999_000_000_000, 1)]
    first = client.get("/v1/page", params={"model": "a&b"})
    query = {"model": "a&b", "cursor": first.json()["cursor"]}
    again = client.get("/v1/page", params={**query, "swaps_tag": first.json()["swaps_tag"]})
    assert first.headers["cache-control"] == "no-store"
    assert [version["model"] for version in first.json()["versions"]] == ["a&b"]
    assert len(first.json()["points"]["at"]) == 1
    assert (again.json()["points"]["at"], "swaps" in again.json()) == ([], False)


def test_page_poll_survives_message_outside_utf_8(client: TestClient, scene: FakeParts) -> None:
    health = Health(StatusCode.NOT_FOUND, "/models/\udcff: no such file")
    scene.monitor.shown = [status("ctr", 1, END, health=health)]
    [version] = client.get("/v1/page").json()["versions"]
    assert version["health"]["message"] == health.message


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_root_tells_programs_that_the_server_lives(client: TestClient, accept: str) -> None:
    """KServe's client of its first protocol asks so, with httpx's Accept header."""
    response = client.get("/", headers={"Accept": accept})
    assert response.json() == {"status": "alive"}
    assert client.get("/").headers["vary"] == response.headers["vary"] == "Accept"


def test_page_costs_nothing_without_polls(client: TestClient, scene: FakeParts) -> None:
    client.get("/")
    client.get("/static/page.js")
    assert scene.statistics.questions == []
