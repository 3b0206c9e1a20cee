"""The routes of the metrics: formats, shared pages, and pages that fail."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import httpx
import pytest
from starlette.applications import Starlette

from serving.manager.state_monitor import StateMonitor, Statuses
from serving.monitoring.collector import ExpositionFormat, MetricsExposition
from serving.monitoring.metrics_routes import PATHS, metrics_routes
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.monitored import fake_parts

PLAIN = {"accept": "text/plain", "accept-encoding": "identity"}
OPENMETRICS = {
    "accept": "application/openmetrics-text;version=1.0.0",
    "accept-encoding": "identity",
}
TIMEOUT_SECONDS = 10

Answer = TypeVar("Answer")


class HeldMonitor(StateMonitor):
    """A monitor that is read at once, and answers when it is opened."""

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__(FakeClock())
        self._open = threading.Event()
        if is_open:
            self._open.set()
        self._running_count = 0
        self.running_count_max = 0
        self.collection_count = 0

    def statuses(self) -> Statuses:
        self._running_count += 1
        self.running_count_max = max(self.running_count_max, self._running_count)
        assert self._open.wait(TIMEOUT_SECONDS)
        self._running_count -= 1
        self.collection_count += 1
        return {}

    def open(self) -> None:
        self._open.set()


class CountedExposition(MetricsExposition):
    """Lets a test wait for scrapers: after its negotiation a scraper requests the page at once."""

    def __init__(self, monitor: StateMonitor) -> None:
        super().__init__(replace(fake_parts(), monitor=monitor))
        self._negotiated = threading.Semaphore(0)

    def negotiate(self, accept: str, accept_encoding: str) -> ExpositionFormat:
        self._negotiated.release()
        return super().negotiate(accept, accept_encoding)

    async def wait_for(self, scraper_count: int) -> None:
        for _ in range(scraper_count):
            acquired = await asyncio.to_thread(self._negotiated.acquire, timeout=TIMEOUT_SECONDS)
            assert acquired


def visit(
    exposition: MetricsExposition,
    scrape: Callable[[httpx.AsyncClient], Awaitable[Answer]],
) -> Answer:
    """Returns the result of `scrape` for a client of a server with the routes."""
    app = Starlette(routes=metrics_routes(exposition))

    async def visited() -> Answer:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await scrape(client)

    return asyncio.run(visited())


@pytest.mark.parametrize("path", PATHS)
def test_metrics_are_at_both_paths(path):
    exposition = MetricsExposition(fake_parts())
    response = visit(exposition, lambda client: client.get(path, headers=PLAIN))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "content-encoding" not in response.headers
    assert 'serving_build_info{allocator="jemalloc"' in response.text


def test_metrics_come_in_requested_format():
    exposition = MetricsExposition(fake_parts())
    headers = {**OPENMETRICS, "accept-encoding": "gzip"}
    response = visit(exposition, lambda client: client.get(PATHS[0], headers=headers))
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1")
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["vary"] == "Accept, Accept-Encoding"
    assert response.text.endswith("# EOF\n")


def test_scrapes_of_one_format_share_a_page():
    monitor = HeldMonitor()
    exposition = CountedExposition(monitor)

    async def scrape(client: httpx.AsyncClient) -> list[httpx.Response]:
        scrapes = [client.get(path, headers=PLAIN) for path in (*PATHS, PATHS[0])]
        responses = asyncio.gather(*scrapes)
        await exposition.wait_for(len(scrapes))
        monitor.open()
        return await responses

    responses = visit(exposition, scrape)
    assert monitor.collection_count == 1
    assert len({response.content for response in responses}) == 1


def test_formats_are_collected_one_after_the_other():
    monitor = HeldMonitor()
    exposition = CountedExposition(monitor)

    async def scrape(client: httpx.AsyncClient) -> list[httpx.Response]:
        responses = asyncio.gather(
            client.get(PATHS[0], headers=PLAIN), client.get(PATHS[0], headers=OPENMETRICS)
        )
        await exposition.wait_for(2)
        monitor.open()
        return list(await responses)

    plain, openmetrics = visit(exposition, scrape)
    assert (monitor.collection_count, monitor.running_count_max) == (2, 1)
    assert openmetrics.text.endswith("# EOF\n")
    assert not plain.text.endswith("# EOF\n")


def test_page_is_made_anew_for_the_next_scrape():
    monitor = HeldMonitor(is_open=True)
    exposition = CountedExposition(monitor)

    async def scrape(client: httpx.AsyncClient) -> None:
        for path in PATHS:
            await client.get(path, headers=PLAIN)

    visit(exposition, scrape)
    assert monitor.collection_count == 2


def test_leaving_scraper_keeps_page_for_others():
    monitor = HeldMonitor()
    exposition = CountedExposition(monitor)

    async def scrape(client: httpx.AsyncClient) -> httpx.Response:
        leaving, staying = (
            asyncio.create_task(client.get(PATHS[0], headers=PLAIN)) for _ in range(2)
        )
        await exposition.wait_for(2)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        monitor.open()
        return await staying

    assert visit(exposition, scrape).status_code == 200
    assert monitor.collection_count == 1


def test_failing_page_is_error_and_next_one_works():
    failures = [RuntimeError("a bug")]

    class BrokenOnce(StateMonitor):
        def statuses(self) -> Statuses:
            if failures:
                raise failures.pop()
            return {}

    async def scrape(client: httpx.AsyncClient) -> list[int]:
        return [(await client.get(PATHS[0])).status_code for _ in range(2)]

    assert visit(CountedExposition(BrokenOnce(FakeClock())), scrape) == [500, 200]


def test_metrics_cannot_be_posted_to():
    exposition = MetricsExposition(fake_parts())
    response = visit(exposition, lambda client: client.post(PATHS[0]))
    assert response.status_code == 405


@pytest.mark.parametrize(
    ("also_at", "more"), [("", []), ("/mine", ["/mine"]), (PATHS[1], [])], ids=str
)
def test_metrics_routes_are_default_and_configured(also_at: str, more: list[str]):
    routes = metrics_routes(MetricsExposition(fake_parts()), also_at)
    assert [route.path for route in routes] == [*PATHS, *more]
