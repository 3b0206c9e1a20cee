"""Requests that never end by themselves: they stop no other model, and they get a deadline."""

import math
import os

import grpc
import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, predict_request, wait_until
from tests.integration.processes import cpu_seconds

ENDLESS_COUNT = 16
FOR_EVER = predict_request("slow", {"seconds": np.float64(math.inf)})


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {"max_request_seconds": 0.5}


@pytest.fixture(scope="module")
def server(slow_and_scale: ModelServer) -> ModelServer:
    """Serves `slow` and `scale`. A request without a deadline gets one of half a second."""
    return slow_and_scale


def wait_until_all_cores_are_busy(server: ModelServer) -> None:
    before = cpu_seconds(server.process_id)
    wait_until(
        lambda: cpu_seconds(server.process_id) > before + 0.5 * len(os.sched_getaffinity(0)),
        "the loops",
    )


def test_endless_requests_stop_no_other_model(server: ModelServer) -> None:
    scale = predict_request("scale", {"x": np.array([1.0], np.float32)})
    with caller_to(server.target) as caller, caller_to(server.target) as other:
        endless = [caller.start_predict(FOR_EVER, timeout=600) for _ in range(ENDLESS_COUNT)]
        wait_until_all_cores_are_busy(server)
        # One connection has the endless requests too, the other has none of them.
        for _ in range(20):
            assert caller.predict(scale, timeout=TIMEOUT_SECONDS).model_spec.version.value == 1
            assert other.predict(scale, timeout=TIMEOUT_SECONDS).model_spec.version.value == 1
        assert not any(call.done() for call in endless)
        for call in endless:
            call.cancel()
        quick = predict_request("slow", {"x": np.int32(1)}, signature_name="quick")
        assert caller.predict(quick, timeout=TIMEOUT_SECONDS).model_spec.version.value == 1


def test_request_without_a_deadline_gets_one(server: ModelServer) -> None:
    with caller_to(server.target) as caller:
        call = caller.start_predict(FOR_EVER, timeout=None)
        assert call.exception(timeout=TIMEOUT_SECONDS).code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "--max_request_seconds" in call.details()
        quick = predict_request("slow", {"x": np.int32(1)}, signature_name="quick")
        assert caller.predict(quick, timeout=TIMEOUT_SECONDS).model_spec.version.value == 1
