"""The routes of the metrics: TensorFlow Serving's path and Prometheus' usual one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.monitoring.collector import ExpositionFormat, MetricsExposition

PATHS = ("/monitoring/prometheus/metrics", "/metrics")


class MetricsPages:
    """Makes pages on its own thread, so that the event loop of the HTTP server never collects.

    The thread starts with the first scrape, at the HTTP server's priority, and ends with this object.
    A scraper that asks while a page of its format is being made gets that page. So one collection runs
    at a time, and at most one waits for each other format of each event loop that asks.
    """

    def __init__(self, exposition: MetricsExposition) -> None:
        self._exposition = exposition
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        # A future belongs to its event loop.
        self._running: dict[
            tuple[asyncio.AbstractEventLoop, ExpositionFormat], asyncio.Future[bytes]
        ] = {}

    async def response(self, request: Request) -> Response:
        """The metrics in the format that the request's headers ask for."""
        wanted = self._exposition.negotiate(
            request.headers.get("accept", ""), request.headers.get("accept-encoding", "")
        )
        headers = {"Content-Type": wanted.content_type, "Vary": "Accept, Accept-Encoding"}
        if wanted.is_compressed:
            headers["Content-Encoding"] = "gzip"
        # Shielded: a scraper that disconnects must not cancel the page of the others.
        return Response(await asyncio.shield(self._page(wanted)), headers=headers)

    def _page(self, wanted: ExpositionFormat) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        running = self._running.get((loop, wanted))
        if running is None:
            running = loop.run_in_executor(self._executor, self._exposition.page, wanted)
            self._running[loop, wanted] = running
            running.add_done_callback(lambda _: self._running.pop((loop, wanted)))
        return running


def metrics_routes(exposition: MetricsExposition, also_at: str = "") -> list[Route]:
    """A route for each of PATHS, and for `also_at` if it is another path."""
    pages = MetricsPages(exposition)
    paths = [*PATHS, also_at] if also_at and also_at not in PATHS else PATHS
    return [Route(path, pages.response, methods=["GET"]) for path in paths]
