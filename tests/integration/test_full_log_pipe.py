"""A server with an unread log: its pipe is full from the first line on."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

from loadtest.drive.shell_server import free_port
from serving.client import Client
from serving.core.servable import AVAILABLE
from tests.integration.clients import TIMEOUT_SECONDS, wait_for_states
from tests.integration.exports import ScaleModel


def full_pipe() -> tuple[int, int]:
    """Returns a pipe that is completely full."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write_end, b"#" * 4095 + b"\n")
    return read_end, write_end


@contextmanager
def server_of(base_path: Path, settings: Path, log: int, port: int) -> Iterator[subprocess.Popen]:  # type: ignore[type-arg]
    flags = {
        "host": "127.0.0.1",
        "port": port,
        "admin_address": f"unix:{settings.parent / 'admin.sock'}",
        "rest_api_port": 0,
        "model_name": "scale",
        "model_base_path": base_path,
        "model_settings_file": settings,
        "file_system_poll_wait_seconds": 0.05,
    }
    command = [sys.executable, "-m", "serving", "serve"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    with subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_full_log_pipe_stops_no_load_rollback_or_stop(
    scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    scale_model.write(base_path, 1)
    settings = tmp_path / "settings.toml"
    settings.write_text("[models.scale]\nkeep_previous_seconds = 600\n")
    read_end, write_end = full_pipe()
    port = free_port()
    with server_of(base_path, settings, write_end, port) as process:
        with Client(f"127.0.0.1:{port}") as client:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(timeout=TIMEOUT_SECONDS)
            for version in range(1, 4):
                if version > 1:
                    scale_model.write(base_path, version)
                wait_for_states(client, "scale", {version: AVAILABLE})
            with Client(f"unix:{tmp_path / 'admin.sock'}") as operator:
                assert operator.rollback("scale").version == 2
            outputs = client.predict("scale", {"x": np.ones(1, np.float32)}).outputs
            assert outputs["y"].tolist() == [4.0]
        process.send_signal(signal.SIGTERM)
        # A server that waits for its log never ends.
        assert process.wait(TIMEOUT_SECONDS) == 0
    os.close(write_end)
    with os.fdopen(read_end, "rb") as log:
        assert log.read() == b"#" * 4095 + b"\n"


def test_log_goes_on_with_its_reader(scale_model: ScaleModel, base_path: Path, tmp_path: Path):
    scale_model.write(base_path, 1)
    settings = tmp_path / "settings.toml"
    settings.write_text("")
    read_end, write_end = full_pipe()
    port = free_port()
    with server_of(base_path, settings, write_end, port) as process:
        os.close(write_end)
        with Client(f"127.0.0.1:{port}") as client:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(timeout=TIMEOUT_SECONDS)
            wait_for_states(client, "scale", {1: AVAILABLE})
        process.send_signal(signal.SIGTERM)
        with os.fdopen(read_end, "rb") as log:
            text = log.read().decode()
    events = ("starting", "version_available", "stopping", "stopped")
    places = [text.index(f'"event": "{event}"') for event in events]
    assert places == sorted(places)
