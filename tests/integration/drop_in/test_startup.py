"""The order in which ports open: a client that waits for gRPC's port finds a server that answers."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from loadtest.drive.shell_server import free_port
from serving.base.clock import SystemClock
from serving.server.server_log import LogReader
from tests.integration.clients import TIMEOUT_SECONDS, caller_to
from tests.integration.exports import ScaleModel


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS).close()
    except ConnectionRefusedError:
        return False
    return True


class Process:
    """`millpond serve` from its first moment on; ModelServer shows it only once it listens."""

    def __init__(self, log_path: Path, base_path: Path, *flags: str) -> None:
        self.port, self.http_port = free_port(), free_port()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "serving", "serve", "--model_name=scale"),
                *(f"--model_base_path={base_path}", f"--port={self.port}", "--host=127.0.0.1"),
                *(f"--rest_api_port={self.http_port}", "--log_format=json"),
                *("--file_system_poll_wait_seconds=0.05", *flags),
            ],
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        self.log = LogReader(self.process.stderr, log_path.open("wb"))

    def wait_for(self, event: str) -> Any:
        found = self.log.wait_for(
            lambda line: line["event"] == event, TIMEOUT_SECONDS, SystemClock()
        )
        assert found is not None, (event, self.log.tail())
        return found

    def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(TIMEOUT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.join()


StartProcess = Callable[..., Process]


@contextmanager
def stopped_at_the_end(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.stop()
        process.log.join()


@pytest.fixture
def start_process(tmp_path: Path, base_path: Path) -> Iterator[StartProcess]:
    with ExitStack() as stack:

        def start(*flags: str) -> Process:
            process = Process(tmp_path / "server.log", base_path, *flags)
            return stack.enter_context(stopped_at_the_end(process))

        yield start


def test_server_that_awaits_models_answers_http_alone(
    start_process: StartProcess, tmp_path: Path
) -> None:
    process = start_process()
    line = process.wait_for("waiting_for_models")
    assert line["models"] == {"scale": "no version has been found in its base path"}
    assert process.get("/healthz")[0] == 200
    assert process.get("/readyz")[0] == 503
    assert process.get("/metrics")[0] == 200
    assert not is_open(process.port)
    assert re.search(f"port {process.port} is already in use", error_of_second(process.port))
    assert process.stop() == 0
    assert process.wait_for("stopped")["is_complete"]
    assert not is_open(process.port)
    lines = (tmp_path / "server.log").read_text().splitlines()
    # The log has no line that is not JSON.
    events = [json.loads(line)["event"] for line in lines]
    assert events[0] == "starting"


def error_of_second(port: int) -> str:
    """Returns what a second server writes that is started on this port and fails."""
    second = subprocess.run(
        [
            *(sys.executable, "-m", "serving", "serve", "--model_base_path=/nowhere"),
            *("--host=127.0.0.1", f"--port={port}", "--rest_api_port=0"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert second.returncode == 1
    return second.stderr


def test_grpc_port_opens_when_the_model_is_available(
    start_process: StartProcess, scale_model: ScaleModel, base_path: Path
) -> None:
    process = start_process()
    process.wait_for("no_version_in_base_path")
    assert not is_open(process.port)
    scale_model.write(base_path, 1)
    # Waits for the port as a client does.
    with grpc.insecure_channel(f"127.0.0.1:{process.port}") as channel:
        grpc.channel_ready_future(channel).result(TIMEOUT_SECONDS)
    with caller_to(f"127.0.0.1:{process.port}") as caller:
        assert caller.outputs("scale", {"x": np.ones(1, np.float32)})["y"].tolist() == [2.0]
    # Threads of their own write these lines, after what they tell of, so their order says nothing.
    for event in ("version_available", "listening", "ready"):
        process.wait_for(event)
    assert process.get("/readyz")[0] == 200


def test_grpc_port_opens_when_the_model_has_failed(
    start_process: StartProcess, scale_model: ScaleModel, base_path: Path
) -> None:
    directory = scale_model.write(base_path, 1)
    for data in (directory / "variables").glob("variables.data-*"):
        data.write_bytes(b"\x00" * data.stat().st_size)
    process = start_process()
    assert process.wait_for("ready")["unavailable"] == ["scale"]
    assert is_open(process.port)


def test_startup_wait_ends_at_its_limit(start_process: StartProcess) -> None:
    process = start_process("--max_startup_wait_seconds=0.5")
    assert list(process.wait_for("startup_wait_over")["models"]) == ["scale"]
    process.wait_for("listening")
    assert is_open(process.port)
