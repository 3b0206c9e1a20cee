"""Clients that take all the descriptors they can: the server goes on, and swaps, and probes answer."""

import socket
import sys
import urllib.request
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged

DESCRIPTOR_COUNT = 400
"""Enough for a server at rest, which has some 100, and few enough to take."""

FEW_DESCRIPTORS = 300
"""So few that the limits of both ports together are more than the server leaves."""

PROBE_SECONDS = 10
"""Half of the time after which the server gives up clients that never speak."""

PROBES = ("/healthz", "/readyz", "/metrics", "/v2/health/ready")


def command_with(descriptor_count: int) -> tuple[str, ...]:
    limited = ("bash", "-c", f'ulimit -n {descriptor_count}; exec "$@"', "bash")
    return (*limited, sys.executable, "-m", "serving")


def flood(stack: ExitStack, port: int) -> None:
    """Opens more connections than the server has descriptors, and keeps them."""
    for _ in range(2 * DESCRIPTOR_COUNT):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect(("127.0.0.1", port))


def is_healthy(
    server: ModelServer, path: str = "/healthz", timeout_seconds: float = TIMEOUT_SECONDS
) -> bool:
    try:
        with urllib.request.urlopen(server.url + path, timeout=timeout_seconds) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def test_taken_descriptors_end_nothing(
    start_server: StartServer, base_path: Path, scale_model: ScaleModel
) -> None:
    scale_model.write(base_path, 1)
    server = start_server(
        command=command_with(DESCRIPTOR_COUNT), model_name="scale", base_path=base_path
    )
    server.wait_until_available("scale", 1)
    with ExitStack() as stack, caller_to(server.target) as caller:
        inputs = {"x": np.array([1.0], np.float32)}
        assert int(caller.outputs("scale", inputs)["version"]) == 1
        flood(stack, server.port)
        flood(stack, int(server.url.rsplit(":", 1)[1]))
        wait_until(lambda: is_healthy(server), "a probe is answered")
        scale_model.write(base_path, 2)
        server.wait_until_available("scale", 2)
        assert int(caller.outputs("scale", inputs)["version"]) == 2
    refusals = logged(server, "connection_not_accepted")
    instants = sorted(str(event["timestamp"])[:19] for event in refusals)
    # Each of the two loops logs it once a second at most.
    assert all(instants.count(instant) <= 4 for instant in instants)


@pytest.mark.parametrize("is_grpc_first", [True, False])
def test_few_descriptors_leave_probes_a_place(
    start_server: StartServer, base_path: Path, scale_model: ScaleModel, is_grpc_first: bool
) -> None:
    scale_model.write(base_path, 1)
    server = start_server(
        command=command_with(FEW_DESCRIPTORS), model_name="scale", base_path=base_path
    )
    server.wait_until_available("scale", 1)
    ports = (server.port, int(server.url.rsplit(":", 1)[1]))
    with ExitStack() as stack:
        for port in ports if is_grpc_first else ports[::-1]:
            flood(stack, port)
        for path in PROBES * 3:
            is_answered = partial(is_healthy, server, path, PROBE_SECONDS / 2)
            wait_until(is_answered, f"{path} is answered", PROBE_SECONDS)
