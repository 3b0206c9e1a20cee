"""A drain answers every request that has arrived, even if no thread has taken it up yet."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import numpy as np

from serving import ModelServer
from tests.integration.clients import caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import drop

# Far more requests than threads serve at a time, which are four a core.
REQUEST_COUNT = 16 * (os.cpu_count() or 1)
RUN_SECONDS = 0.1
PREDICT_PATH = "/v1/models/slow:predict"


def serve_slow_model(start_server: StartServer, export: Path, base_path: Path) -> ModelServer:
    drop(export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, drain_seconds=60)
    server.wait_until_available("slow", 1)
    return server


def test_sigterm_answers_requests_waiting_for_thread(
    start_server: StartServer, slow_export: Path, base_path: Path
) -> None:
    server = serve_slow_model(start_server, slow_export, base_path)
    request = predict_request("slow", {"seconds": np.float64(RUN_SECONDS)})
    with caller_to(server.target) as caller:
        calls = [caller.start_predict(request, timeout=60) for _ in range(REQUEST_COUNT)]
        wait_until(lambda: any(call.done() for call in calls), "a first answer")
        os.kill(server.process_id, signal.SIGTERM)
        codes = [call.code() for call in calls]
    assert codes == [grpc.StatusCode.OK] * REQUEST_COUNT
    stopped = server.wait_for_event(lambda event: event["event"] == "stopped", 10)
    assert stopped["is_complete"]
    assert not [event for event in server.events() if event["event"] == "requests_cut_short"]
    server.kill()  # The server has ended by itself, which the fixture would report as a crash.


def post_until_closed(server: ModelServer) -> list[int]:
    """Returns the statuses of sequential requests over one connection, until an answer or the port
    closes it.
    """
    statuses: list[int] = []
    with httpx.Client(base_url=server.url, timeout=60) as http:
        while True:
            try:
                response = http.post(PREDICT_PATH, json={"inputs": {"seconds": 0.01}})
            except httpx.ConnectError:
                return statuses
            statuses.append(response.status_code)


def test_sigterm_finishes_http_and_refuses_connections(
    start_server: StartServer, slow_export: Path, base_path: Path
) -> None:
    server = serve_slow_model(start_server, slow_export, base_path)
    # Longer than responses take after the last request.
    slow = {"inputs": {"seconds": 4.0}}
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(httpx.post, server.url + PREDICT_PATH, json=slow, timeout=60)
        others = [threads.submit(post_until_closed, server) for _ in range(2)]
        wait_until(lambda: rest_count(server) > 10, "requests")
        os.kill(server.process_id, signal.SIGTERM)
        assert not running.done()
        assert {status for other in others for status in other.result()} == {200}
        assert running.result().status_code == 200
        assert running.result().headers["connection"] == "close"
    assert server.wait_for_event(lambda event: event["event"] == "stopped", 10)["is_complete"]
    assert not [event for event in server.events() if event["event"] == "http_requests_cut_short"]
    server.kill()  # The server has ended by itself, which the fixture would report as a crash.


def rest_count(server: ModelServer) -> int:
    """Returns the number of answered requests over HTTP."""
    return metric(server, "serving_request_latency_seconds_count", 'method="RestPredict"')


def metric(server: ModelServer, start: str, label: str = "") -> int:
    """Returns the sum of the series that begin with `start` and have `label`."""
    lines = httpx.get(server.url + "/metrics").text.splitlines()
    return int(
        sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(start) and label in line
        )
    )
