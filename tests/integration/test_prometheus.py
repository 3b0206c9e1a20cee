"""Metrics as a real Prometheus server reads them: scraped, stored, and queried with PromQL.

The first tests use requests of known latencies, the others a real server.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from fleet.http.server import HttpServer
from serving.base.clock import NS_PER_SECOND
from serving.base.protos import predict_pb2
from serving.http.app import HttpSettings, make_http_app
from serving.http.listeners import bind
from serving.monitoring.collector import MetricsExposition
from serving.monitoring.metrics_routes import PATHS, metrics_routes
from serving.monitoring.request_metrics import LATENCY_EDGES_NS
from tests.integration.clients import caller_to, predict_request, refusal
from tests.integration.exports import ScaleModel
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.prometheus import Prometheus, Sample, running_prometheus
from tests.unit import promtool
from tests.unit.fakes.metrics import FakeMethod
from tests.unit.fakes.monitored import fake_parts
from tests.unit.fakes.requests import FakeRequestStatistics

REQUEST_COUNT = 3_000
# The empty model, for requests that name an unknown model.
PREDICT = 'method="Predict",model!=""'
P999_BY_BUCKETS = (
    "histogram_quantile(0.999, sum by (model, le) "
    f"(rate(serving_request_latency_seconds_bucket{{{PREDICT}}}[1m])))"
)
P999 = f'serving_request_latency_quantile_seconds{{{PREDICT},quantile="0.999"}}'
COUNT = f'serving_request_latency_seconds_count{{{PREDICT},code="OK"}}'


def bucket_around(seconds: float) -> tuple[float, float]:
    """Returns the edges of the bucket of a latency, in seconds."""
    index = bisect_left(LATENCY_EDGES_NS, seconds * NS_PER_SECOND)
    below, above = LATENCY_EDGES_NS[index - 1 : index + 1]
    return below / NS_PER_SECOND, above / NS_PER_SECOND


def is_within_a_bucket(by_buckets: float, seconds: float) -> bool:
    """Checks a quantile to within its bucket; 0.8 % is the error of the quantile itself."""
    below, above = bucket_around(seconds)
    return below * 0.992 <= by_buckets <= above * 1.008


def has_value(value: float) -> Callable[[list[Sample]], object]:
    return lambda samples: [sample.value for sample in samples] == [value]


# --- Known requests -------------------------------------------------------------------------------


def latencies_with_a_tail() -> list[int]:
    """About 1 ms, and some 80 ms for one in 500."""
    draw = random.Random(1)
    body = [round(draw.lognormvariate(0, 0.3) * 1e6) for _ in range(REQUEST_COUNT)]
    tail = [round(draw.uniform(60, 100) * 1e6) for _ in range(REQUEST_COUNT // 500)]
    return body + tail


def method_of(latencies_ns: list[int]) -> FakeMethod:
    phases = {"total": latencies_ns}
    return FakeMethod(latencies_ns={0: latencies_ns}, phases_ns=phases, recent_phases_ns=phases)


@pytest.fixture
def statistics() -> FakeRequestStatistics:
    """A version that has had no request yet; a test adds requests to it."""
    idle = method_of([])
    return FakeRequestStatistics(by_version=[idle], by_model=[idle])


@pytest.fixture
def fake_fed(tmp_path: Path, statistics: FakeRequestStatistics) -> Iterator[Prometheus]:
    routes = metrics_routes(MetricsExposition(fake_parts(statistics=statistics)))
    http = HttpServer(
        make_http_app(routes, HttpSettings()),
        lambda: bind("127.0.0.1", 0),
    )
    http.start()
    try:
        with running_prometheus(tmp_path, f"http://127.0.0.1:{http.port}{PATHS[0]}") as prometheus:
            yield prometheus
    finally:
        http.stop()
        assert http.join()


def test_p999_by_buckets_is_within_one_bucket(
    fake_fed: Prometheus, statistics: FakeRequestStatistics
):
    fake_fed.wait_for(COUNT, has_value(0))
    latencies_ns = latencies_with_a_tail()
    served = method_of(latencies_ns)
    statistics.by_version = statistics.by_model = [served]
    fake_fed.wait_for(COUNT, has_value(len(latencies_ns)))
    true_seconds = sorted(latencies_ns)[int(0.999 * len(latencies_ns))] / NS_PER_SECOND
    assert fake_fed.value(P999) == pytest.approx(true_seconds)
    assert is_within_a_bucket(fake_fed.value(P999_BY_BUCKETS), true_seconds)
    # The buckets of TensorFlow Serving are too wide for this.
    theirs = "histogram_quantile(0.999, :tensorflow:serving:request_latency_bucket)"
    assert not is_within_a_bucket(fake_fed.value(theirs) / 1e6, true_seconds)


# --- A real server --------------------------------------------------------------------------------


def request_to(model: HostedModel) -> predict_pb2.PredictRequest:
    return predict_request(model.name, {"x": np.array([1, 2], np.float32)})


@pytest.fixture(scope="module")
def prometheus(
    module_host: ModelHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    url = f"{module_host.model().server.url}{PATHS[0]}"
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), url) as running:
        yield running


@pytest.fixture
def model(host: ModelHost, scale_model: ScaleModel) -> HostedModel:
    """A model whose version 1 answers."""
    model = host.model(prefix="scale")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    return model


def of(expression: str, model: HostedModel) -> str:
    """Returns the expression for the requests to that model alone."""
    return expression.replace('model!=""', f'model="{model.name}"')


def test_prometheus_sees_all_requests_and_p999(prometheus: Prometheus, model: HostedModel):
    count, p999, by_buckets = (of(each, model) for each in (COUNT, P999, P999_BY_BUCKETS))
    prometheus.wait_for(count, has_value(0))
    wrong = predict_request(model.name, {"x": np.array([1, 2], np.int32)})
    unknown = predict_request("unknown", {"x": np.array([1, 2], np.float32)})
    with caller_to(model.server.target) as caller:
        for _ in range(REQUEST_COUNT):
            caller.predict(request_to(model))
        assert refusal(lambda: caller.predict(wrong))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal(lambda: caller.predict(unknown))[0] is grpc.StatusCode.NOT_FOUND
    prometheus.wait_for(count, has_value(REQUEST_COUNT))
    by_code = prometheus.query('serving_requests_total{method="Predict"}')
    counts = {(item.labels.get("model"), item.labels["code"]): item.value for item in by_code}
    assert counts[model.name, "OK"] == REQUEST_COUNT
    assert counts[model.name, "INVALID_ARGUMENT"] == 1
    assert counts[None, "NOT_FOUND"] == 1
    # The quantile is of the last ten seconds, so requests go on until Prometheus has read it.
    with caller_to(model.server.target) as caller:

        def has_quantile(samples: list[Sample]) -> bool:
            caller.predict(request_to(model))
            return any(sample.value > 0 for sample in samples)

        prometheus.wait_for(p999, has_quantile)
        prometheus.wait_for(by_buckets, has_quantile)


def test_swap_is_seen_by_version_and_by_model(
    prometheus: Prometheus, model: HostedModel, scale_model: ScaleModel
):
    name = f'model="{model.name}"'
    with caller_to(model.server.target) as caller:
        for _ in range(30):
            caller.predict(request_to(model))
        scale_model.write(model.base_path, 2)
        prometheus.wait_for(
            f'serving_servable_state{{{name},state="AVAILABLE",version="2"}} == 1', len
        )
        for _ in range(12):
            caller.predict(request_to(model))
    theirs = f':tensorflow:serving:request_count{{model_name="{model.name}",status="OK"}}'
    prometheus.wait_for(theirs, has_value(42))
    by_version = prometheus.query(of(COUNT, model))
    assert {item.labels["version"]: item.value for item in by_version} == {"1": 30, "2": 12}
    shares = prometheus.query(f"serving_routing_share_ratio{{{name}}}")
    assert {item.labels["version"]: item.value for item in shares} == {"2": 1}
    prometheus.wait_for(f'serving_servable_state{{{name},state="END",version="1"}} == 1', len)
    restore = f'serving_load_stage_seconds{{{name},stage="restore",version="2"}}'
    assert prometheus.value(restore) > 0
    assert prometheus.value(f'serving_arena_resident_bytes{{{name},version="2"}}') > 0


def test_page_of_a_real_server_satisfies_promtool(model: HostedModel):
    with caller_to(model.server.target) as caller:
        caller.predict(request_to(model))
    lines = promtool.complaints(httpx.get(f"{model.server.url}{PATHS[1]}").text)
    assert {line.partition(" ")[2] for line in lines} == {"metric names should not contain ':'"}
    assert all(line.startswith(":tensorflow:serving:") for line in lines)
