"""Floods of frames: the server's memory does not grow, and another client loses nothing.

Each flood has several connections, and opens a new one if the server closes one.
"""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.base.clock import SystemClock, seconds_since
from tests.integration.clients import caller_to, predict_request, wait_until
from tests.integration.processes import resident_mib

CONNECTION_COUNT = 8
GROWTH_MIB_MAX = 100

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_HEADERS = 4

_clock = SystemClock()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def field(name: bytes, value: bytes) -> bytes:
    """Returns a header in HPACK (RFC 7541, 6.2.2), without Huffman codes. At most 126 bytes each."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


REQUEST = b"".join(
    [
        field(b":method", b"POST"),
        field(b":scheme", b"http"),
        field(b":path", b"/tensorflow.serving.PredictionService/Predict"),
        field(b":authority", b"localhost"),
        field(b"te", b"trailers"),
        field(b"content-type", b"application/grpc"),
    ]
)
OPENING = PREFACE + frame(SETTINGS, 0, 0)
REQUEST_OF_SCALE = predict_request("scale", {"x": np.array([1.0], np.float32)})


def opened(stream: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, REQUEST)


def streams() -> Iterator[int]:
    return count(1, 2)


def settings_flood() -> Iterator[bytes]:
    while True:
        yield frame(SETTINGS, 0, 0) * 100


def ping_flood() -> Iterator[bytes]:
    while True:
        yield frame(PING, 0, 0, b"12345678") * 100


def reset_flood() -> Iterator[bytes]:
    for stream in streams():
        yield opened(stream) + frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big"))


def open_streams() -> Iterator[bytes]:
    for stream in streams():
        yield opened(stream)


def announced_gigabytes() -> Iterator[bytes]:
    """Each stream announces a message of 60 MB, and sends only its first byte."""
    for stream in streams():
        prefix = b"\x00" + (60_000_000).to_bytes(4, "big")
        yield opened(stream) + frame(DATA, 0, stream, prefix + b"x")


def continuation_flood() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, REQUEST)
    while True:
        yield frame(CONTINUATION, 0, 1, field(b"x", b"y" * 100) * 100)


def large_headers() -> Iterator[bytes]:
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, REQUEST + field(b"x", b"y" * 120) * 120)


def empty_data() -> Iterator[bytes]:
    yield opened(1)
    while True:
        yield frame(DATA, 0, 1) * 100


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    flood.__name__: flood
    for flood in (
        *(settings_flood, ping_flood, reset_flood, open_streams, announced_gigabytes),
        *(continuation_flood, large_headers, empty_data),
    )
}


def send_flood(
    address: tuple[str, int], flood: Callable[[], Iterator[bytes]], seconds: float
) -> int:
    """Floods for `seconds`; returns the number of bytes that the kernel took. Reads nothing:
    answers that wait must not take memory either.
    """
    sent_bytes = 0
    began_ns = _clock.now_ns()
    while sent_bytes == 0 or seconds_since(_clock, began_ns) < seconds:
        try:
            with socket.create_connection(address, timeout=1) as connection:
                connection.sendall(OPENING)
                for part in flood():
                    connection.sendall(part)
                    sent_bytes += len(part)
                    if seconds_since(_clock, began_ns) >= seconds:
                        break
        except OSError:
            continue
    return sent_bytes


@contextmanager
def flooded(
    server: ModelServer, flood: Callable[[], Iterator[bytes]], seconds: float
) -> Iterator[list[Future[int]]]:
    """Yields the floods of all connections, which are over at the end of the block."""
    host, _, port = server.target.rpartition(":")
    with ThreadPoolExecutor(CONNECTION_COUNT) as threads:
        yield [
            threads.submit(send_flood, (host, int(port)), flood, seconds)
            for _ in range(CONNECTION_COUNT)
        ]


@pytest.fixture(scope="module")
def quiet_mib(server: ModelServer) -> float:
    """The server's memory before the first flood: what one flood leaves behind counts for the next
    ones too.
    """
    with caller_to(server.target) as caller:
        for _ in range(100):
            caller.predict(REQUEST_OF_SCALE)
        return resident_mib(server.process_id)


@pytest.mark.parametrize("seconds", [0.5, pytest.param(5.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", FLOODS)
def test_flood_takes_no_memory_and_loses_no_request(
    server: ModelServer, quiet_mib: float, name: str, seconds: float
) -> None:
    answered_count = 0
    peak_mib = 0.0
    with caller_to(server.target) as caller:
        with flooded(server, FLOODS[name], seconds) as floods:
            began_ns = _clock.now_ns()
            while answered_count == 0 or seconds_since(_clock, began_ns) < seconds:
                assert caller.predict(REQUEST_OF_SCALE).model_spec.version.value == 1
                answered_count += 1
                peak_mib = max(peak_mib, resident_mib(server.process_id))
        peak_mib = max(peak_mib, resident_mib(server.process_id))
        sent_bytes = [flood.result() for flood in floods]
        assert peak_mib - quiet_mib < GROWTH_MIB_MAX
        print(
            f"{name}: grew by {peak_mib - quiet_mib:.1f} MiB, {answered_count} answers, "
            f"{sum(sent_bytes):,} bytes of floods"
        )
    wait_until(lambda: connection_count(server) <= 1, "the flood's connections to go")


def connection_count(server: ModelServer) -> int:
    count = ServerPages(server.url).metrics().value("serving_grpc_connections")
    assert count is not None
    return int(count)
