"""Cases of gRPC's interop tests that no gRPC client shows: compression flags, trailers, deadlines.

The client here is h2, which knows HTTP/2 and nothing of gRPC.
"""

import gzip
import socket
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import h2.connection
import h2.events
import numpy as np
import pytest

from serving.base.protos import predict_pb2
from tests.integration.clients import HEALTH_CHECK, PREDICT, TIMEOUT_SECONDS, predict_request
from tests.integration.conftest import StartServer
from tests.integration.wire_servers import StartWire, WireServer, sleep_request

OK, DEADLINE_EXCEEDED, NOT_FOUND, UNIMPLEMENTED, INTERNAL = "0", "4", "5", "12", "13"
# Large enough to be compressed.
ZEROS = predict_request(
    "echo", {"x": np.zeros(100_000, np.uint8)}, signature_name="echo_uint8"
).SerializeToString()
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


@pytest.fixture(scope="module", params=["plain", "tls"])
def wire(request: pytest.FixtureRequest, start_wire: StartWire) -> WireServer:
    return start_wire(request.param)


@dataclass
class Reply:
    """The frames of one answer; `headers` has the trailers if there is nothing else."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return (self.trailers or self.headers)["grpc-status"]

    @property
    def message(self) -> tuple[int, bytes]:
        """The flag and the bytes of the one message."""
        assert int.from_bytes(self.body[1:5], "big") == len(self.body) - 5
        return self.body[0], self.body[5:]


def call(
    wire: WireServer,
    path: str,
    message: bytes,
    headers: Mapping[str, str] | None = None,
    flag: int = 0,
) -> Reply:
    """Makes one call on a connection of its own."""
    plain = socket.create_connection(wire.address, timeout=TIMEOUT_SECONDS)
    context = wire.ssl_context()
    connected = context.wrap_socket(plain, server_hostname="localhost") if context else plain
    with closing(connected):
        connection = h2.connection.H2Connection()
        connection.initiate_connection()
        request = {
            ":method": "POST",
            ":scheme": "https" if context else "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            **(headers or {}),
        }
        connection.send_headers(1, list(request.items()))
        body = bytes([flag]) + len(message).to_bytes(4, "big") + message
        reply, is_over = Reply(), False
        while not is_over:
            while body:
                size = min(connection.local_flow_control_window(1), 16_384, len(body))
                if size == 0:
                    break
                connection.send_data(1, body[:size], end_stream=size == len(body))
                body = body[size:]
            connected.sendall(connection.data_to_send())
            received = connected.recv(65_536)
            assert received, "the server closed the connection"
            for event in connection.receive_data(received):
                is_over = take(reply, connection, event) or is_over
        return reply


def take(reply: Reply, connection: h2.connection.H2Connection, event: h2.events.Event) -> bool:
    """Adds an event to `reply`; returns True at its end."""
    if isinstance(event, h2.events.ResponseReceived):
        reply.headers = text(event.headers)
    elif isinstance(event, h2.events.DataReceived):
        reply.body += event.data
        connection.acknowledge_received_data(event.flow_controlled_length, 1)
    elif isinstance(event, h2.events.TrailersReceived):
        reply.trailers = text(event.headers)
    elif isinstance(event, h2.events.StreamReset):
        raise AssertionError(f"the stream was reset: {event.error_code}")
    return isinstance(event, h2.events.StreamEnded)


def text(headers: object) -> dict[str, str]:
    assert isinstance(headers, list)
    pairs = [(name.decode(), value.decode()) for name, value in headers]
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def echoed(message: bytes) -> int:
    """Returns the number of zeros in the answer to ZEROS."""
    tensor = predict_pb2.PredictResponse.FromString(message).outputs["y"]
    return int(tensor.tensor_shape.dim[0].size)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_server_compressed_unary(wire: WireServer, encoding: str):
    headers = {"grpc-encoding": encoding, "grpc-accept-encoding": f"identity,{encoding}"}
    reply = call(wire, PREDICT, COMPRESS[encoding](ZEROS), headers, flag=1)
    assert (reply.status, reply.headers["grpc-encoding"]) == (OK, encoding)
    flag, message = reply.message
    assert flag == 1
    assert len(message) < 10_000
    assert echoed(DECOMPRESS[encoding](message)) == 100_000


def test_reply_has_only_accepted_encodings(wire: WireServer):
    headers = {"grpc-encoding": "gzip", "grpc-accept-encoding": "identity"}
    reply = call(wire, PREDICT, gzip.compress(ZEROS), headers, flag=1)
    flag, message = reply.message
    assert (reply.status, flag, echoed(message)) == (OK, 0, 100_000)
    assert reply.headers.get("grpc-encoding", "identity") == "identity"


def test_plain_message_may_come_under_encoding(wire: WireServer):
    reply = call(wire, PREDICT, ZEROS, {"grpc-encoding": "gzip"}, flag=0)
    assert reply.status == OK


def test_compressed_flag_without_encoding_is_internal(wire: WireServer):
    for headers in ({}, {"grpc-encoding": "identity"}):
        reply = call(wire, PREDICT, gzip.compress(ZEROS), headers, flag=1)
        assert reply.status == INTERNAL


def test_unknown_encoding_is_refused_with_known_ones(wire: WireServer):
    reply = call(wire, PREDICT, b"\xff" * 100, {"grpc-encoding": "snappy"}, flag=1)
    assert reply.status == UNIMPLEMENTED
    encodings = (reply.trailers or reply.headers)["grpc-accept-encoding"].split(",")
    assert {"identity", "gzip", "deflate"} == {name.strip() for name in encodings}


@pytest.mark.parametrize("broken", [b"", b"not gzip", gzip.compress(ZEROS)[:-20]])
def test_broken_compression_is_refused(wire: WireServer, broken: bytes):
    reply = call(wire, PREDICT, broken, {"grpc-encoding": "gzip"}, flag=1)
    assert reply.status in {INTERNAL, "3"}
    assert (reply.trailers or reply.headers)["grpc-message"]


def test_error_is_trailers_only(wire: WireServer):
    reply = call(wire, "/test.Unknown/Call", b"")
    assert (reply.body, reply.trailers) == (b"", {})
    assert reply.headers[":status"] == "200"
    assert reply.headers["content-type"].startswith("application/grpc")
    assert reply.status == UNIMPLEMENTED


def test_message_of_error_is_percent_encoded(wire: WireServer):
    request = predict_request("\t50% ☺😈\r\n", {"x": np.float32(1)}).SerializeToString()
    reply = call(wire, PREDICT, request)
    message = reply.headers["grpc-message"]
    assert reply.status == NOT_FOUND
    assert "50%25 %E2%98%BA%F0%9F%98%88" in message
    assert all(" " <= character <= "~" for character in message)


@pytest.mark.parametrize("timeout", ["100m", "100000u", "99999999n", "1S"])
def test_server_ends_call_at_its_deadline(wire: WireServer, timeout: str):
    reply = call(wire, PREDICT, sleep_request(20), {"grpc-timeout": timeout})
    assert reply.status == DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout", ["0m", "0n"])
def test_deadline_of_now_is_exceeded(wire: WireServer, timeout: str):
    assert call(wire, PREDICT, ZEROS, {"grpc-timeout": timeout}).status == DEADLINE_EXCEEDED


@pytest.mark.parametrize("content_type", ["application/grpc+proto", "application/grpc;charset=x"])
def test_content_type_may_have_more(wire: WireServer, content_type: str):
    assert call(wire, HEALTH_CHECK, b"", {"content-type": content_type}).status == OK


def test_metadata_of_any_form_is_accepted(wire: WireServer):
    headers = {
        "x-no-base64-bin": "%%%",
        "x-empty-bin": "",
        "x-list-bin": "q6ur,q6ur",
        "cookie": "a",
    }
    assert call(wire, HEALTH_CHECK, b"", headers).status == OK


# Keepalive


def answered_pings(address: tuple[str, int], count: int) -> int:
    """Sends PINGs without data, one after the other; returns how many the server answers."""
    with closing(socket.create_connection(address, timeout=TIMEOUT_SECONDS)) as plain:
        connection = h2.connection.H2Connection()
        connection.initiate_connection()
        for number in range(count):
            connection.ping(number.to_bytes(8, "big"))
            plain.sendall(connection.data_to_send())
            is_answered = False
            while not is_answered:
                received = plain.recv(65_536)
                if not received:
                    return number
                events = connection.receive_data(received)
                if any(isinstance(event, h2.events.ConnectionTerminated) for event in events):
                    return number
                is_answered = any(isinstance(event, h2.events.PingAckReceived) for event in events)
        return count


def test_client_that_pings_too_often_is_disconnected(start_wire: StartWire):
    assert answered_pings(start_wire("plain").address, 20) < 20


def test_pings_may_come_as_often_as_flag_says(start_server: StartServer, base_path: Path):
    arguments = "grpc.http2.min_ping_interval_without_data_ms=0"
    server = start_server(base_path=base_path, grpc_channel_arguments=arguments)
    assert answered_pings(("127.0.0.1", server.port), 20) == 20
