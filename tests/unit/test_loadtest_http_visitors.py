import http.client
import threading
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fleet.http.server import HttpServer
from loadtest.drive.http_visitors import PagePolls, Visitor, scrape, visited
from serving.base.clock import SystemClock
from serving.base.errors import Unavailable
from serving.http.app import HttpSettings, make_http_app
from serving.http.listeners import bind
from serving.monitoring.collector import MetricsExposition
from tests.unit.fakes.monitored import fake_parts


class Pages:
    """The requests of visitors, in order."""

    def __init__(self) -> None:
        self.polls: list[tuple[str, str]] = []
        self.scrape_headers: list[tuple[str, str]] = []
        self.url = ""

    async def page(self, request: Request) -> Response:
        query = request.query_params
        self.polls.append((query["cursor"], query["swaps_tag"]))
        return JSONResponse({"cursor": f"c{len(self.polls)}", "swaps_tag": "t", "points": []})

    async def metrics(self, request: Request) -> Response:
        headers = request.headers
        self.scrape_headers.append((headers["accept"], headers["accept-encoding"]))
        return PlainTextResponse("metrics")


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages()
    server = HttpServer(
        make_http_app(
            [Route("/v1/page", pages.page), Route("/metrics", pages.metrics)], HttpSettings()
        ),
        lambda: bind("127.0.0.1", 0),
    )
    server.start()
    pages.url = f"http://127.0.0.1:{server.port}"
    yield pages
    server.stop()
    assert server.join()


def connection_to(pages: Pages) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(pages.url.removeprefix("http://"))


def test_page_polls_continue_after_last_answer(pages: Pages):
    polls, connection = PagePolls(), connection_to(pages)
    for _ in range(3):
        polls(connection)
    connection.close()
    assert pages.polls == [("", ""), ("c1", "t"), ("c2", "t")]


def test_scrape_requests_same_format_as_prometheus(pages: Pages):
    connection = connection_to(pages)
    scrape(connection)
    connection.close()
    ((accept, encoding),) = pages.scrape_headers
    wanted = MetricsExposition(fake_parts()).negotiate(accept, encoding)
    assert wanted.content_type.startswith("application/openmetrics-text")
    assert wanted.is_compressed


def test_visitor_visits_again_and_again_until_the_end(pages: Pages):
    has_visited = threading.Semaphore(0)

    def visit(connection: http.client.HTTPConnection) -> None:
        scrape(connection)
        has_visited.release()

    visitor = Visitor("one", pages.url, visit, SystemClock(), period_seconds=0.001)
    with visited([visitor]):
        assert all(has_visited.acquire(timeout=30) for _ in range(3))
    assert visitor.visit_count == len(pages.scrape_headers) >= 3


def test_visit_that_fails_ends_the_measurement(pages: Pages):
    has_asked = threading.Event()

    def visit(connection: http.client.HTTPConnection) -> None:
        has_asked.set()
        connection.request("GET", "/nothing")
        raise Unavailable(f"status {connection.getresponse().status}")

    visitor = Visitor("one", pages.url, visit, SystemClock())
    with pytest.raises(Unavailable, match=r"one of 127\.0\.0\.1.*status 404"), visited([visitor]):
        assert has_asked.wait(30)


def test_server_that_is_gone_ends_the_measurement():
    has_asked = threading.Event()

    def visit(connection: http.client.HTTPConnection) -> None:
        has_asked.set()
        PagePolls()(connection)

    visitor = Visitor("page", "http://127.0.0.1:1", visit, SystemClock())
    with pytest.raises(Unavailable, match=r"page of 127\.0\.0\.1:1"), visited([visitor]):
        assert has_asked.wait(30)
