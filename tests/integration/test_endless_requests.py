"""Requests that never end by themselves: they stop no other model, leave it the cores, and get a deadline."""

import http.client
import json
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, predict_request, wait_until
from tests.integration.processes import cpu_seconds, request_thread_nices

ENDLESS_COUNT = 16
FOR_EVER = predict_request("slow", {"seconds": np.float64(math.inf)})


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    # Long enough for all runs to become greedy on a busy machine.
    return {"max_request_seconds": 3}


@pytest.fixture(scope="module")
def server(slow_and_scale: ModelServer) -> ModelServer:
    """Serves `slow` and `scale`. A request without a deadline gets one of three seconds."""
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


def endless_over_grpc(server: ModelServer, stack: ExitStack) -> None:
    caller = stack.enter_context(caller_to(server.target))
    for _ in range(ENDLESS_COUNT):
        stack.callback(caller.start_predict(FOR_EVER, timeout=600).cancel)


def endless_over_rest(server: ModelServer, stack: ExitStack) -> None:
    body = json.dumps({"inputs": {"seconds": math.inf}})
    for _ in range(ENDLESS_COUNT):
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port)
        stack.callback(connection.close)
        connection.request("POST", "/v1/models/slow:predict", body)


@pytest.mark.parametrize("send_endless", [endless_over_grpc, endless_over_rest])
def test_endless_requests_give_way_to_others(
    server: ModelServer, send_endless: Callable[[ModelServer, ExitStack], None]
) -> None:
    scale = predict_request("scale", {"x": np.array([1.0], np.float32)})
    core_count = len(os.sched_getaffinity(0))

    def are_lowered() -> list[bool]:
        return [nice > os.nice(0) for nice in request_thread_nices(server.process_id)]

    with caller_to(server.target) as caller, ExitStack() as stack:
        caller.predict(scale, timeout=TIMEOUT_SECONDS)
        send_endless(server, stack)
        wait_until(lambda: are_lowered().count(True) > core_count, "runs that give way")
        for _ in range(20):
            caller.predict(scale, timeout=TIMEOUT_SECONDS)
        assert are_lowered().count(False) >= core_count
        stack.close()
        wait_until(lambda: not any(are_lowered()), "the end of their threads")
        assert are_lowered().count(False) >= core_count


def test_request_without_a_deadline_gets_one(server: ModelServer) -> None:
    with caller_to(server.target) as caller:
        call = caller.start_predict(FOR_EVER, timeout=None)
        assert call.exception(timeout=TIMEOUT_SECONDS).code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "--max_request_seconds" in call.details()
        quick = predict_request("slow", {"x": np.int32(1)}, signature_name="quick")
        assert caller.predict(quick, timeout=TIMEOUT_SECONDS).model_spec.version.value == 1
