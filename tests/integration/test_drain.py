"""A drain answers every request that has arrived, even if no thread has taken it up yet."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import drop
from tests.integration.logs import logged, wait_for_log
from tests.integration.processes import CORES

# Far more requests than threads serve at a time, which are four a core.
REQUEST_COUNT = 16 * len(CORES)
RUN_SECONDS = 0.1
PREDICT_PATH = "/v1/models/slow:predict"


@dataclass
class Stop:
    """A stop by SIGTERM while requests ran and waited, over gRPC and over HTTP."""

    server: ModelServer
    codes: Sequence[grpc.StatusCode]
    """The ends of the gRPC requests, most of which waited for a thread."""
    statuses: Sequence[int]
    """The statuses of HTTP requests on two connections, until an answer or the port closed them."""
    was_running: bool
    """True if an HTTP request still ran when all these had ended."""
    response: httpx.Response
    """The response to that request."""


@pytest.fixture(scope="module")
def stop(
    start_module_server: StartServer, slow_export: Path, tmp_path_factory: pytest.TempPathFactory
) -> Stop:
    base_path = tmp_path_factory.mktemp("slow")
    drop(slow_export, base_path, 1)
    server = start_module_server(
        model_name="slow", base_path=base_path, drain_seconds=2 * TIMEOUT_SECONDS
    )
    server.wait_until_available("slow", 1)
    release = tmp_path_factory.mktemp("held") / "release"
    held = {"signature_name": "held", "inputs": {"path": str(release)}}
    request = predict_request("slow", {"seconds": np.float64(RUN_SECONDS)})
    with ThreadPoolExecutor(3) as threads, caller_to(server.target) as caller:
        running = threads.submit(
            httpx.post, server.url + PREDICT_PATH, json=held, timeout=2 * TIMEOUT_SECONDS
        )
        others = [threads.submit(post_until_closed, server) for _ in range(2)]
        wait_until(lambda: rest_count(server) > 10, "requests over HTTP")
        calls = [caller.start_predict(request) for _ in range(REQUEST_COUNT)]
        wait_until(lambda: any(call.done() for call in calls), "a first answer over gRPC")
        os.kill(server.process_id, signal.SIGTERM)
        codes = [call.code() for call in calls]
        statuses = [status for other in others for status in other.result()]
        was_running = not running.done()
        release.touch()
        response = running.result()
    wait_for_log(server, "stopped")
    server.kill()  # The server has ended by itself, which the fixture would report as a crash.
    return Stop(server, codes, statuses, was_running, response)


def post_until_closed(server: ModelServer) -> list[int]:
    """Returns the statuses of sequential requests over one connection, until an answer or the port
    closes it.
    """
    statuses: list[int] = []
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS) as http:
        while True:
            try:
                response = http.post(PREDICT_PATH, json={"inputs": {"seconds": 0.01}})
            except httpx.ConnectError:
                return statuses
            statuses.append(response.status_code)


def rest_count(server: ModelServer) -> int:
    """Returns the number of answered requests over HTTP."""
    start, label = "serving_request_latency_seconds_count", 'method="RestPredict"'
    lines = httpx.get(server.url + "/metrics", timeout=TIMEOUT_SECONDS).text.splitlines()
    counts = (line.rpartition(" ")[2] for line in lines if line.startswith(start) and label in line)
    return int(sum(map(float, counts)))


def test_sigterm_answers_requests_waiting_for_thread(stop: Stop) -> None:
    assert stop.codes == [grpc.StatusCode.OK] * REQUEST_COUNT
    assert wait_for_log(stop.server, "stopped")["is_complete"]
    assert not logged(stop.server, "requests_cut_short")


def test_sigterm_finishes_http_and_refuses_connections(stop: Stop) -> None:
    # The port refused while a request ran: otherwise the other connections would not have ended.
    assert stop.was_running
    assert set(stop.statuses) == {200}
    assert stop.response.status_code == 200
    assert stop.response.headers["connection"] == "close"
    assert not logged(stop.server, "http_requests_cut_short")
