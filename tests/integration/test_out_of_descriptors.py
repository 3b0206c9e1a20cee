"""Clients that take all the descriptors they can: the server goes on, and swaps, and probes answer."""

import socket
import sys
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

DESCRIPTOR_COUNT = 400
"""Enough for a server at rest, which has some 100, and few enough to take."""

LIMITED = ("bash", "-c", f'ulimit -n {DESCRIPTOR_COUNT}; exec "$@"', "bash")


def flood(stack: ExitStack, port: int) -> None:
    """Opens more connections than the server has descriptors, and keeps them."""
    for _ in range(2 * DESCRIPTOR_COUNT):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect(("127.0.0.1", port))


def is_healthy(server: ModelServer) -> bool:
    try:
        with urllib.request.urlopen(server.url + "/healthz", timeout=TIMEOUT_SECONDS) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def test_taken_descriptors_end_nothing(
    start_server: StartServer, base_path: Path, scale_model: ScaleModel
) -> None:
    scale_model.write(base_path, 1)
    server = start_server(
        command=(*LIMITED, sys.executable, "-m", "serving"), model_name="scale", base_path=base_path
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
    refusals = [event for event in server.events() if event["event"] == "connection_not_accepted"]
    instants = sorted(str(event["timestamp"])[:19] for event in refusals)
    # Each of the two loops logs it once a second at most.
    assert all(instants.count(instant) <= 4 for instant in instants)
