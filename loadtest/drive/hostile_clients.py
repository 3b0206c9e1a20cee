"""Hostile clients: slow, half-sent, idle and never-reading connections, as raw bytes.

A crowd holds its connections open from one thread of the lowest priority. Once a second it reopens
the connections that the server has closed, so that an attack lasts as long as it is measured.
"""

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtest.drive.raw_http2 import (
    DATA,
    END_HEADERS,
    FRAME_BYTES_MAX,
    HEADERS,
    PREFACE,
    calls,
    frame,
    grpc_headers,
    hello,
)
from serving.base.clock import Clock, pause
from serving.base.periodic_thread import PeriodicThread
from serving.base.protos import get_model_metadata_pb2

_NICE = 19
_CONNECT_SECONDS = 5
# A crowd connects over some seconds, unless the attack is that all come at once.
_CONNECTIONS_PER_SECOND = 500
# Small enough that one reply fills it, and the server has to keep the rest or stop writing.
_RECEIVE_BUFFER_BYTES = 4_096


@dataclass(frozen=True)
class Attack:
    """An attack: sends `opening` on each of `connection_count` connections, then `nag` once a
    second.

    The connections never read. If `is_http`, they go to the HTTP port, else to the gRPC port. If
    `is_at_once`, all connect as fast as one thread can connect them.
    """

    name: str
    connection_count: int
    is_http: bool
    opening: bytes
    nag: bytes = b""
    is_at_once: bool = False


class Crowd:
    """Holds the connections of one attack inside `with`."""

    def __init__(self, attack: Attack, target: str, url: str, clock: Clock) -> None:
        """`target` is gRPC's HOST:PORT, `url` is HTTP's URL. Raises OSError inside `with`."""
        self._attack = attack
        self._clock = clock
        address = urlsplit(url).netloc if attack.is_http else target
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._sockets: list[socket.socket] = []
        self.reopened_count = 0
        self._thread = PeriodicThread(
            "hostile",
            self._nag,
            wait_seconds=lambda: 1.0,
            failure_event="crowd_failed",
            at_start=lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE),
            clock=clock,
        )

    def __enter__(self) -> "Crowd":
        for _ in range(self._attack.connection_count):
            self._sockets.append(self._connected())
            if not self._attack.is_at_once:
                pause(self._clock, 1 / _CONNECTIONS_PER_SECOND)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.stop()
        self._thread.join(None)
        for connection in self._sockets:
            connection.close()

    def _connected(self) -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect(self._address)
        connection.setblocking(False)
        _send(connection, self._attack.opening)
        return connection

    def _nag(self) -> None:
        for number, connection in enumerate(self._sockets):
            if _send(connection, self._attack.nag) and not _is_closed(connection):
                continue
            connection.close()
            self.reopened_count += 1
            self._sockets[number] = self._connected()


def _send(connection: socket.socket, content: bytes) -> bool:
    """Sends as much as the kernel accepts now; False if the server has closed the connection."""
    try:
        connection.send(content)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


# --- The attacks ----------------------------------------------------------------------------------


def attacks(model_name: str, message: bytes) -> Mapping[str, Attack]:
    """All attacks by name; `message` is a serialized PredictRequest for the model."""
    made = (*_grpc_attacks(model_name, message), *_http_attacks(model_name))
    return {attack.name: attack for attack in made}


def _grpc_attacks(model_name: str, message: bytes) -> Sequence[Attack]:
    predict = "/tensorflow.serving.PredictionService/Predict"
    half_bytes = min(len(message) // 2, FRAME_BYTES_MAX - 5)
    half = frame(HEADERS, END_HEADERS, 1, grpc_headers(predict)) + frame(
        DATA, 0, 1, b"\x00" + len(message).to_bytes(4, "big") + message[:half_bytes]
    )
    question = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    question.model_spec.name = model_name
    unread = calls(
        "/tensorflow.serving.PredictionService/GetModelMetadata",
        question.SerializeToString(),
        count=20,
    )
    return (
        Attack("gRPC idle", 2_000, False, hello()),
        Attack("gRPC at once", 2_000, False, hello(), is_at_once=True),
        Attack("gRPC slow loris", 500, False, PREFACE[:8], b" "),
        Attack("gRPC half-sent", 500, False, hello() + half),
        Attack("gRPC never reads", 50, False, hello() + unread),
    )


def _http_attacks(model_name: str) -> Sequence[Attack]:
    head = f"POST /v1/models/{model_name}:predict HTTP/1.1\r\nHost: localhost\r\n".encode()
    half = head + b"Content-Length: 1000000\r\n\r\n" + b'{"instances": [' + b" " * 10_000
    return (
        Attack("HTTP idle", 2_000, True, b""),
        Attack("HTTP slow loris", 500, True, head + b"X-", b"x"),
        Attack("HTTP half-sent", 500, True, half, b" "),
        Attack(
            "HTTP never reads", 50, True, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50
        ),
    )
