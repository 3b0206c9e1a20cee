"""A drain answers every request that had arrived, those too that no thread had taken up."""

import os
import signal
from pathlib import Path

import grpc
import numpy as np

from serving import ModelServer
from tests.integration.clients import caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import drop

# Far above the threads that may serve at a time, four a core.
REQUEST_COUNT = 16 * (os.cpu_count() or 1)
RUN_SECONDS = 0.1


def serve_slow_model(start_server: StartServer, export: Path, base_path: Path) -> ModelServer:
    drop(export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, drain_seconds=60)
    server.wait_until_available("slow", 1)
    return server


def test_sigterm_answers_the_requests_that_wait_for_a_thread(
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
    server.kill()  # it has ended by itself, which the fixture would take for a death
