from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fleet.http.server import HttpServer
from loadtest.measure.server_pages import Metrics, ServerPages
from serving.base.errors import Unavailable
from serving.http.app import HttpSettings, make_http_app
from serving.http.listeners import bind

PAGE = """\
# HELP serving_requests_total Requests.
# TYPE serving_requests_total counter
serving_requests_total{model="m",version="1",code="OK"} 3
serving_requests_total{model="m",version="2",code="OK"} 4
serving_requests_total{model="",version="",code="NOT_FOUND"} 2
# HELP :tensorflow:serving:request_count predict
# TYPE :tensorflow:serving:request_count unknown
:tensorflow:serving:request_count{model_name="m",status="OK"} 7
"""


@pytest.fixture
def url() -> Iterator[str]:
    """Serves two pages."""

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(PAGE)

    async def swaps(request: Request) -> Response:
        model = request.query_params["model"]
        return JSONResponse({"swaps": [{"model": model, "version": 3}, {"version": 2}]})

    routes = [Route("/metrics", metrics), Route("/v1/swaps", swaps)]
    server = HttpServer(
        make_http_app(routes, HttpSettings()),
        lambda: bind("127.0.0.1", 0),
    )
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()
    assert server.join()


def test_scrape_may_be_of_some_names(url: str):
    metrics = ServerPages(url).metrics("serving_")
    assert metrics.total("serving_requests_total") == 9
    assert metrics.total(":tensorflow:serving:request_count") == 0


def test_totals_are_over_all_series_with_the_labels():
    metrics = Metrics.parse(PAGE)
    assert metrics.total("serving_requests_total") == 9
    assert metrics.total("serving_requests_total", code="OK") == 7
    assert metrics.total("serving_requests_total", code="INTERNAL") == 0
    assert metrics.total(":tensorflow:serving:request_count", status="OK") == 7


def test_counts_are_summed_over_other_labels():
    metrics = Metrics.parse(PAGE)
    assert metrics.counts_by("code", "serving_requests_total") == {"OK": 7, "NOT_FOUND": 2}
    assert metrics.counts_by("version", "serving_requests_total", code="OK") == {"1": 3, "2": 4}


def test_value_is_of_one_series_or_of_none():
    metrics = Metrics.parse(PAGE)
    assert metrics.value("serving_requests_total", version="2") == 4
    assert metrics.value("serving_requests_total", version="9") is None
    with pytest.raises(ValueError, match="2 series match serving_requests_total"):
        metrics.value("serving_requests_total", code="OK")


def test_buckets_are_by_edge_ascending_and_summed():
    lines = [
        "# TYPE h histogram",
        *(
            f'h_bucket{{code="{code}",le="{edge}"}} {count}'
            for code, counts in {"OK": (1, 2, 4), "INTERNAL": (0, 1, 1)}.items()
            for edge, count in zip(("0.5", "10.0", "+Inf"), counts, strict=True)
        ),
    ]
    counts = Metrics.parse("\n".join(lines) + "\n").bucket_counts("h")
    assert list(counts.items()) == [(0.5, 1), (10.0, 3), (float("inf"), 5)]
    of_ok = Metrics.parse("\n".join(lines) + "\n").bucket_counts("h", code="OK")
    assert list(of_ok.values()) == [1, 2, 4]


def test_pages_of_server_keep_order_of_swaps(url: str):
    pages = ServerPages(url)
    assert pages.metrics().total("serving_requests_total") == 9
    assert pages.swaps("a/b c") == [{"version": 2}, {"model": "a/b c", "version": 3}]


def test_missing_server_is_unavailable():
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1/metrics: "):
        ServerPages("http://127.0.0.1:1").metrics()
