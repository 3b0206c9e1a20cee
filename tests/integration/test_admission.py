"""Limits of requests in flight and keepalive, with stock clients."""

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import numpy as np

from serving import ModelServer
from serving.client.stubs import PredictionServiceStub
from tests.integration.clients import caller_to, predict_request
from tests.integration.conftest import StartServer
from tests.integration.exports import drop

RUN_COUNT_MAX = 4 * (os.cpu_count() or 1)
LIMIT = 2 * RUN_COUNT_MAX
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


def serve_slow_model(
    start_server: StartServer, export: Path, base_path: Path, **flags: object
) -> ModelServer:
    drop(export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, **flags)
    server.wait_until_available("slow", 1)
    return server


@contextmanager
def retrying_stub(target: str) -> Iterator[PredictionServiceStub]:
    options = [("grpc.service_config", json.dumps(RETRY)), ("grpc.enable_retries", 1)]
    with grpc.insecure_channel(target, options=options) as channel:
        yield PredictionServiceStub(channel)


def test_limit_refuses_excess_requests_at_once(
    start_server: StartServer, slow_export: Path, base_path: Path
) -> None:
    flags = {"max_in_flight_requests": LIMIT}
    server = serve_slow_model(start_server, slow_export, base_path, **flags)
    request = predict_request("slow", {"seconds": np.float64(0.5)})
    with caller_to(server.target) as caller:
        calls = [caller.start_predict(request, timeout=60) for _ in range(3 * LIMIT)]
        refused = [call for call in calls if call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED]
        answered = [call for call in calls if call.code() == grpc.StatusCode.OK]
    assert len(refused) + len(answered) == 3 * LIMIT
    assert LIMIT <= len(answered) < 2 * LIMIT
    for call in refused:
        assert f"{LIMIT} requests are in flight" in call.details()
        pushback_ms = dict(call.trailing_metadata())["grpc-retry-pushback-ms"]
        assert 50 <= int(pushback_ms) <= 150


def test_stock_client_with_retries_gets_through(
    start_server: StartServer, slow_export: Path, base_path: Path
) -> None:
    flags = {"max_in_flight_requests_per_model": 2}
    server = serve_slow_model(start_server, slow_export, base_path, **flags)
    request = predict_request("slow", {"seconds": np.float64(0.02)})
    with retrying_stub(server.target) as stub:
        calls = [stub.Predict.future(request, timeout=30) for _ in range(6)]
        codes = [call.code() for call in calls]
    assert codes == [grpc.StatusCode.OK] * 6


def test_connection_whose_client_is_gone_is_closed(
    start_server: StartServer, slow_export: Path, base_path: Path
) -> None:
    arguments = "grpc.keepalive_time_ms=200,grpc.keepalive_timeout_ms=200"
    flags = {"grpc_channel_arguments": arguments}
    server = serve_slow_model(start_server, slow_export, base_path, **flags)
    host, _, port = server.target.rpartition(":")
    with closing(socket.create_connection((host, int(port)), timeout=30)) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(type_=4))
        # This client reads the server's pings and answers none of them.
        while connection.recv(4096):
            pass


def _frame(type_: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame on stream 0, without flags."""
    return struct.pack(">I", len(payload))[1:] + bytes([type_, 0]) + bytes(4) + payload
