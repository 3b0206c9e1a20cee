"""Limits of requests in flight and keepalive, with stock clients."""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from serving.client.stubs import PredictionServiceStub
from tests.integration.clients import (
    TIMEOUT_SECONDS,
    array,
    caller_to,
    predict_request,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import drop
from tests.integration.held import Held
from tests.integration.model_host import ModelHost

LIMIT = 16
RETRY = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "60s",
                "maxBackoff": "60s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
            },
        }
    ]
}
"""Without the server's pushback the second attempt would come a minute later."""


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {"max_in_flight_requests": LIMIT}


@contextmanager
def retrying_stub(target: str) -> Iterator[PredictionServiceStub]:
    options = [("grpc.service_config", json.dumps(RETRY)), ("grpc.enable_retries", 1)]
    with grpc.insecure_channel(target, options=options) as channel:
        yield PredictionServiceStub(channel)


def test_limit_refuses_excess_requests_at_once(
    host: ModelHost, slow_export: Path, held: Held
) -> None:
    model = host.model(prefix="slow").serve(slow_export)
    request = held.request(model.name)
    with caller_to(model.server.target) as caller:
        # Without a deadline, because a request that would wait for a tenth of its deadline is refused too.
        calls = [caller.start_predict(request, timeout=None) for _ in range(3 * LIMIT)]
        wait_until(lambda: sum(call.done() for call in calls) == 2 * LIMIT, "the refusals")
        refused = [call for call in calls if call.done()]
        held.release()
        codes = [call.code() for call in calls if call not in refused]
    assert codes == [grpc.StatusCode.OK] * LIMIT
    for call in refused:
        assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{LIMIT} requests are in flight" in call.details()
        pushback_ms = dict(call.trailing_metadata())["grpc-retry-pushback-ms"]
        assert 50 <= int(pushback_ms) <= 150


def test_stock_client_with_retries_gets_through(host: ModelHost, slow_export: Path) -> None:
    settings = {"max_in_flight_requests": 2}
    model = host.model(prefix="slow", settings=settings).serve(slow_export)
    request = predict_request(model.name, {"seconds": np.float64(0.02)})
    with retrying_stub(model.server.target) as stub:
        # The first run of a version may take longer than all attempts together.
        stub.Predict(request, timeout=TIMEOUT_SECONDS)
        calls = [stub.Predict.future(request, timeout=TIMEOUT_SECONDS) for _ in range(3)]
        codes = [call.code() for call in calls]
    assert codes == [grpc.StatusCode.OK] * 3


def test_connection_whose_client_is_gone_is_closed(
    start_server: StartServer, base_path: Path
) -> None:
    arguments = "grpc.keepalive_time_ms=200,grpc.keepalive_timeout_ms=200"
    server = start_server(base_path=base_path, grpc_channel_arguments=arguments)
    host, _, port = server.target.rpartition(":")
    address = (host, int(port))
    with closing(socket.create_connection(address, timeout=TIMEOUT_SECONDS)) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(type_=4))
        # This client reads the server's pings and answers none of them.
        while connection.recv(4096):
            pass


def test_connection_at_its_age_answers_and_is_replaced(
    start_server: StartServer, slow_export: Path, base_path: Path, held: Held
) -> None:
    """The call under way is answered after the server's GOAWAY, and the next call connects anew."""
    drop(slow_export, base_path, 1)
    server = start_server(
        model_name="slow",
        base_path=base_path,
        grpc_channel_arguments="grpc.max_connection_age_ms=500",
    )
    server.wait_until_available("slow", 1)
    ready, idle = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE
    states: list[grpc.ChannelConnectivity] = []
    with caller_to(server.target) as caller:
        caller.channel.subscribe(states.append)
        call = held.start(caller)
        wait_until(lambda: ready in states and idle in states[states.index(ready) :], "a GOAWAY")
        assert not call.done()
        held.release()
        assert list(call.result().outputs) == ["rounds"]
        quick = predict_request("slow", {"x": np.int32(1)}, signature_name="quick")
        assert array(caller.predict(quick).outputs["y"]) == 2
        wait_until(lambda: states.count(ready) > 1, "a new connection")


def _frame(type_: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame on stream 0, without flags."""
    return struct.pack(">I", len(payload))[1:] + bytes([type_, 0]) + bytes(4) + payload
