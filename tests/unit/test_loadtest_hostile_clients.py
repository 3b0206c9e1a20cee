import socket
import threading
from collections.abc import Iterator

import pytest

from loadtest.drive.hostile_clients import Attack, Crowd, attacks
from serving.base.clock import SystemClock
from serving.base.protos import get_model_metadata_pb2


class Listener:
    """Accepts connections and keeps the bytes that each sent; closes the first one at once."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.received: list[bytes] = []
        self.connections: list[socket.socket] = []
        self.has_three = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while len(self.connections) < 3:
            connection, _ = self._server.accept()
            self.received.append(connection.recv(100))
            self.connections.append(connection)
            if len(self.connections) == 1:
                connection.close()
        self.has_three.set()

    def close(self) -> None:
        self._thread.join()
        for connection in (*self.connections, self._server):
            connection.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.mark.parametrize("is_http", [True, False])
def test_crowd_reopens_closed_connections(listener: Listener, is_http: bool):
    here, elsewhere = f"127.0.0.1:{listener.port}", "127.0.0.1:1"
    target, url = (elsewhere, here) if is_http else (here, elsewhere)
    attack = Attack("idle", 2, is_http, b"opening", b"nag")
    with Crowd(attack, target, f"http://{url}", SystemClock()) as crowd:
        assert listener.has_three.wait(30)
    assert crowd.reopened_count == 1
    assert listener.received == [b"opening"] * 3


def frames(content: bytes) -> list[tuple[int, int, int, bytes]]:
    """Returns (kind, flags, stream, payload) of HTTP/2 frames, which must fill the bytes exactly."""
    found = []
    while content:
        size = int.from_bytes(content[:3], "big")
        assert len(content) >= 9 + size
        stream = int.from_bytes(content[5:9], "big")
        found.append((content[3], content[4], stream, content[9 : 9 + size]))
        content = content[9 + size :]
    return found


def test_grpc_attacks_are_readable_frames():
    made = attacks("ctr", b"message")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert preface.startswith(made["gRPC slow loris"].opening)
    half = made["gRPC half-sent"].opening.removeprefix(preface)
    kind, flags, stream, payload = frames(half)[-1]
    assert (kind, flags, stream) == (0, 0, 1)
    assert int.from_bytes(payload[1:5], "big") == 7 > len(payload[5:]) == 3
    unread = frames(made["gRPC never reads"].opening.removeprefix(preface))
    questions = [payload[5:] for kind, _, _, payload in unread if kind == 0]
    asked = get_model_metadata_pb2.GetModelMetadataRequest.FromString(questions[-1])
    assert (len(questions), asked.model_spec.name) == (20, "ctr")


def test_attacks_over_http_declare_more_than_they_send():
    opening = attacks("ctr", b"")["HTTP half-sent"].opening
    head, _, body = opening.partition(b"\r\n\r\n")
    assert b"Content-Length: 1000000" in head
    assert len(body) < 1_000_000
